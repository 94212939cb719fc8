"""Leases that are renewed in a thread, lost, confirmed and released."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from seriatim.core.errors import BackendFailure, LeaseLost
from seriatim.store.lease_keeper import LeaseKeeper, wait_for_lease

PATIENCE_S = 20.0


class Renewals:
    """Renews with scripted outcomes; the last one is repeated."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.outcomes = list(outcomes)
        self.calls = 0
        self.exhausted = threading.Event()

    def __call__(self) -> bool:
        """Return or raise the next outcome."""
        outcome = self.outcomes[min(self.calls, len(self.outcomes) - 1)]
        self.calls += 1
        if self.calls >= len(self.outcomes):
            self.exhausted.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def make_keeper(renew: Callable[[], bool], **options: object) -> LeaseKeeper:
    """Return a keeper that renews every 10 ms."""
    given: dict[str, Any] = {"interval_s": 0.01, "name": "the lease", "on_error": pytest.fail}
    return LeaseKeeper(renew, **given | options)


def wait_until_ended(keeper: LeaseKeeper) -> None:
    """Wait until the thread of a keeper has ended."""
    keeper._thread.join(PATIENCE_S)
    assert not keeper._thread.is_alive()


def test_a_lease_is_renewed_and_released() -> None:
    """E5: a lease is renewed during the block and released at its end."""
    renew = Renewals(True, True, True)
    ended: list[str] = []
    keeper = make_keeper(
        renew, release=lambda: ended.append("released"), on_end=lambda: ended.append("closed")
    )
    with keeper:
        assert renew.exhausted.wait(PATIENCE_S)
        keeper.check()

    assert not keeper.lost
    assert ended == ["closed", "released"]


def test_a_failed_renewal_is_reported_and_repeated() -> None:
    """E5: an error of a renewal is reported, and the renewal is repeated."""
    failures = [BackendFailure("away"), OSError("away")]
    seen: list[Exception] = []
    renew = Renewals(*failures, True)
    with make_keeper(renew, on_error=seen.append) as keeper:
        assert renew.exhausted.wait(PATIENCE_S)

    assert seen == failures
    assert not keeper.lost


@pytest.mark.parametrize("outcome", [False, LeaseLost("taken")], ids=["false", "raised"])
def test_a_lost_lease_is_not_released(outcome: bool | Exception) -> None:
    """H2: a lost lease is neither renewed nor released, and `check` raises."""
    renew = Renewals(True, outcome)
    ended: list[str] = []
    with make_keeper(
        renew, release=lambda: pytest.fail("released"), on_end=lambda: ended.append("closed")
    ) as keeper:
        wait_until_ended(keeper)
        assert keeper.lost
        assert ended == ["closed"]
        with pytest.raises(LeaseLost, match="taken" if outcome else "belongs to another owner"):
            keeper.check()

    assert renew.calls == 2


def test_a_lease_lost_by_a_fenced_write_is_not_released() -> None:
    """E5: a lease is not released when the block ends with `LeaseLost`."""
    keeper = make_keeper(lambda: True, release=lambda: pytest.fail("released"), interval_s=600.0)
    with pytest.raises(LeaseLost), keeper:
        raise LeaseLost("by the cursor")


def test_a_lease_is_released_after_another_error() -> None:
    """E5: a lease is released when the block fails with another error."""
    released: list[bool] = []
    keeper = make_keeper(lambda: True, release=lambda: released.append(True), interval_s=600.0)
    with pytest.raises(ZeroDivisionError), keeper:
        raise ZeroDivisionError

    assert released == [True]


def test_confirm_renews_the_lease() -> None:
    """H2: `confirm` renews the lease, and raises when it was lost."""
    renew = Renewals(True, False)
    with make_keeper(renew, interval_s=600.0, release=lambda: pytest.fail("released")) as keeper:
        keeper.confirm()
        with pytest.raises(LeaseLost):
            keeper.confirm()
        with pytest.raises(LeaseLost):
            keeper.confirm()

    assert renew.calls == 2


def test_confirm_raises_the_failure_of_the_store() -> None:
    """H2: `confirm` raises a failure of the store without losing the lease."""
    released: list[bool] = []
    failing = Renewals(BackendFailure("away"))
    with make_keeper(failing, interval_s=600.0, release=lambda: released.append(True)) as keeper:
        with pytest.raises(BackendFailure):
            keeper.confirm()
        assert not keeper.lost

    assert released == [True]


def test_a_forked_child_has_no_lease() -> None:
    """E5: in a forked child `check` raises, and the end of the block releases nothing."""
    released: list[int] = []
    child = -1
    with make_keeper(
        lambda: True, interval_s=600.0, release=lambda: released.append(os.getpid())
    ) as keeper:
        child = os.fork()
        if child == 0:
            os._exit(_leave_in_child(keeper, released))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert released == [os.getpid()]


def _leave_in_child(keeper: LeaseKeeper, released: list[int]) -> int:
    """Return 0 if the keeper treats this process as a forked child."""
    try:
        keeper.check()
    except LeaseLost as error:
        keeper.__exit__(None, None, None)
        return 0 if "parent process" in error.message and not released else 1
    return 2


def test_waiting_reports_once_and_returns_the_lease() -> None:
    """I8: waiting for a lease is reported once, and the claim is repeated at intervals."""
    answers = iter([None, None, 7])
    waits: list[float] = []
    reports: list[bool] = []
    token = wait_for_lease(
        lambda: next(answers),
        stopped=lambda: False,
        interval_s=0.25,
        on_wait=lambda: reports.append(True),
        sleep=waits.append,
    )

    assert token == 7
    assert waits == [0.25, 0.25]
    assert reports == [True]


def test_waiting_ends_when_stopped() -> None:
    """I8: waiting for a lease ends without a claim when it is stopped."""
    stopped = threading.Event()
    assert (
        wait_for_lease(
            lambda: None,
            stopped=stopped.is_set,
            interval_s=0.1,
            sleep=lambda _: stopped.set(),
        )
        is None
    )
    assert wait_for_lease(pytest.fail, stopped=stopped.is_set, interval_s=0.1) is None

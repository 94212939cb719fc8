"""The handler runner: the real handler loop and registry, with a clock and injected failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seriatim import (
    BackendFailure,
    Catalogue,
    Conflict,
    InvalidArgument,
    NewEvent,
    RegistrySettings,
    RetryPolicy,
    StreamKind,
    handler,
)
from seriatim.testing import HandlerRunner

PLACED = NewEvent("order.placed", {"total": 12}, stream=("order", "1"))
PAID = NewEvent("order.paid", stream=("order", "1"))


@contextmanager
def run_keyed(**options: Any) -> Iterator[tuple[HandlerRunner, list[str]]]:
    """Open a runner of a keyed handler, and the keys of its effects."""
    keys: list[str] = []
    options = {"effect": "keyed", "events": ["order.*"], **options}

    @handler("mails", **options)
    def mails(event: Any, context: Any) -> None:
        keys.append(context.key.rpartition("/")[2])

    with HandlerRunner(mails) as runner:
        yield runner, keys


def statuses(runner: HandlerRunner) -> list[str]:
    """Return the status of each event."""
    return [event.status for event in runner.report()]


def test_events_are_handled_once() -> None:
    """G1, G7: each event has its effect once, also if it is delivered again."""
    with run_keyed() as (runner, keys):
        counts = runner.handle([PLACED, NewEvent("other"), PAID])
        again = runner.handle(runner.log.read())

        assert (counts.done, counts.passed) == (2, 1)
        assert (again.done, again.duplicate, again.passed) == (0, 2, 1)
        assert statuses(runner) == ["done", "passed", "done"]
        assert [event.calls for event in runner.report()] == [1, 0, 1]
        assert len(keys) == len(set(keys)) == 2


def test_the_report_describes_each_event() -> None:
    """G5: the report has the event, its status, attempts, calls and error."""
    with run_keyed() as (runner, keys):
        runner.fail(attempt=1, error=TimeoutError("no answer"))
        runner.handle([msgspec.structs.replace(PLACED, event_id="e-1")])
        [failed] = runner.report()
        runner.settle()
        [done] = runner.report()

    assert (failed.event_id, failed.event_type, failed.position) == ("e-1", "order.placed", 1)
    assert (failed.status, failed.attempts, failed.calls) == ("failed", 1, 0)
    assert failed.error == "TimeoutError: no answer"
    assert (done.status, done.attempts, done.calls, keys) == ("done", 2, 1, ["e-1"])


def test_retries_are_due_when_the_clock_is_advanced() -> None:
    """G5: a retry waits for its backoff by the clock of the database, which tests advance."""
    policy = RetryPolicy(attempts=3, base_s=10.0, factor=2.0, jitter=0.0)
    with run_keyed(retry=policy) as (runner, keys):
        runner.fail(attempt=1)
        runner.fail(attempt=2)
        runner.handle([PLACED])
        for seconds, done in ((9.9, 0), (0.1, 0), (19.9, 0), (0.1, 1)):
            runner.advance(seconds)
            assert runner.handle().done == done

        assert len(keys) == 1
        assert [event.attempts for event in runner.report()] == [3]


def test_later_events_of_a_stream_wait() -> None:
    """G4: an event of a failed stream is blocked; other streams go on."""
    other = NewEvent("order.placed", stream=("order", "2"))
    with run_keyed() as (runner, _):
        runner.fail(attempt=1, event_type="order.placed")
        runner.handle([PLACED, PAID, other, NewEvent("order.noted", stream=("order", "3"))])
        assert statuses(runner) == ["failed", "blocked", "failed", "done"]

        counts = runner.settle()
        assert (counts.done, statuses(runner)) == (3, ["done"] * 4)


def test_dead_letters() -> None:
    """G5: after its last attempt an event is a dead letter; final errors are one at once."""
    policy = RetryPolicy(attempts=2, final=(LookupError,))
    with run_keyed(retry=policy) as (runner, keys):
        runner.fail(attempt=1, event_type="order.placed", error=KeyError("sku"))
        runner.fail(attempt=1, event_type="order.noted")
        runner.fail(attempt=2, event_type="order.noted", error=ValueError("bad"))
        runner.handle([PLACED, NewEvent("order.noted")])
        assert [(one.event_type, one.attempts) for one in runner.dead_letters] == [
            ("order.placed", 1)
        ]
        runner.settle()

        assert [one.error for one in runner.dead_letters] == ["KeyError: 'sku'", "ValueError: bad"]
        assert keys == []


def test_a_handler_that_stops() -> None:
    """G5: with `stop` a dead letter stops the handler, which the next call reports."""
    with run_keyed(on_poison="stop", retry=RetryPolicy(attempts=1)) as (runner, keys):
        runner.fail(attempt=1, event_type="order.placed")
        with pytest.raises(Conflict, match="is stopped"):
            runner.handle([PLACED])
        with pytest.raises(Conflict):
            runner.handle([NewEvent("order.paid", stream=("order", "2"))])
        assert keys == []


# -- crashes, lost leases and outages


def test_a_crash_repeats_a_keyed_effect_with_its_key() -> None:
    """G7: after a crash between effect and mark the effect is repeated, with the same key."""
    with run_keyed() as (runner, keys):
        runner.crash(attempt=1, event_type="order.paid")
        runner.handle([PLACED, PAID])
        assert runner.crashes == 1
        runner.handle()
        assert keys[1:2] == keys[-1:]  # the lease of the dead process is not over
        runner.settle()

        assert statuses(runner) == ["done", "done"]
        assert len(keys) > len(set(keys)) == 2


def test_a_crash_leaves_an_unsafe_effect_unknown() -> None:
    """G7: an unsafe effect is not repeated by itself after a crash, unless it is declared so."""
    with run_keyed(effect="unsafe") as (runner, keys):
        runner.crash(attempt=1)
        runner.handle([PLACED])
        runner.settle()
        assert (statuses(runner), len(keys)) == (["unknown"], 1)
    with run_keyed(effect="unsafe", retry_unknown=True) as (runner, keys):
        runner.crash(attempt=1)
        runner.handle([PLACED])
        runner.settle()
        assert (statuses(runner), len(keys)) == (["done"], 2)


Setup = Callable[[HandlerRunner], None]


@pytest.mark.parametrize(
    "setup",
    [
        lambda runner: runner.crash(attempt=1),
        lambda runner: runner.lose_lease(attempt=1),
        lambda runner: runner.fail(attempt=1),
        lambda runner: runner.fail(attempt=2),
    ],
)
def test_transactional_effects_happen_exactly_once(setup: Setup) -> None:
    """G7: a transactional effect is stored once, whatever fails."""

    @handler("totals", effect="transactional")
    def totals(event: Any, context: Any) -> None:
        context.connection.execute("insert into totals values (?)", [event.payload["n"]])

    with HandlerRunner(totals) as runner:
        runner.query("create table totals (n integer)")
        setup(runner)
        runner.handle([NewEvent("x", {"n": n}, stream=("s", "1")) for n in range(3)])
        runner.settle()

        assert runner.query("select n from totals order by rowid") == [(0,), (1,), (2,)]
        assert statuses(runner) == ["done"] * 3
        assert runner.query("select :n + 1", {"n": 1}) == [(2,)]


def test_a_lost_lease_hands_the_event_over() -> None:
    """G2: who lost the lease cannot complete the claim; the event waits for the other's lease."""
    with run_keyed() as (runner, keys):
        runner.lose_lease(attempt=1)
        counts = runner.handle([PLACED])
        assert (counts.kept, statuses(runner)) == (1, ["claimed"])
        assert len(keys) == 1
        runner.advance(runner.settings.lease_s - 1)
        assert runner.handle().done == 0
        runner.advance(1)
        assert runner.handle().done == 1
        assert (len(keys), len(set(keys))) == (2, 1)


def test_an_outage_is_raised_and_loses_nothing() -> None:
    """G6, G10: while the registry is unreachable nothing is handled, and nothing is passed over."""
    with run_keyed() as (runner, keys):
        runner.disconnect()
        with pytest.raises(BackendFailure, match="made unreachable by the test"):
            runner.handle([PLACED, PAID])
        assert keys == []
        runner.reconnect()

        assert runner.handle().done == 2
        assert statuses(runner) == ["done", "done"]


def test_an_outage_between_effect_and_mark() -> None:
    """G6, G7: an effect that could not be marked is repeated with its key after the lease."""
    with run_keyed() as (runner, keys):
        runner.cut_off(attempt=1)
        with pytest.raises(BackendFailure):
            runner.handle([PLACED])
        runner.reconnect()
        runner.handle()
        assert statuses(runner) == ["claimed"]
        runner.settle()

        assert (statuses(runner), len(keys), len(set(keys))) == (["done"], 2, 1)


# -- other handlers and events


def test_async_handlers() -> None:
    """G1, G7: coroutine functions are run, and crash after their effect as others do."""
    seen: list[int] = []

    @handler("async", effect="keyed")
    async def run(event: Any, context: Any) -> None:
        seen.append(context.attempt)

    with HandlerRunner(run) as runner:
        runner.crash(attempt=1)
        runner.handle([PLACED])
        runner.settle()

        assert (seen[0], statuses(runner), runner.crashes) == (1, ["done"], 1)
        assert [event.calls for event in runner.report()] == [2]


def test_events_of_any_form() -> None:
    """A5, A8: instances of classes and declared kinds are appended as a log appends them."""
    catalogue = Catalogue()

    @catalogue.event_type("ticket.opened")
    class Opened(msgspec.Struct):
        title: str

    seen: list[Any] = []

    @handler("tickets", effect="keyed")
    def tickets(event: Any, context: Any) -> None:
        seen.append((event.event_type, event.stream_seq, event.payload))

    kind = StreamKind(name="ticket", first_seq=0)
    with HandlerRunner(tickets, catalogue=catalogue, declarations=[kind]) as runner:
        runner.handle([Opened("a"), NewEvent("x", stream=("ticket", "1")), "y"])
        with pytest.raises(InvalidArgument, match="all new or all records"):
            runner.handle([*runner.log.read(), "z"])

    assert seen == [("ticket.opened", None, {"title": "a"}), ("x", 0, {}), ("y", None, {})]


def test_retries_that_never_end_are_reported() -> None:
    """L2: a handler that is never settled fails the test instead of hanging it."""
    policy = RetryPolicy(attempts=10_000, base_s=0.0)

    @handler("stubborn", effect="keyed", retry=policy)
    def stubborn(event: Any, context: Any) -> None:
        raise ValueError("again")

    with HandlerRunner(stubborn) as runner:
        runner.handle([PLACED])
        with pytest.raises(AssertionError, match="stubborn was not settled"):
            runner.settle(rounds=5)


def test_the_clock_is_that_of_the_test_alone(tmp_path: Path) -> None:
    """G2: times are those of the simulated clock; settings of the registry apply."""
    with run_keyed() as (runner, _):
        runner.handle([PLACED])
        [entry] = runner.registry.event_entries("default", runner.report()[0].event_id)
        assert entry.first_at == "2024-01-01T00:00:00.000000Z"

    @handler("brief", effect="keyed")
    def brief(event: Any, context: Any) -> None:
        """Do nothing."""

    with HandlerRunner(brief, settings=RegistrySettings(lease_s=40.0)) as runner:
        runner.crash(attempt=1)
        runner.handle([PLACED])
        runner.advance(39)
        assert runner.handle().done == 0
        runner.advance(1)
        assert runner.handle().done == 1
        runner.disconnect()
        with pytest.raises(BackendFailure):  # although the default policy of a registry is to wait
            runner.handle()
        runner.reconnect()


def test_the_temporary_files_are_removed() -> None:
    """L2: closing the runner leaves nothing."""
    with run_keyed() as (runner, _):
        folder = Path(runner.registry.engine.path).parent  # type: ignore[attr-defined]
        assert folder.exists()

    assert not folder.exists()

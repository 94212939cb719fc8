"""I6: a writer can wait until a projection has processed its write, or require it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import (
    Conflict,
    InvalidArgument,
    Log,
    LogIdentityChanged,
    NewEvent,
    NotFound,
    ProjectionOutOfDate,
    ProjectionTimeout,
)
from seriatim.core.event import LogIdentity
from seriatim.factory import open_read_model, read_model_url
from seriatim.store.memory import MemoryStore
from seriatim.store.readmodel.model import ReadModel
from tests.fixtures.service import run_service
from tests.integration.readmodel_support import make_failure, make_step, plan, seat_rows, seats


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(params=["beside", "service"])
def log(url: str, request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log with five events, opened by its own URL or through a service."""
    with seriatim.open(url) as log:
        log.append([NewEvent("seat.taken", {"n": n}) for n in range(5)])
        if request.param == "beside":
            yield log
            return
    with run_service(url) as service, seriatim.open(service.url, token=service.token()) as remote:
        yield remote


class Runner:
    """Moves a projection by commits."""

    def __init__(self, log: Log, model: ReadModel, tenant_id: str = "default") -> None:
        self.log = log
        self.model = model
        model.create_projection(seats, tenant_id, log.identity())
        token = model.claim("seats", "runner", 60)
        assert token is not None
        self.token = token
        self.position = 0

    def move(self, until: int, **parts: object) -> None:
        """Commit a step up to a position."""
        step = make_step(self.position, until, state_rows=seat_rows({"1a": until}, until), **parts)
        step.last_event_id = self.log.store.event_id_at(until) or ""
        self.model.commit(seats, step, token=self.token)
        self.position = until


@pytest.fixture
def runner(log: Log, url: str) -> Iterator[Runner]:
    """A projection at position 2 of the log."""
    model = open_read_model(read_model_url(url))
    made = Runner(log, model)
    made.move(2)
    yield made
    model.close()


def run_later(seconds: float, act: Callable[[], Any]) -> threading.Timer:
    """Run a function after a delay."""
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def test_wait_returns_at_once_for_a_reached_position(log: Log, runner: Runner) -> None:
    """I6: a wait for a position that the projection has reached returns at once."""
    for position in (0, 1, 2):
        assert log.projections.wait_for("seats", position, timeout_s=0.001).position == 2
        assert log.projections.demand("seats", position).position == 2


def test_wait_ends_when_the_projection_has_passed(log: Log, runner: Runner) -> None:
    """I6: a wait ends soon after the projection has passed the position, with its rows stored."""
    timer = run_later(0.3, lambda: runner.move(5))
    began = time.monotonic()
    found = log.projections.wait_for("seats", 4)
    waited = time.monotonic() - began
    timer.join()

    assert (found.name, found.position) == ("seats", 5)
    assert 0.25 < waited < 3
    assert runner.model.load_states(seats, [("default", "1a")])["default", "1a"]["taken"] == 5


def test_wait_times_out(log: Log, runner: Runner) -> None:
    """I6: a wait raises a retryable projection_timeout with position and status."""
    began = time.monotonic()
    with pytest.raises(ProjectionTimeout, match=r"has reached 2, not 3, within 0\.3 s") as caught:
        log.projections.wait_for("seats", 3, timeout_s=0.3)

    assert 0.3 <= time.monotonic() - began < 3
    assert caught.value.details == {
        "projection": "seats",
        "position": 3,
        "reached": 2,
        "status": "ready",
    }
    assert (caught.value.code, caught.value.retryable) == ("projection_timeout", True)


def test_demand_raises_for_an_outdated_projection(log: Log, runner: Runner) -> None:
    """I6: `demand` raises projection_out_of_date at once unless the position was reached."""
    began = time.monotonic()
    with pytest.raises(ProjectionOutOfDate, match="has reached 2, not 5") as caught:
        log.projections.demand("seats", 5)
    assert time.monotonic() - began < 2
    assert caught.value.details["reached"] == 2
    runner.move(5)

    assert log.projections.demand("seats", 5).position == 5


def test_wait_for_the_position_of_a_receipt(log: Log, runner: Runner) -> None:
    """I6: a wait for the last position of an append ends when the projection has passed it."""
    receipt = log.append([NewEvent("seat.taken", {})])
    timer = run_later(0.05, lambda: runner.move(receipt.last_position))

    assert log.projections.wait_for("seats", receipt.last_position).position == 6
    timer.join()


@pytest.mark.parametrize("position", [6, -1, True, "3", None, 2.0])
def test_position_beyond_the_head_is_refused(log: Log, runner: Runner, position: Any) -> None:
    """L2: a wait for a position beyond the head is refused."""
    for act in (log.projections.wait_for, log.projections.demand):
        with pytest.raises(InvalidArgument, match="position"):
            act("seats", position)


@pytest.mark.parametrize("timeout", [0, -1, True, "1", float("nan"), float("inf"), None])
def test_invalid_wait_timeouts_are_refused(log: Log, runner: Runner, timeout: Any) -> None:
    """L2: a wait needs a positive, finite timeout."""
    with pytest.raises(InvalidArgument, match="timeout_s must be a positive number of seconds"):
        log.projections.wait_for("seats", 1, timeout_s=timeout)


def test_unknown_projections_are_not_found(log: Log, url: str) -> None:
    """I6: an unknown projection is not found, with or without a read model."""
    for _ in range(2):
        for act in (
            lambda: log.projections.wait_for("nobody", 1),
            lambda: log.projections.demand("nobody", 1),
            lambda: log.projections.failures("nobody"),
        ):
            with pytest.raises(NotFound, match=r"there is no (such )?projection"):
                act()
        model = open_read_model(read_model_url(url))
        model.create_projection(seats, "default", log.identity())
        model.close()
    with pytest.raises(InvalidArgument):
        log.projections.demand("", 1)


def test_shadows_are_not_found(log: Log, url: str) -> None:
    """I4: a projection that has only a shadow is not found."""
    model = open_read_model(read_model_url(url))
    model.create_projection(seats, "default", log.identity(), shadow=True)
    model.close()

    with pytest.raises(NotFound):
        log.projections.demand("seats", 0)
    assert log.projections.status() == []


def test_status_of_every_projection(log: Log, runner: Runner) -> None:
    """I7: the status has position, lag, time, state and failures of each projection."""
    runner.move(3, failures=[(make_failure(3), "parked")])
    runner.model.create_projection(plan, "default", log.identity())
    runner.model.create_projection(seats, "default", log.identity(), shadow=True)
    runner.model.set_status("plan", "paused")
    idle, busy = log.projections.status()

    assert (idle.name, idle.position, idle.lag, idle.status) == ("plan", 0, 5, "paused")
    assert (idle.running, idle.failures) == (False, 0)
    assert (busy.name, busy.position, busy.lag, busy.status) == ("seats", 3, 2, "ready")
    assert (busy.running, busy.failures) == (True, 1)
    assert busy.updated_at == runner.model.list_progress()[1].updated_at
    assert [failure.failure for failure in log.projections.failures("seats")] == [make_failure(3)]
    with pytest.raises(ProjectionTimeout) as caught:
        log.projections.wait_for("plan", 1, timeout_s=0.01)
    assert caught.value.details["status"] == "paused"
    assert "it is paused and not running" in caught.value.message


def test_status_without_projections(log: Log) -> None:
    """I7: without projections the status is empty."""
    assert log.projections.status() == []


def test_tenants_have_their_own_read_models(log: Log, url: str, runner: Runner) -> None:
    """K1: the log of a tenant uses only the read models of that tenant."""
    other = log.for_tenant("other")
    with pytest.raises(NotFound):
        other.projections.demand("seats", 0)
    with pytest.raises(Conflict, match="belongs to another tenant"):
        other.projections_at(read_model_url(url)).demand("seats", 0)
    model = open_read_model(read_model_url(url, "other"))
    theirs = Runner(log, model, "other")
    theirs.move(4)

    assert other.projections.demand("seats", 4).position == 4
    assert log.projections.demand("seats", 0).position == 2
    model.close()


def test_read_model_at_another_url(log: Log, tmp_path: Path) -> None:
    """I6: a read model at another URL, also one of all tenants, can be waited for."""
    target = f"sqlite:///{tmp_path}/elsewhere.db"
    model = open_read_model(target)
    Runner(log, model, "*").move(3)

    assert log.projections_at(target).demand("seats", 3).position == 3
    assert log.for_tenant("x").projections_at(target).wait_for("seats", 3).position == 3
    with pytest.raises(InvalidArgument, match="the read model must be in a database"):
        log.projections_at("memory:").status()
    model.close()


def test_a_read_model_of_another_log_is_refused(log: Log, url: str) -> None:
    """F8: a read model of another log, epoch or history raises LogIdentityChanged."""
    model = open_read_model(read_model_url(url))
    identity = log.identity()
    for made in (LogIdentity("other", identity.epoch), LogIdentity(identity.log_id, 99)):
        model.create_projection(seats, "default", made)
        with pytest.raises(LogIdentityChanged, match="seriatim project rebuild seats"):
            log.projections.demand("seats", 0)
        model.drop(seats, shadow=False)
    token = Runner(log, model).token
    model.commit(seats, make_step(0, 3), token=token)
    with pytest.raises(LogIdentityChanged, match="was stored with another event at position 3"):
        log.projections.wait_for("seats", 1)
    model.close()


def test_a_log_without_read_models_names_the_cure() -> None:
    """I6: a log that was opened without read models needs the URL of one."""
    with (
        Log(MemoryStore()) as log,
        pytest.raises(InvalidArgument, match=r"name one with log\.projections_at"),
    ):
        log.projections.status()


def test_a_log_in_memory_with_a_read_model_at_a_url(tmp_path: Path) -> None:
    """I6: a log in memory may have a read model in a database."""
    target = f"sqlite:///{tmp_path}/read.db"
    model = open_read_model(target)
    with seriatim.open("memory:") as log:
        log.append([NewEvent("seat.taken", {})])
        Runner(log, model).move(1)
        assert log.projections_at(target).demand("seats", 1).position == 1
    model.close()


def test_closed_log_closes_its_read_models(url: str) -> None:
    """F9: closing a log closes its read models."""
    with seriatim.open(url) as log:
        model = open_read_model(read_model_url(url))
        Runner(log, model)
        model.close()
        assert log.projections.status()[0].position == 0
        (held,) = log.read_models._open.values()
    with pytest.raises(seriatim.BackendFailure):
        held.list_progress()


def test_threads_share_one_connection(log: Log, runner: Runner) -> None:
    """I6: concurrent waits share one connection, and all return."""
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(log.projections.wait_for("seats", 5).position))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    runner.move(5)
    for thread in threads:
        thread.join()

    assert found == [5] * 20
    assert len(log.read_models._open) == (log.store.name != "http")


def test_fork_opens_its_own_connection(log: Log, runner: Runner) -> None:
    """I6: a forked child opens its own connection to the read model."""
    log.projections.demand("seats", 2)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if log.projections.demand("seats", 2).position == 2 else 1)
        except BaseException:  # noqa: BLE001 - the exit status tells the parent
            os._exit(2)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert log.projections.demand("seats", 2).position == 2


# -- asyncio


async def test_async_wait_demand_and_status(log: Log, runner: Runner) -> None:
    """I6: wait, demand, status and failures work in asyncio; waits block no thread."""
    projections = log.aio.projections
    assert (await projections.demand("seats", 2)).position == 2
    with pytest.raises(ProjectionOutOfDate):
        await projections.demand("seats", 3)
    with pytest.raises(ProjectionTimeout):
        await projections.wait_for("seats", 3, timeout_s=0.05)
    waiting = [asyncio.create_task(projections.wait_for("seats", 5)) for _ in range(50)]
    await asyncio.sleep(0.1)
    # Fifty waits occupy no thread: another call returns at once.
    assert await asyncio.wait_for(log.aio.head(), 5) == 5
    await asyncio.to_thread(runner.move, 5)

    assert [one.position for one in await asyncio.gather(*waiting)] == [5] * 50
    assert [status.position for status in await projections.status()] == [5]
    assert await projections.failures("seats") == []
    for wrong in (99, True):
        with pytest.raises(InvalidArgument):
            await projections.wait_for("seats", wrong)
    with pytest.raises(InvalidArgument):
        await projections.wait_for("seats", 1, timeout_s=0)


async def test_async_wait_can_be_cancelled(log: Log, runner: Runner) -> None:
    """F5: an awaited wait can be cancelled."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(log.aio.projections.wait_for("seats", 5, 60), 0.2)


async def test_async_read_model_at_another_url(log: Log, tmp_path: Path) -> None:
    """I6: a read model at another URL can be used in asyncio."""
    target = f"sqlite:///{tmp_path}/elsewhere.db"
    assert await log.aio.projections_at(target).status() == []
    with pytest.raises(NotFound):
        await log.aio.projections_at(target).wait_for("seats", 1)

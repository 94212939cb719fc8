"""Projections on the local engine through a log: run, follow, verify, rebuild (I1, I2, I4, I10)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import (
    Conflict,
    EventRecord,
    InvalidArgument,
    Log,
    LogIdentityChanged,
    NewEvent,
    NotFound,
    ProjectionFailed,
    Table,
    TimedOut,
    frame_projection,
    projection,
)
from seriatim.factory import open_read_model
from seriatim.log.async_projections import AsyncProjections
from seriatim.log.projections import Projections
from seriatim.runs.follower import Follower
from seriatim.runs.job_loop import RunReport
from seriatim.runs.local_projection import LocalProjection
from seriatim.runs.projection_runner import run_projection
from seriatim.store.port import Store
from seriatim.telemetry import JobMetrics, Metrics
from seriatim.testing.factories import wait_for

COLUMNS = {"events": int}
Fold = Callable[[dict[str, Any] | None, EventRecord], dict[str, Any]]


def count(row: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Count the events of a key, and fail at a bad one."""
    if event.payload.get("bad"):
        raise ValueError("a bad order")
    return {"events": (row["events"] if row else 0) + 1}


orders = projection("orders", key="stream_id", events=["order.*"], columns=COLUMNS)(count)
types = projection("types", key="event_type", columns=COLUMNS)(
    lambda row, _: {"events": (row["events"] if row else 0) + 1}
)


@pytest.fixture
def target(request: pytest.FixtureRequest, log: Log, tmp_path: Path) -> str:
    """The URL of the read model: the log's default, or a database beside a remote log."""
    if request.node.callspec.params["log"] == "http":
        return f"sqlite:///{tmp_path}/read.db"
    return log.read_models.default_url(log.tenant_id)


@pytest.fixture
def projections(log: Log, target: str) -> Projections:
    """The projections of the log."""
    return log.projections_at(target)


def append(log: Log, *streams: str, **payload: Any) -> int:
    """Append an order to each stream, and return the last position."""
    events = [NewEvent("order.placed", payload, stream=("order", one)) for one in streams]
    return log.append(events).last_position


def read_rows(target: str, name: str) -> dict[str, int]:
    """Return the counts of a table by key."""
    model = open_read_model(target)
    declared = {"orders": orders, "types": types}[name]
    with model.snapshot() as moment:
        rows = moment.rows(declared, declared.tables[0])
        found = {next(iter(row.values())): row["events"] for _, row, _ in rows}
    model.close()
    return found


def test_run_verify_and_rebuild(log: Log, projections: Projections, target: str) -> None:
    """I1, I3, I4, I10: without Spark a projection catches up, is verified and rebuilt."""
    append(log, "1", "2", "1")
    assert projections.run(orders).position == 3
    append(log, "2")
    assert projections.run(orders).position == 4

    proof = projections.verify(orders)
    assert (proof.equal, proof.position, proof.rows) == (True, 4, 2)
    rebuilt = projections.rebuild(orders, reason="a test")
    assert (rebuilt.switched, rebuilt.digest) == (True, proof.digest)
    assert read_rows(target, "orders") == {"1": 2, "2": 2}


def test_rows_of_a_projection(log: Log, projections: Projections) -> None:
    """I1: the rows of a projection are read through the log, by key or in the order of the key."""
    with pytest.raises(NotFound, match="no projection 'orders'"):
        projections.rows(orders)
    append(log, "2", "1", "2")
    projections.run(orders)

    expected = [{"stream_id": "1", "events": 1}, {"stream_id": "2", "events": 2}]
    assert list(projections.rows(orders)) == expected
    assert projections.get_row(orders, "2") == expected[1]
    assert projections.get_row(orders, "3") is None
    with pytest.raises(InvalidArgument, match="has no table 'none'"):
        projections.rows(orders, "none")

    async def read() -> tuple[list[Any], Any]:
        on_asyncio = AsyncProjections(projections)
        rows = [row async for row in on_asyncio.rows(orders)]
        return rows, await on_asyncio.get_row(orders, "1")

    assert asyncio.run(read()) == (expected, expected[0])


def test_rows_of_several_tables(log: Log, projections: Projections) -> None:
    """I1: a projection with tables of its own is read by table, its JSON as Python values."""

    def split(state: dict[str, Any] | None, event: EventRecord) -> Any:
        known = [*(state or {"seen": []})["seen"], event.position]
        return {"seen": known}, {"seen": [{"order": event.stream_id, "positions": known}]}

    declared = projection(
        "split",
        key="stream_id",
        state=dict,
        events=["order.*"],
        tables=[Table("seen", {"order": str}, {"positions": list})],
    )(split)
    append(log, "a", "b", "a")
    projections.run(declared)
    found = [(row["order"], row["positions"]) for row in projections.rows(declared, "seen")]
    assert found == [("a", [1, 3]), ("b", [2])]
    with pytest.raises(InvalidArgument, match="have keys of their own"):
        projections.get_row(declared, "a")


def test_follow_makes_own_writes_visible(log: Log, projections: Projections, target: str) -> None:
    """I1, I6: a follower applies each append; a writer can wait for its own."""
    append(log, "1")
    with projections.follow(orders, types) as follower:
        for number in range(5):
            written = append(log, str(number % 2))
            projections.wait_for("orders", written)
        projections.wait_for("types", written)
        wait_for(lambda: [run.position for run in follower.health()] == [6, 6])
        assert [(run.name, run.kind, run.status, run.lag) for run in follower.health()] == [
            ("orders", "projection", "running", 0),
            ("types", "projection", "running", 0),
        ]
    assert [run.status for run in follower.health()] == ["stopped", "stopped"]
    assert read_rows(target, "orders") == {"0": 3, "1": 3}
    assert read_rows(target, "types") == {"order.placed": 6}
    assert projections.verify(orders).equal


def test_one_failing_projection_does_not_stop_the_others(
    log: Log, projections: Projections
) -> None:
    """I7: the others go on; the failing one shows its error, and continues after a skip."""
    bad = append(log, "1", bad=True)
    with projections.follow(orders, types) as follower:
        projections.wait_for("types", bad)
        failed = wait_for(lambda: next((run for run in follower.health() if run.error), None))
        assert (failed.name, failed.status, failed.failures) == ("orders", "failed", 1)
        assert "a bad order" in failed.error
        later = append(log, "2")
        projections.wait_for("types", later)

        projections.skip("orders", bad, reason="a test")
        projections.wait_for("orders", later)
        wait_for(lambda: follower.health()[0].status == "running")
        assert follower.health()[0].error == ""
    assert projections.verify(orders).equal


def test_a_catch_up_raises_what_a_follower_reports(log: Log, projections: Projections) -> None:
    """I7: `run` raises the failure of an event, and refuses a paused projection."""
    append(log, "1")
    bad = append(log, "2", bad=True)
    with pytest.raises(ProjectionFailed, match=f"stopped at position {bad}"):
        projections.run(orders)
    projections.skip("orders", bad)
    projections.pause("orders")
    with pytest.raises(Conflict, match="paused"):
        projections.run(orders)
    projections.resume("orders")
    assert projections.run(orders).position == log.head()


def test_reports_and_metrics(log: Log, projections: Projections) -> None:
    """M2: a run reports its progress, and a follower sets position and lag as metrics."""
    append(log, *"12345")
    reports: list[RunReport] = []
    projections.run(orders, batch_events=2, on_progress=reports.append)
    assert [(one.position, one.lag) for one in reports] == [(2, 3), (4, 1), (5, 0)]

    metrics = Metrics()
    with projections.follow(types, metrics=JobMetrics(metrics)):
        projections.wait_for("types", 5)
        text = 'seriatim_job_position{job="types"} 5.0'
        wait_for(lambda: text in metrics.render()[0].decode())
    assert 'seriatim_job_lag_events{job="types"} 0.0' in metrics.render()[0].decode()


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
def test_a_rebuild_is_recorded(log: Log, projections: Projections) -> None:
    """N4: a rebuild is an event of the infrastructure tenant."""
    append(log, "1")
    projections.rebuild(orders, reason="the fold was fixed")
    [entry] = log.for_tenant("_infrastructure").read()
    assert entry.event_type.endswith("projection_rebuilt")
    assert entry.payload["reason"] == "the fold was fixed"


@pytest.mark.parametrize("log", ["memory"], indirect=True)
def test_data_frame_projections_need_spark(log: Log) -> None:
    """I10: a DataFrame projection is refused with the way to run it."""
    hours = frame_projection("hours", key={"hour": str}, columns=COLUMNS, merge={"events": "sum"})(
        lambda events: events
    )
    for call in (log.projections.run, log.projections.follow, log.projections.verify):
        with pytest.raises(InvalidArgument, match=r"only Spark runs: use seriatim\.spark"):
            call(hours)
    with pytest.raises(InvalidArgument, match="batch_events"):
        log.projections.run(orders, batch_events=0)


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
def test_stop_is_bounded(log: Log, projections: Projections) -> None:
    """I10: `stop` names a projection that is still folding when the time is over."""
    entered, gate = threading.Event(), threading.Event()

    def block(_row: dict[str, Any] | None, _event: EventRecord) -> dict[str, Any]:
        entered.set()
        gate.wait(60)
        return {"events": 1}

    blocking = projection("blocking", key="stream_id", columns=COLUMNS)(block)
    written = append(log, "1")
    follower = projections.follow(blocking, types)
    try:
        assert entered.wait(30)
        with pytest.raises(TimedOut, match=r"^blocking did not stop within 3 s"):
            follower.stop(timeout_s=3)
    finally:
        gate.set()
        follower.stop()
    assert projections.find("blocking").position == written


@pytest.mark.parametrize("log", ["memory", "sqlite", "postgres"], indirect=True)
def test_a_restored_log_stops_a_follower(log: Log, projections: Projections) -> None:
    """F8: a follower of a log that is restored stops and says so, also without new events."""
    append(log, "1")
    with projections.follow(orders) as follower:
        wait_for(lambda: follower.health()[0].position == 1)
        log.store.raise_epoch()
        wait_for(lambda: follower.health()[0].status == "failed")
        assert "the log was restored or replaced" in follower.health()[0].error
        append(log, "1")
        assert projections.find("orders").position == 1


class _ReplacedLog(LocalProjection):
    """A job whose log is replaced by another one while a batch is read."""

    replacement: Store | None = None

    def _read_pages(self, after: int, until: int) -> Iterator[list[EventRecord]]:
        if self.replacement is not None:
            self.store = self.replacement
        yield from super()._read_pages(after, until)


@pytest.mark.parametrize("same_identity", [True, False])
def test_a_log_that_is_replaced_during_a_batch(tmp_path: Path, same_identity: bool) -> None:
    """F8: events of another history are not applied, whether or not its epoch is higher."""
    with seriatim.open("memory:") as log, seriatim.open("memory:") as other:
        for opened in (log, other):
            append(opened, *"1234")
        if same_identity:
            other.store.identity = log.store.identity  # type: ignore[method-assign]
        model = open_read_model(f"sqlite:///{tmp_path}/read.db")
        job = _ReplacedLog(orders, log.store, model, batch_events=2)
        reports: list[RunReport] = []

        def replace(report: RunReport) -> None:
            reports.append(report)
            job.replacement = other.store

        job.on_progress = replace
        with pytest.raises(LogIdentityChanged, match="restored or replaced"):
            run_projection(job)
        assert [report.position for report in reports] == [2]
        model.close()


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
def test_two_followers_share_by_lease(log: Log, projections: Projections) -> None:
    """I8: of two followers one works and the other waits, and takes over when that one ends."""
    append(log, "1")
    first = projections.follow(orders, lease_s=1.0)
    projections.wait_for("orders", 1)
    with projections.follow(orders, lease_s=1.0) as second:
        wait_for(lambda: second.health()[0].activity == "waiting for another runner")
        assert second.health()[0].status == "waiting"
        first.stop()
        written = append(log, "2")
        projections.wait_for("orders", written)
        wait_for(lambda: second.health()[0].position == written)
    assert projections.verify(orders).equal


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
def test_on_asyncio(log: Log, target: str) -> None:
    """I10: the same calls on asyncio; folds run in threads, and the event loop stays free."""

    async def main() -> None:
        projections = log.aio.projections_at(target)
        await log.aio.append([NewEvent("order.placed", stream=("order", "1"))])
        assert (await projections.run(orders)).position == 1
        assert (await projections.verify(orders)).equal
        assert (await projections.rebuild(orders)).switched
        async with projections.follow(orders) as follower:
            receipt = await log.aio.append([NewEvent("order.placed", stream=("order", "2"))])
            await projections.wait_for("orders", receipt.last_position)
            assert [run.name for run in follower.health()] == ["orders"]
        assert [run.status for run in follower.health()] == ["stopped"]

    asyncio.run(main())


@pytest.mark.parametrize("log", ["memory"], indirect=True)
def test_a_cancelled_run_ends_after_its_batch(log: Log, projections: Projections) -> None:
    """I10: cancelling an asyncio run ends it after the current batch, and loses nothing."""
    entered, gate = threading.Event(), threading.Event()

    def slow(row: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
        entered.set()
        gate.wait(60)
        return count(row, event)

    slowly = projection("orders", key="stream_id", events=["order.*"], columns=COLUMNS)(slow)
    append(log, *"1234")

    async def main() -> None:
        running = asyncio.create_task(log.aio.projections.run(slowly, batch_events=2))
        assert await asyncio.to_thread(entered.wait, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        gate.set()

    asyncio.run(main())
    wait_for(lambda: not projections.find("orders").owner)
    assert projections.find("orders").position == 2
    assert projections.run(orders).position == 4
    assert projections.verify(orders).equal


def test_first_projection_without_spark(tmp_path: Path) -> None:
    """I10: neither PySpark nor Java is loaded by a run on the local engine."""
    program = f"""
import sys, seriatim
orders = seriatim.projection("orders", key="stream_id", columns={{"events": int}})(
    lambda row, event: {{"events": 1}})
with seriatim.open("sqlite:///{tmp_path}/log.db") as log:
    log.append([seriatim.NewEvent("x", stream=("order", "1"))])
    assert log.projections.run(orders).position == 1
loaded = {{"pyspark", "pyarrow", "py4j", "pandas", "numpy"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_dropped_follower_does_not_keep_a_program_alive(tmp_path: Path) -> None:
    """I10: a program that forgets to stop its follower still ends."""
    program = f"""
import seriatim
log = seriatim.open("sqlite:///{tmp_path}/log.db")
types = seriatim.projection("types", key="event_type", columns={{"events": int}})(
    lambda row, event: {{"events": 1}})
follower = log.projections.follow(types)
log.projections.wait_for("types", log.append([seriatim.NewEvent("x")]).last_position)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_empty_follower_has_no_runs() -> None:
    """I10: a follower without projections is healthy, and stops at once."""
    with seriatim.open("memory:") as log, log.projections.follow() as follower:
        assert isinstance(follower, Follower)
        assert follower.health() == []
        assert not follower.wait(timeout_s=0.01)
    assert follower.wait(timeout_s=0.01)


@pytest.mark.parametrize("log", ["memory"], indirect=True)
def test_runs_do_not_wait_for_the_executor_of_the_loop(log: Log, target: str) -> None:
    """I10: a run ends although every thread of the loop's executor waits for its result."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        projections = log.aio.projections_at(target)
        await log.aio.append([NewEvent("order.placed", stream=("order", "1"))])
        await projections.run(types)
        written = (await log.aio.append([NewEvent("order.placed")])).last_position
        reads = log.projections_at(target)
        waits = asyncio.create_task(asyncio.to_thread(reads.wait_for, "types", written, 30.0))
        await asyncio.sleep(0)
        await projections.run(types)
        assert (await waits).position == written

    asyncio.run(main())

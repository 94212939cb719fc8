"""One runner at a time; a run continues at its cursor, with any checkpoint (F8, I2, I8)."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import (
    BackendFailure,
    Conflict,
    EventRecord,
    Log,
    LogIdentityChanged,
    NewEvent,
    projection,
)
from seriatim.pipeline.project.projector import Projector
from seriatim.runs.job_loop import RunReport
from seriatim.testing.factories import wait_for
from tests.pipeline.project.support import (
    SEAT,
    count_seats,
    digest_in_python,
    fill,
    rows_of,
    seats,
    stored_digest,
)

Start = Callable[..., Projector]


def test_an_empty_log_then_one_event(start: Start, log: Log) -> None:
    """I1: a run over an empty log ends at position 0; one event then makes one row."""
    job = start(seats)
    assert job.run().position == 0
    assert job.rebuild().rows == 0
    log.append([NewEvent("seat.reserved", {"guest": "g"}, stream=("show", "s-1"))])
    assert job.run().position == 1
    assert rows_of(job)["s-1"]["taken"] == 1
    assert job.verify().equal


@projection("gated_seats", key="stream_id", columns={"events": int})
def gated_seats(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Wait at an event that names a gate file until the file exists."""
    deadline = time.monotonic() + 100
    while (gate := event.payload.get("gate")) and not Path(gate).exists():
        assert time.monotonic() < deadline, "nobody opened the gate"
        time.sleep(0.05)
    return {"events": (state["events"] if state else 0) + 1}


def test_rebuild_reports_progress(start_on_spark: Start, log: Log, tmp_path: Path) -> None:
    """I7: position, rate, lag and remaining time are reported while a rebuild runs."""
    gate = tmp_path / "gate"
    log.append([NewEvent("seat.reserved", {"gate": str(gate)}, stream=("show", "s-0"))])
    fill(log, 19)
    job = start_on_spark(gated_seats)
    reports: list[RunReport] = []

    def watch(report: RunReport) -> None:
        reports.append(report)
        if report.position:
            gate.touch()

    job.on_progress = watch
    job.rebuild()
    on_the_way = [report for report in reports if 0 < report.position < 20]
    assert on_the_way
    assert all(
        one.events_per_s and one.eta_s and one.lag == 20 - one.position for one in on_the_way
    )
    assert [report.position for report in reports] == sorted(report.position for report in reports)
    assert (reports[-1].position, reports[-1].eta_s) == (20, 0)


def follow(job: Projector, until: int, checkpoint: Path) -> None:
    """Run live until the log is projected up to a position."""
    deadline = time.monotonic() + 120

    def reached() -> bool:
        assert time.monotonic() < deadline, job.status()
        status = job.status()
        return status is not None and status.position >= until

    job.run(live=True, checkpoint=str(checkpoint), until=reached)


def test_a_live_run_retries_to_claim_its_lease(
    start: Start, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: a live run retries when claiming its lease fails; a run that is not live raises."""
    fill(log, 5)
    job = start(seats)
    reports: list[RunReport] = []
    job.on_progress = reports.append
    claim, failures = job.model.claim, [BackendFailure("the database is away")]

    def claim_after_outage(*args: Any, **options: Any) -> int | None:
        if failures:
            raise failures.pop()
        return claim(*args, **options)

    monkeypatch.setattr(job.model, "claim", claim_after_outage)
    follow(job, 5, tmp_path / "checkpoint")

    assert (reports[0].name, reports[0].activity) == ("seats", "retrying in 1 s (backend_failure)")
    assert job.verify().equal

    failures.append(BackendFailure("the database is away"))
    with pytest.raises(BackendFailure):
        job.run()


@contextmanager
def appending_to_stream(
    spark: SparkSession, log: Log, count: int, start: int = 0
) -> Iterator[None]:
    """Append events once a stream runs, so that the stream reads them and not a batch."""
    ended = threading.Event()

    def add() -> None:
        while not spark.streams.active and not ended.wait(0.05):
            pass
        fill(log, count, start=start)

    adding = threading.Thread(target=add)
    adding.start()
    try:
        yield
    finally:
        ended.set()
        adding.join()


def test_cursor_overrides_checkpoints(start_on_spark: Start, log: Log, tmp_path: Path) -> None:
    """I2: a lost checkpoint, or one older or newer than the cursor, changes no result."""
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    job = start_on_spark(seats, batch_events=20)
    with appending_to_stream(job.spark, log, 10):
        follow(job, 10, checkpoint)
    shutil.copytree(checkpoint, older)
    with appending_to_stream(job.spark, log, 10, start=10):
        follow(job, 20, checkpoint)

    with appending_to_stream(job.spark, log, 10, start=20):
        follow(job, 30, older)  # the checkpoint is older than the cursor
    assert stored_digest(job) == digest_in_python(log.read(), seats)
    shutil.rmtree(older)  # the checkpoint is lost
    job.model.drop(job.projection, shadow=False)
    fill(log, 5, start=30)
    job.batch_events = (
        1  # so that the stream starts before the read model has reached the checkpoint
    )
    follow(job, 35, checkpoint)
    assert stored_digest(job) == digest_in_python(log.read(), seats)


def test_a_checkpoint_of_another_log_stops_the_run(
    start_on_spark: Start, log: Log, tmp_path: Path, spark: Any
) -> None:
    """F8: a checkpoint of another log stops a live run."""
    other_url = f"sqlite:///{tmp_path}/other.db"
    folder = tmp_path / "checkpoint"
    with (
        seriatim.open(other_url) as other,
        Projector(spark, seats, other_url) as foreign,
        appending_to_stream(foreign.spark, other, 9),
    ):
        follow(foreign, 9, folder)
    fill(log, 20)
    job = start_on_spark(seats)
    with pytest.raises(seriatim.SeriatimError, match="another log"):
        job.run(live=True, checkpoint=str(folder))
    status = job.status()
    assert status is not None
    assert status.position == 20  # by batches, before the stream began


def test_a_read_model_of_another_log_is_refused(start: Start, log: Log, tmp_path: Path) -> None:
    """F8: run and verify refuse a read model of another log; a rebuild replaces it."""
    fill(log, 12)
    job = start(seats)
    job.run()
    other_url = f"sqlite:///{tmp_path}/other.db"
    with seriatim.open(other_url) as other:
        fill(other, 20)
    moved = start(seats, other_url, target=job.target)
    with pytest.raises(LogIdentityChanged, match="belongs to another log"):
        moved.run()
    with pytest.raises(LogIdentityChanged, match="belongs to another log"):
        moved.verify()
    moved.rebuild()
    assert moved.run().position == 20


def test_two_runners_apply_each_event_once(start: Start, log: Log) -> None:
    """I8: of two concurrent runners one waits for the lease, and each event is applied once."""
    fill(log, 60)
    first, second = start(seats, batch_events=20), start(seats, batch_events=20)
    ends: list[int] = []
    threads = [
        threading.Thread(target=lambda job=job: ends.append(job.run(lease_s=2.0).position))
        for job in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert ends == [60, 60]
    assert stored_digest(first) == digest_in_python(log.read(), seats)


def test_live_pause_and_resume(start: Start, log: Log) -> None:
    """I1, I7: a live run follows the log, stops at a pause, and continues after a resume."""
    job, control = start(seats), start(seats)
    failed: list[BaseException] = []
    stop = threading.Event()

    def live() -> None:
        try:
            job.run(live=True, until=stop.is_set)
        except BaseException as error:  # noqa: BLE001 - for the test to see
            failed.append(error)

    def at(position: int) -> bool | None:
        status = control.status()
        return bool(failed) or (status is not None and status.position == position) or None

    runner = threading.Thread(target=live)
    runner.start()
    try:
        fill(log, 10)
        wait_for(lambda: at(10))
        control.pause()
        fill(log, 5, start=10)
        with pytest.raises(Conflict, match="paused"):
            _second_catch_up(control, runner, stop)
        assert control.status().position == 10  # type: ignore[union-attr]
    finally:
        stop.set()
        runner.join(60)
    control.resume()
    assert control.run().position == 15
    assert failed == []
    assert stored_digest(control) == digest_in_python(log.read(), seats)


def _second_catch_up(job: Projector, runner: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    runner.join(60)
    job.run()


def test_tenants_are_isolated(start: Start, log: Log) -> None:
    """I2, K2: each tenant has its own cursor and read model; one run can serve all tenants."""
    fill(log, 8)
    fill(log.for_tenant("acme"), 12)
    default, acme, every = start(seats), start(seats, tenant_id="acme"), start(seats, tenant_id="*")
    for job in (default, acme, every):
        assert job.run().position == 20

    assert default.target != acme.target != every.target
    assert stored_digest(default) == digest_in_python(log.read(), seats)
    assert stored_digest(acme) == digest_in_python(log.for_tenant("acme").read(), seats)
    with every.model.snapshot() as moment:
        tenants = {tenant for tenant, _, _ in moment.rows(seats, seats.tables[0])}
    assert tenants == {"default", "acme"}
    with pytest.raises(Conflict, match="belongs to tenant"):
        start(seats, tenant_id="acme", target=default.target).run()


def test_events_appended_during_a_rebuild_are_applied(start: Start, log: Log) -> None:
    """I4: events appended during a rebuild are in the tables after the switch."""
    fill(log, 40)
    job = start(seats, batch_events=15)
    job.run()

    def grow(report: Any) -> None:
        if report.activity == "rebuild":
            fill(log, 7, start=log.head())

    job.on_progress = grow
    proof = job.rebuild()
    job.on_progress = lambda _: None
    status = job.status()
    assert (proof.position, proof.equal) == (40, True)
    assert status is not None
    assert status.position == log.head() > 40
    assert stored_digest(job) == digest_in_python(log.read(), seats)


def test_a_changed_declaration_requires_a_rebuild(start: Start, log: Log) -> None:
    """I4, I5: a changed declaration requires a rebuild, which upcasts old event versions."""
    fill(log, 20)
    job = start(seats)
    job.run()

    def renamed(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
        return {"visitor": event.payload["visitor"]}

    newer = projection(
        "seats",
        key="stream_id",
        events=["seat.reserved"],
        columns={"visitor": str},
        version=2,
        upcasters={("seat.reserved", 1): lambda payload: {"visitor": payload["guest"]}},
    )(renamed)
    log.append(
        [NewEvent("seat.reserved", {"visitor": "v2"}, stream=("show", "s-0"), event_version=2)]
    )
    changed = start(newer)
    with pytest.raises(Conflict, match="declaration of projection seats has changed"):
        changed.run()
    assert stored_digest(job) == digest_in_python(
        list(log.read())[:20], seats
    )  # the old read model is unchanged
    assert changed.rebuild().switched
    assert changed.run().position == 21
    assert rows_of(changed)["s-0"]["visitor"] == "v2"
    assert rows_of(changed)["s-1"]["visitor"] == "g15"
    assert changed.verify().equal


def test_invalid_urls_and_keys_are_refused(
    start_on_spark: Start, spark: Any, tmp_path: Path
) -> None:
    """Invalid URLs, missing logs, invalid targets and unknown key fields are refused by name."""
    with pytest.raises(seriatim.SeriatimError, match="unknown backend"):
        Projector(spark, seats, "ftp://x")
    with pytest.raises(seriatim.SeriatimError):
        Projector(spark, seats, f"sqlite:///{tmp_path}/absent.db")
    with pytest.raises(seriatim.SeriatimError, match="the read model must be in a database"):
        start_on_spark(seats, target="ftp://x")
    with pytest.raises(seriatim.InvalidArgument, match="is not a field of an event"):
        projection("seats", key="seat", columns=SEAT)(count_seats)


def test_a_relative_url_is_resolved_in_the_driver(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path in a URL is resolved against the working directory of the driver."""
    monkeypatch.chdir(tmp_path)
    with seriatim.open("sqlite:///here.db") as log:
        fill(log, 9)
    with Projector(spark, seats, "sqlite:///here.db") as job:
        assert job.run().position == 9
        assert job.verify().equal
    assert Path("here.read.db").exists()

"""A poison event with each failure policy, and the operations on it (I7)."""

from collections.abc import Callable
from typing import Any

import pytest

from seriatim import EventRecord, InvalidArgument, Log, NewEvent, ProjectionFailed, projection
from seriatim.core.projection import Projection
from seriatim.log.operator_journal import read_journal
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.support import fill, rows_of, stored_digest

Start = Callable[..., Projector]


def counting(apply: Any, **options: Any) -> Projection:
    """Declare a count of the events of a show."""
    declared = {"key": "stream_id", "columns": {"n": int}, **options}
    return projection("counts", **declared)(apply)


def count(state: dict[str, Any] | None, _event: EventRecord) -> dict[str, Any]:
    """Count."""
    return {"n": (state["n"] if state else 0) + 1}


def fussy(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Count, but not what is poisonous."""
    if event.payload.get("guest") == "poison":
        raise KeyError("no such guest")
    return count(state, event)


def poison(log: Log) -> int:
    """Append thirty events, one of them poisonous, and return its position."""
    fill(log, 15, shows=3)
    found = log.append([NewEvent("seat.reserved", {"guest": "poison"}, stream=("show", "s-1"))])
    fill(log, 14, shows=3, start=15)
    return found.first_position


def test_stop(start: Start, log: Log, fold_location: str) -> None:
    """I7: the projection stops before the event, names it, and continues after the fix."""
    at = poison(log)
    job = start(counting(fussy))
    with pytest.raises(ProjectionFailed, match=f"position {at}.*'s-1'.*KeyError.*no such guest"):
        job.run()

    status = job.status()
    assert status is not None
    assert (status.position, status.status) == (at - 1, "failed")
    assert [(one.failure.position, one.status) for one in job.failures()] == [(at, "stopped")]
    with pytest.raises(ProjectionFailed, match=f"position {at}"):
        job.run()  # it does not try by itself
    assert job.retry() == 1
    mended = start(counting(count))
    assert mended.run().position == 30
    assert sum(row["n"] for row in rows_of(mended).values()) == 30
    assert mended.verify().equal
    assert mended.failures() == []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_actions_of_operators_are_recorded(start: Start, log: Log) -> None:
    """N4: a projector that is given its log records in its journal; without one, nothing."""
    at = poison(log)
    job = start(counting(fussy, on_failure="park"), journal=log)
    job.run()
    job.pause(reason="deploying")
    job.resume()
    assert job.retry(reason="the guest exists") == 1
    job.skip(at, reason="sold twice")
    with pytest.raises(InvalidArgument, match="reason"):
        job.pause(reason="x" * 501)
    assert job.rebuild(accept=True, reason="as every week").switched
    start(counting(fussy, on_failure="park")).pause()

    entries = [(one.action, one.reason, one.interface) for one in read_journal(log)]
    assert entries[::-1] == [
        ("projection_paused", "deploying", "python"),
        ("projection_resumed", "", "python"),
        ("projection_failures_retried", "the guest exists", "python"),
        ("projection_failure_skipped", "sold twice", "python"),
        ("projection_rebuilt", "as every week", "python"),
    ]


def test_stop_and_pass_over(start: Start, log: Log) -> None:
    """I7: a skipped event stays skipped in every rebuild."""
    at = poison(log)
    job = start(counting(fussy))
    with pytest.raises(ProjectionFailed):
        job.run()
    job.skip(at)
    job.run()

    assert sum(row["n"] for row in rows_of(job).values()) == 29
    assert job.verify().equal
    assert job.rebuild().switched
    assert [(one.failure.position, one.status) for one in job.failures()] == [(at, "passed")]


def test_park(start: Start, log: Log, fold_location: str) -> None:
    """I7: a parked key waits, the others never stop; after the fix it has all of its events."""
    at = poison(log)
    job = start(counting(fussy, on_failure="park"), batch_events=20)
    assert job.run().position == 30

    parked = {one.stream_id for one in log.read() if one.position == at}
    before = sum(1 for one in log.read() if one.stream_id == "s-1" and one.position < at)
    rows = rows_of(job)
    assert parked == {"s-1"}
    assert rows["s-1"]["n"] == before
    assert rows["s-0"]["n"] + rows["s-2"]["n"] == 19
    assert [(one.failure.position, one.status) for one in job.failures()] == [(at, "parked")]
    assert job.rebuild().equal  # a rebuild parks the same key at the same event

    mended = start(counting(count, on_failure="park"))
    assert mended.retry(at) == 1
    mended.run()
    assert sum(row["n"] for row in rows_of(mended).values()) == 30
    assert mended.failures() == []
    assert mended.verify().equal


def test_park_and_pass_over(start: Start, log: Log) -> None:
    """I7: a key continues after the skipped event."""
    at = poison(log)
    job = start(counting(fussy, on_failure="park"), batch_events=20)
    job.run()
    job.skip(at)
    job.run()

    assert sum(row["n"] for row in rows_of(job).values()) == 29
    assert job.verify().equal


def test_skip(start: Start, log: Log) -> None:
    """I7: with the policy skip the event is noted and its key continues; a retry makes it whole."""
    at = poison(log)
    job = start(counting(fussy, on_failure="skip"))
    job.run()
    assert sum(row["n"] for row in rows_of(job).values()) == 29
    assert [(one.failure.position, one.status) for one in job.failures()] == [(at, "skipped")]

    mended = start(counting(count, on_failure="skip"))
    mended.retry()
    mended.run()
    assert sum(row["n"] for row in rows_of(mended).values()) == 30
    assert mended.verify().equal


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (lambda *_: {"n": "many"}, "column n: expected a 64-bit int"),
        (lambda *_: {"n": 1, "m": 2}, "undeclared m"),
        (lambda *_: {}, "lacks n"),
        (lambda *_: 7, "a row must be a dict, got int"),
        (lambda _, event: event.payload["absent"], "KeyError: 'absent'"),
    ],
)
def test_invalid_fold_results_name_event_and_key(
    start: Start, log: Log, apply: Any, reason: str
) -> None:
    """A fold that raises or returns rubbish: which event, which key, and nothing half-written."""
    fill(log, 5, shows=1)
    job = start(counting(apply))
    with pytest.raises(ProjectionFailed, match=reason) as caught:
        job.run()

    first = next(iter(log.read()))
    assert caught.value.details["event_id"] == first.event_id
    assert caught.value.details["key"] == "s-0"
    assert rows_of(job) == {}
    with pytest.raises(ProjectionFailed, match=reason):
        job.rebuild()
    assert job.model.progress("counts", shadow=True) is None


def test_a_key_function_that_fails(start: Start, log: Log) -> None:
    """I7: an event without a key that can be found fails like any other."""
    fill(log, 6)
    made = counting(
        count, key=lambda event: event.payload["show"] if event.position != 4 else 1 / 0
    )
    with pytest.raises(ProjectionFailed, match=r"position 4.*ZeroDivisionError"):
        start(made).run()


def test_a_changed_row_is_named(start: Start, log: Log) -> None:
    """I3, I4: verify names the key of a row that was changed; a rebuild refuses, then heals."""
    fill(log, 30)
    job = start(counting(count))
    job.run()
    good = stored_digest(job)
    with job.model.engine.transaction() as session:
        table = f'{job.model.engine.schema_prefix}"counts"'
        session.run(f"update {table} set n = n + 1 where stream_id = 's-3'")
        session.run(f"delete from {table} where stream_id = 's-5'")
    proof = job.verify()

    assert not proof.equal
    assert proof.difference is not None
    assert proof.difference.key == {"stream_id": "s-3"}
    assert proof.stored_digest != proof.digest == good
    with pytest.raises(ProjectionFailed, match=r"'stream_id': 's-3'.*nothing was switched"):
        job.rebuild()
    assert stored_digest(job) == proof.stored_digest
    assert job.rebuild(accept=True).switched
    assert stored_digest(job) == good

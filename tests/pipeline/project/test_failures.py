"""A poison event with each failure policy, and retry and skip afterwards (I7)."""

from collections.abc import Callable
from typing import Any

import pytest

from seriatim import EventRecord, InvalidArgument, Log, NewEvent, ProjectionFailed, projection
from seriatim.core.projection import Projection
from seriatim.log.operator_journal import read_journal
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.support import fill, rows_of, stored_digest

Start = Callable[..., Projector]


def declare_count(apply: Any, **options: Any) -> Projection:
    """Declare a count of the events of a show."""
    declared = {"key": "stream_id", "columns": {"n": int}, **options}
    return projection("counts", **declared)(apply)


def count(state: dict[str, Any] | None, _event: EventRecord) -> dict[str, Any]:
    """Count the events of a key."""
    return {"n": (state["n"] if state else 0) + 1}


def count_or_raise(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Count, but raise at the poison event."""
    if event.payload.get("guest") == "poison":
        raise KeyError("no such guest")
    return count(state, event)


def append_poison(log: Log) -> int:
    """Append thirty events, one of them poison, and return its position."""
    fill(log, 15, shows=3)
    found = log.append([NewEvent("seat.reserved", {"guest": "poison"}, stream=("show", "s-1"))])
    fill(log, 14, shows=3, start=15)
    return found.first_position


def test_policy_stop_halts_before_the_event(start: Start, log: Log, fold_location: str) -> None:
    """I7: a projection stops before the poison event, names it, and continues after the fix."""
    position = append_poison(log)
    job = start(declare_count(count_or_raise))
    with pytest.raises(
        ProjectionFailed, match=f"position {position}.*'s-1'.*KeyError.*no such guest"
    ):
        job.run()

    status = job.status()
    assert status is not None
    assert (status.position, status.status) == (position - 1, "failed")
    assert [(failure.failure.position, failure.status) for failure in job.failures()] == [
        (position, "stopped")
    ]
    with pytest.raises(ProjectionFailed, match=f"position {position}"):
        job.run()  # a stopped projection does not retry by itself
    assert job.retry() == 1
    fixed = start(declare_count(count))
    assert fixed.run().position == 30
    assert sum(row["n"] for row in rows_of(fixed).values()) == 30
    assert fixed.verify().equal
    assert fixed.failures() == []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_actions_of_operators_are_recorded(start_on_spark: Start, log: Log) -> None:
    """N4: a projector that is given its log records in its journal; without one, nothing."""
    position = append_poison(log)
    job = start_on_spark(declare_count(count_or_raise, on_failure="park"), journal=log)
    job.run()
    job.pause(reason="deploying")
    job.resume()
    assert job.retry(reason="the guest exists") == 1
    job.skip(position, reason="sold twice")
    with pytest.raises(InvalidArgument, match="reason"):
        job.pause(reason="x" * 501)
    assert job.rebuild(accept=True, reason="as every week").switched
    start_on_spark(declare_count(count_or_raise, on_failure="park")).pause()

    entries = [(entry.action, entry.reason, entry.interface) for entry in read_journal(log)]
    assert entries[::-1] == [
        ("projection_paused", "deploying", "python"),
        ("projection_resumed", "", "python"),
        ("projection_failures_retried", "the guest exists", "python"),
        ("projection_failure_skipped", "sold twice", "python"),
        ("projection_rebuilt", "as every week", "python"),
    ]


def test_an_event_skipped_after_a_stop_stays_skipped(start: Start, log: Log) -> None:
    """I7: an event skipped after a stop is also skipped by verify and rebuild."""
    position = append_poison(log)
    job = start(declare_count(count_or_raise))
    with pytest.raises(ProjectionFailed):
        job.run()
    job.skip(position)
    job.run()

    assert sum(row["n"] for row in rows_of(job).values()) == 29
    assert job.verify().equal
    assert job.rebuild().switched
    assert [(failure.failure.position, failure.status) for failure in job.failures()] == [
        (position, "passed")
    ]


def test_policy_park_stops_only_the_failed_key(start: Start, log: Log, fold_location: str) -> None:
    """I7: only the parked key stops; a retry after the fix applies all of its events."""
    position = append_poison(log)
    job = start(declare_count(count_or_raise, on_failure="park"), batch_events=20)
    assert job.run().position == 30

    parked = {record.stream_id for record in log.read() if record.position == position}
    before = sum(
        1 for record in log.read() if record.stream_id == "s-1" and record.position < position
    )
    rows = rows_of(job)
    assert parked == {"s-1"}
    assert rows["s-1"]["n"] == before
    assert rows["s-0"]["n"] + rows["s-2"]["n"] == 19
    assert [(failure.failure.position, failure.status) for failure in job.failures()] == [
        (position, "parked")
    ]
    assert job.rebuild().equal  # a rebuild parks the same key at the same event

    fixed = start(declare_count(count, on_failure="park"))
    assert fixed.retry(position) == 1
    fixed.run()
    assert sum(row["n"] for row in rows_of(fixed).values()) == 30
    assert fixed.failures() == []
    assert fixed.verify().equal


def test_a_parked_key_continues_after_a_skip(start: Start, log: Log) -> None:
    """I7: a parked key continues after its failed event was skipped."""
    position = append_poison(log)
    job = start(declare_count(count_or_raise, on_failure="park"), batch_events=20)
    job.run()
    job.skip(position)
    job.run()

    assert sum(row["n"] for row in rows_of(job).values()) == 29
    assert job.verify().equal


def test_policy_skip_records_the_event_and_continues(start: Start, log: Log) -> None:
    """I7: policy skip records the event and goes on; a retry after the fix applies it."""
    position = append_poison(log)
    job = start(declare_count(count_or_raise, on_failure="skip"))
    job.run()
    assert sum(row["n"] for row in rows_of(job).values()) == 29
    assert [(failure.failure.position, failure.status) for failure in job.failures()] == [
        (position, "skipped")
    ]

    fixed = start(declare_count(count, on_failure="skip"))
    fixed.retry()
    fixed.run()
    assert sum(row["n"] for row in rows_of(fixed).values()) == 30
    assert fixed.verify().equal


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
    """I7: an invalid fold result names the event and the key, and no row is written."""
    fill(log, 5, shows=1)
    job = start(declare_count(apply))
    with pytest.raises(ProjectionFailed, match=reason) as caught:
        job.run()

    first = next(iter(log.read()))
    assert caught.value.details["event_id"] == first.event_id
    assert caught.value.details["key"] == "s-0"
    assert rows_of(job) == {}
    with pytest.raises(ProjectionFailed, match=reason):
        job.rebuild()
    assert job.model.progress("counts", shadow=True) is None


def test_a_failing_key_function_fails_its_event(start: Start, log: Log) -> None:
    """I7: an exception in a key function fails that event, with position and reason."""
    fill(log, 6)
    declared = declare_count(
        count, key=lambda event: event.payload["show"] if event.position != 4 else 1 / 0
    )
    with pytest.raises(ProjectionFailed, match=r"position 4.*ZeroDivisionError"):
        start(declared).run()


def test_verify_names_a_changed_row(start: Start, log: Log) -> None:
    """I3, I4: verify names the changed row; a rebuild switches only with accept=True."""
    fill(log, 30)
    job = start(declare_count(count))
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

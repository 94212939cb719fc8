"""Projections written as DataFrame transformations (I1)."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim import InvalidArgument, Log, NewEvent, frame_projection
from seriatim.core import envelope
from seriatim.pipeline.builtin_projections import activity
from seriatim.pipeline.columns import build_spark_schema
from seriatim.pipeline.project.projector import Projector
from seriatim.runs.projection_batch import apply_batch
from seriatim.runs.projection_job import ModelLease
from tests.pipeline.project.support import fill, rows_of, stored_digest

Start = Callable[..., Projector]


def test_activity_counts_like_python(start_on_spark: Start, log: Log) -> None:
    """I1, I3: counts by type, from batches or a rebuild, equal a count in Python."""
    fill(log, 90)
    job = start_on_spark(activity, batch_events=40)
    job.run()
    caught_up = stored_digest(job)

    expected = Counter(record.event_type for record in log.read())
    found: Counter[str] = Counter()
    for row in _all_rows(job):
        found[row["event_type"]] += row["events"]
    assert found == expected
    assert sum(row["payload_bytes"] for row in _all_rows(job)) == sum(
        len(record.payload_json.encode()) for record in log.read()
    )
    assert job.verify().equal
    assert job.rebuild().digest == caught_up


def test_times_of_earlier_versions_are_projected(
    start_on_spark: Start, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1, I1: stored times that today's rules would refuse are still projected."""
    monkeypatch.setattr(envelope, "time_problem", lambda _: None)
    given = ["9999-12-31T23:59:60Z", "0001-01-01T00:00:00+23:59", "2016-12-31T12:00:60Z"]
    given += ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"]
    log.append([NewEvent("old", {}, occurred_at=text) for text in given])
    job = start_on_spark(activity)
    job.run()

    assert sum(row["events"] for row in _all_rows(job)) == len(given)
    assert job.verify().equal
    assert [record.occurred_at for record in log.read()] == given


def test_an_empty_first_batch_changes_nothing(start_on_spark: Start, log: Log) -> None:
    """I1: an empty first batch of a stream leaves the position unchanged."""
    fill(log, 5)
    job = start_on_spark(activity)
    job.run()
    nothing = job.spark.createDataFrame([], build_spark_schema())
    compute = partial(job._fold_stream_batch, nothing, 5)

    assert apply_batch(job, compute, 5, ModelLease(token=0)) == 5


def _all_rows(job: Projector) -> list[dict[str, Any]]:
    with job.model.snapshot() as moment:
        return [row for _, row, _ in moment.rows(job.projection, job.projection.tables[0])]


def _counted() -> Any:
    return frame_projection(
        "counted",
        key={"event_type": str},
        columns={"events": int},
        merge={"events": "sum"},
    )


@pytest.mark.parametrize(
    ("transform", "problem"),
    [
        (lambda events: events.select("event_type"), "lacks the declared column events"),
        (
            lambda events: events.select("event_type", f.lit(1).alias("events"), "payload"),
            "has the undeclared column payload",
        ),
        (
            lambda events: events.select("event_type", f.lit("x").alias("events")),
            "has string in column events, declared as int",
        ),
        (lambda _: 7, "returned int, not a DataFrame"),
    ],
)
def test_wrong_output_is_refused(
    start_on_spark: Start, log: Log, transform: Callable[[DataFrame], DataFrame], problem: str
) -> None:
    """A transformation with wrong columns is refused by name, and no row is written."""
    fill(log, 10)
    job = start_on_spark(_counted()(transform))

    with pytest.raises(InvalidArgument, match=problem):
        job.run()
    with pytest.raises(InvalidArgument, match=problem):
        job.rebuild()
    status = job.status()
    assert status is not None
    assert status.position == 0
    assert rows_of(job) == {}


def test_rows_with_the_same_key_are_merged(start_on_spark: Start, log: Log) -> None:
    """Several rows with the same key are merged by the declared rule, across batches too."""
    fill(log, 30)
    declared = _counted()(lambda events: events.select("event_type", f.lit(1).alias("events")))
    job = start_on_spark(declared, batch_events=11)
    job.run()

    expected = Counter(record.event_type for record in log.read())
    assert {name: row["events"] for name, row in rows_of(job).items()} == expected
    assert job.verify().equal

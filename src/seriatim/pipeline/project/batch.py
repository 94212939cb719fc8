"""Apply one batch of the log to a read model: fold it on Spark, commit it in one transaction."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim.core.errors import ProjectionFailed
from seriatim.core.fold import Failure
from seriatim.pipeline.project import dataframes
from seriatim.pipeline.project.fold_outcome import FoldOutcome, decode_outcome
from seriatim.pipeline.project.fold_tasks import FoldTask
from seriatim.pipeline.project.job import (
    DRIVER_FOLD_MAX_EVENTS,
    BatchInput,
    PositionRange,
    ProjectionJob,
)
from seriatim.pipeline.source.watermarks import find_covered_range
from seriatim.store.readmodel.model import ProjectionMoved
from seriatim.store.readmodel.port import ProjectionStep
from seriatim.telemetry import tracer


class ModelLease(msgspec.Struct):
    """The lease on the live tables of a read model, or on its shadow.

    Attributes:
        token: The token of the lease, which each commit compares.
        shadow: Whether it is the lease on the shadow.
        owner: The owner of the shadow.
        events_read: The number of events read since `counted_until`.
        counted_until: The position up to which the number of events was compared with the log.

    """

    token: int
    shadow: bool = False
    owner: str = ""
    events_read: int = 0
    counted_until: int = 0


def apply_batch(job: ProjectionJob, batch: BatchInput, position: int, lease: ModelLease) -> int:
    """Apply the events of a batch that lie after a position.

    Args:
        job: The projection.
        batch: A range of the log, or a batch of a stream, with watermarks that give its range.
        position: The position of the read model's cursor.
        lease: The tables to write, and the lease on them.

    Returns:
        The new position of the cursor.

    Raises:
        ProjectionMoved: The batch begins after the position, so that events would be missing.
        ProjectionFailed: An event failed, and the projection stops at failures. The events before
            it are applied.
        LeaseLost: Another runner holds the lease.

    """
    attributes: tracer.Attributes = {
        "seriatim.projection": job.projection.name,
        "seriatim.after": position,
    }
    with tracer.span("seriatim.project", attributes=attributes) as span:
        reached = _apply(job, batch, position, lease)
        span.set({"seriatim.until": reached, "seriatim.shadow": lease.shadow})
    return reached


def _apply(job: ProjectionJob, batch: BatchInput, position: int, lease: ModelLease) -> int:
    task = FoldTask(
        projection=job.projection, target=job.target, shadow=lease.shadow, after=position
    )
    if job.projection.is_frame:
        outcome, (after, until) = _transform(job, batch, position)
    else:
        outcome = _fold(job, batch, task)
        position_range = outcome.position_range if isinstance(batch, DataFrame) else batch
        after, until = position_range or (position, position)
    # Spark repeats a batch after a crash, with ids that start at 0 for a new checkpoint: only its
    # range of positions tells what is already applied, and whether events would be missing.
    if until <= position:
        return position
    if after > position:
        raise ProjectionMoved
    failure = outcome.first_failure
    if failure is not None and job.projection.on_failure == "stop":
        raise _commit_before_failure(job, batch, failure, task, lease)
    step = outcome.step
    step.after, step.until, step.last_event_id = position, until, job.event_id_at(until)
    # One transaction moves rows and cursor and compares the token: so a batch has its effect once,
    # and a runner that has lost its lease has none.
    job.model.commit(job.projection, step, token=lease.token, shadow=lease.shadow)
    lease.events_read += outcome.events_read
    return until


def _transform(
    job: ProjectionJob, batch: BatchInput, position: int
) -> tuple[FoldOutcome, PositionRange]:
    """Run a DataFrame projection on a batch; return its rows and the range of the batch."""
    if not isinstance(batch, DataFrame):
        return _transform_events(job, job.events(*batch), position, batch[1]), batch
    # Persisted, because the batch is evaluated twice: for its watermarks and for its rows.
    events = batch.persist()
    try:
        watermarks = (
            events.where(dataframes.is_watermark()).select("append_position", "position").collect()
        )
        # The first batch of a stream may be empty, without a watermark.
        position_range = find_covered_range((row[0], row[1]) for row in watermarks) or (
            position,
            position,
        )
        return _transform_events(job, events, position, position_range[1]), position_range
    finally:
        events.unpersist()


def _transform_events(job: ProjectionJob, events: DataFrame, after: int, until: int) -> FoldOutcome:
    new = events.where(f.col("position") > after)
    rows = dataframes.transform_events(new, job.projection, job.tenant_id)
    return decode_outcome(
        job.projection, dataframes.encode_rows(rows, job.projection, until).toArrow()
    )


def _fold(job: ProjectionJob, batch: BatchInput, task: FoldTask) -> FoldOutcome:
    """Fold a small batch in the driver and a large one in tasks; stream batches are small."""
    small = isinstance(batch, DataFrame) or batch[1] - batch[0] <= DRIVER_FOLD_MAX_EVENTS
    return job.fold_in_driver(batch, task) if small else job.fold_in_tasks(batch, task)


def _commit_before_failure(
    job: ProjectionJob, batch: BatchInput, failure: Failure, task: FoldTask, lease: ModelLease
) -> ProjectionFailed:
    """Commit the events before the first failed one together with the failure; build its error."""
    # Fold again, only up to the failure: the first fold has applied later events of other keys.
    last = failure.position - 1
    step = ProjectionStep(after=task.after, until=last, last_event_id=job.event_id_at(last))
    if last > task.after:
        task_before = msgspec.structs.replace(task, until=last)
        step = job.fold_in_tasks(batch, task_before).step
        step.after, step.until, step.last_event_id = task.after, last, job.event_id_at(last)
    step.failures = [(failure, "stopped")]
    job.model.commit(job.projection, step, token=lease.token, shadow=lease.shadow, status="failed")
    return job.stopped_error(failure)

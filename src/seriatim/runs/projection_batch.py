"""Apply one batch of the log to a read model: compute it, and commit it in one transaction."""

from __future__ import annotations

from collections.abc import Callable

from seriatim.core.errors import ProjectionFailed
from seriatim.core.fold import Failure
from seriatim.runs.projection_job import FoldOutcome, ModelLease, ProjectionJob
from seriatim.store.readmodel.model import ProjectionMoved
from seriatim.store.readmodel.port import ProjectionStep
from seriatim.telemetry import tracer

# Computes the events of a batch that lie after the cursor, and up to a position if one is given.
Compute = Callable[[int | None], FoldOutcome]


def apply_range(job: ProjectionJob, position: int, until: int, lease: ModelLease) -> int:
    """Apply the events after a position and up to another; see `apply_batch`."""

    def compute(last: int | None) -> FoldOutcome:
        return job.fold_range(position, until if last is None else last, shadow=lease.shadow)

    return apply_batch(job, compute, position, lease)


def apply_batch(job: ProjectionJob, compute: Compute, position: int, lease: ModelLease) -> int:
    """Apply the events of a batch that lie after a position.

    Args:
        job: The projection.
        compute: Computes the changes of the batch, and the range of positions that it covers.
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
        reached = _apply(job, compute, position, lease)
        span.set({"seriatim.until": reached, "seriatim.shadow": lease.shadow})
    return reached


def _apply(job: ProjectionJob, compute: Compute, position: int, lease: ModelLease) -> int:
    outcome = compute(None)
    after, until = outcome.position_range or (position, position)
    # An engine may repeat a batch after a crash: only its range of positions tells what is already
    # applied, and whether events would be missing.
    if until <= position:
        return position
    if after > position:
        raise ProjectionMoved
    failure = outcome.first_failure
    if failure is not None and job.projection.on_failure == "stop":
        raise _commit_before_failure(job, compute, failure, position, lease)
    step = outcome.step
    step.after, step.until, step.last_event_id = position, until, job.event_id_at(until)
    # One transaction moves rows and cursor and compares the token: so a batch has its effect once,
    # and a runner that has lost its lease has none.
    job.model.commit(job.projection, step, token=lease.token, shadow=lease.shadow)
    lease.events_read += outcome.events_read
    return until


def _commit_before_failure(
    job: ProjectionJob, compute: Compute, failure: Failure, position: int, lease: ModelLease
) -> ProjectionFailed:
    """Commit the events before the first failed one together with the failure; build its error."""
    # Fold again, only up to the failure: the first fold may have applied later events of other
    # keys.
    last = failure.position - 1
    step = ProjectionStep(after=position, until=last, last_event_id=job.event_id_at(last))
    if last > position:
        step = compute(last).step
        step.after, step.until, step.last_event_id = position, last, job.event_id_at(last)
    step.failures = [(failure, "stopped")]
    job.model.commit(job.projection, step, token=lease.token, shadow=lease.shadow, status="failed")
    return job.stopped_error(failure)

"""One batch of the log applied to a read model: folded on Spark, stored in one transaction."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim.core.errors import ProjectionFailed
from seriatim.core.fold import Failure
from seriatim.pipeline.marks import covered
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.folding import Folder
from seriatim.pipeline.project.job import SMALL_EVENTS, Given, Job, Range
from seriatim.pipeline.project.outcome import Outcome, outcome_of
from seriatim.store.readmodel.model import Moved
from seriatim.store.readmodel.port import Step
from seriatim.telemetry import tracing


class Side(msgspec.Struct):
    """The live tables or their shadow, and the right to write them."""

    token: int
    shadow: bool = False
    owner: str = ""  # of the shadow
    read: int = 0  # events folded since the last count, which ended at the next position
    counted: int = 0


def apply_batch(job: Job, given: Given, position: int, side: Side) -> int:
    """Apply the events of a batch that lie after a position, and return the new one.

    The marks of a stream's batch tell its range. A batch that begins later than the position is
    none that can be applied.
    """
    told: tracing.Attributes = {
        "seriatim.projection": job.projection.name,
        "seriatim.after": position,
    }
    with tracing.span("seriatim.project", attributes=told) as span:
        reached = _applied(job, given, position, side)
        span.set({"seriatim.until": reached, "seriatim.shadow": side.shadow})
    return reached


def _applied(job: Job, given: Given, position: int, side: Side) -> int:
    folder = Folder(
        projection=job.projection, target=job.target, shadow=side.shadow, after=position
    )
    if job.projection.is_frame:
        outcome, (after, until) = _frame_outcome(job, given, position)
    else:
        outcome = _folded(job, given, folder)
        seen = outcome.seen if isinstance(given, DataFrame) else given
        after, until = seen or (position, position)
    if until <= position:
        return position
    if after > position:
        raise Moved
    first = outcome.first_failure
    if first is not None and job.projection.on_failure == "stop":
        raise _stop(job, given, first, folder, side)
    step = outcome.step
    step.after, step.until, step.tip = position, until, job.tip(until)
    job.model.commit(job.projection, step, token=side.token, shadow=side.shadow)
    side.read += outcome.read
    return until


def _frame_outcome(job: Job, given: Given, position: int) -> tuple[Outcome, Range]:
    if not isinstance(given, DataFrame):
        return _transformed(job, job.events(*given), position, given[1]), given
    kept = given.persist()
    try:
        marks = kept.where(frames.is_mark()).select("append_position", "position").collect()
        # The first batch of a stream may be empty, and have none.
        seen = covered((mark[0], mark[1]) for mark in marks) or (position, position)
        return _transformed(job, kept, position, seen[1]), seen
    finally:
        kept.unpersist()


def _transformed(job: Job, events: DataFrame, after: int, until: int) -> Outcome:
    new = events.where(f.col("position") > after)
    rows = frames.transformed(new, job.projection, job.tenant_id)
    return outcome_of(job.projection, frames.sent(rows, job.projection, until).toArrow())


def _folded(job: Job, given: Given, folder: Folder) -> Outcome:
    """Fold where it is quickest; the batches of a stream are always small."""
    small = isinstance(given, DataFrame) or given[1] - given[0] <= SMALL_EVENTS
    return job.outcome_here(given, folder) if small else job.outcome(given, folder)


def _stop(job: Job, given: Given, first: Failure, folder: Folder, side: Side) -> ProjectionFailed:
    """Store all that lies before the first event that failed, and the failure."""
    last = first.position - 1
    step = Step(after=folder.after, until=last, tip=job.tip(last))
    if last > folder.after:
        before = msgspec.structs.replace(folder, until=last)
        step = job.outcome(given, before).step
        step.after, step.until, step.tip = folder.after, last, job.tip(last)
    step.failures = [(first, "stopped")]
    job.model.commit(job.projection, step, token=side.token, shadow=side.shadow, status="failed")
    return job.stopped(first)

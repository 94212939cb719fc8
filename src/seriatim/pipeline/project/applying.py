"""One batch of the log applied to a read model: folded on Spark, stored in one transaction."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim.core.errors import ProjectionFailed
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.folding import Folder
from seriatim.pipeline.project.outcome import Outcome, outcome_of
from seriatim.pipeline.project.projector import Projector
from seriatim.store.readmodel.port import Step



class Gap(Exception):  # noqa: N818 - not an error: the stream begins anew
    """The batch begins after the read model's end."""


def apply_batch(
    job: Projector,
    given: DataFrame,
    position: int,
    *,
    token: int,
    shadow: bool = False,
    seen: tuple[int, int] | None = None,
) -> int:
    """Apply the events of a batch that lie after a position, and return the new one.

    `seen` is the range the batch was read from, if its marks do not tell it.
    """
    outcome, (after, until) = _outcome(job, given, position, shadow=shadow, seen=seen)
    if until <= position:
        return position
    if after > position:
        raise Gap
    if outcome.failures and job.projection.on_failure == "stop":
        raise _stop(job, given, outcome, position, token=token, shadow=shadow)
    step = outcome.step
    step.after, step.until, step.tip = position, until, job.tip(until)
    job.model.commit(job.projection, step, token=token, shadow=shadow)
    return until


def _outcome(
    job: Projector,
    given: DataFrame,
    position: int,
    *,
    shadow: bool,
    seen: tuple[int, int] | None,
) -> tuple[Outcome, tuple[int, int]]:
    if job.projection.is_frame:
        return _frame_outcome(job, given, position, seen)
    folder = _folder(job, position, shadow=shadow)
    outcome = job.outcome(given, folder, spread=_spread(job, given))
    seen = seen or outcome.seen
    assert seen is not None  # noqa: S101 - every partition of a stream tells its range
    return outcome, seen


def _frame_outcome(
    job: Projector, given: DataFrame, position: int, seen: tuple[int, int] | None
) -> tuple[Outcome, tuple[int, int]]:
    kept = given if seen else given.persist()
    try:
        if seen is None:
            marks = kept.where(f.col("event_type") == "").select("append_position", "position")
            found = marks.collect()
            seen = min(mark[0] for mark in found), max(mark[1] for mark in found)
        rows = frames.transformed(kept.where(f.col("position") > position), job.projection, job.tenant_id)
        sent = frames.sent(rows, job.projection, seen[1]).toArrow()
    finally:
        if kept is not given:
            kept.unpersist()
    return outcome_of(job.projection, sent), seen


def _spread(job: Projector, given: DataFrame) -> int:
    """Leave a batch where it is when it lies in one partition, as live ones do."""
    return 1 if given.rdd.getNumPartitions() == 1 else job.spread


def _folder(
    job: Projector, position: int, *, shadow: bool, until: int | None = None
) -> Folder:
    return Folder(
        projection=job.projection, target=job.target, shadow=shadow, after=position, until=until
    )


def _stop(
    job: Projector,
    given: DataFrame,
    outcome: Outcome,
    position: int,
    *,
    token: int,
    shadow: bool,
) -> ProjectionFailed:
    """Store all that lies before the first event that failed, and the failure."""
    first = min(outcome.failures, key=lambda failure: failure.position)
    step = Step(after=position, until=position, tip=job.tip(position))
    if first.position - 1 > position:
        folder = _folder(job, position, shadow=shadow, until=first.position - 1)
        step = job.outcome(given, folder, spread=_spread(job, given)).step
        step.after, step.until = position, first.position - 1
        step.tip = job.tip(step.until)
    step.failures = [(first, "stopped")]
    job.model.commit(job.projection, step, token=token, shadow=shadow, status="failed")
    return job.stopped(first)

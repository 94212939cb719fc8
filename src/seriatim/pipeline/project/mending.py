"""Failures mended: keys folded anew once their fold, or their events, can be taken."""

from __future__ import annotations

from pyspark.sql import functions as f

from seriatim.core.errors import NotFound
from seriatim.core.fold import Owner
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.folding import KEY, Folder
from seriatim.pipeline.project.job import Job
from seriatim.store.readmodel.port import FailureRecord


def retry(job: Job, position: int | None = None) -> int:
    """Ask that failures be tried again, all or the one at a position; tell how many.

    The next run does it, or the runner that is at work.
    """
    name = job.projection.name
    wanted = [one for one in failures(job, position) if one.status != "passed"]
    for one in wanted:
        if one.status == "stopped":
            job.model.forget_failure(name, one.failure.position)
            job.model.set_status(name, "ready")
        else:
            job.model.mark(name, one.failure.position, one.status, again=True)
    return len(wanted)


def skip(job: Job, position: int) -> None:
    """Pass over the event at a position, now and in every rebuild; its key goes on after it."""
    name = job.projection.name
    for one in failures(job, position):
        job.model.mark(name, position, "passed", again=one.status != "stopped")
        if one.status == "stopped":
            job.model.set_status(name, "ready")


def failures(job: Job, position: int | None = None) -> list[FailureRecord]:
    """Return a projection's failures, or the one at a position."""
    name = job.projection.name
    found = [
        one
        for one in job.model.failures(name)
        if position is None or one.failure.position == position
    ]
    if position is not None and not found:
        msg = f"projection {name} has no failure at position {position}"
        raise NotFound(msg, details={"projection": name, "position": position})
    return found


def mend(job: Job, *, token: int) -> None:
    """Fold anew the keys for which that was asked."""
    owners = {
        (one.failure.tenant_id, one.failure.key)
        for one in job.model.failures(job.projection.name)
        if one.again
    }
    for owner in sorted(owners):
        _refold(job, owner, token=token)


def _refold(job: Job, owner: Owner, *, token: int) -> None:
    progress = job.model.progress(job.projection.name)
    until = progress.position if progress else 0
    tenant_id, key = owner
    given = frames.keyed(job.events(0, until), job.projection).where(
        (f.col("tenant_id") == tenant_id) & (f.col(KEY) == key)
    )
    folder = Folder(projection=job.projection, target=job.target, until=until, only=owner)
    # One key is one task's; where several partitions were read, they are put in order first.
    ordered = given.coalesce(1).sortWithinPartitions("position")
    step = job.outcome(ordered.drop(KEY), folder, spread=1).step
    step.after = step.until = until
    step.failures = [
        (failure, "skipped" if job.projection.on_failure == "skip" else "parked")
        for failure, _ in step.failures
    ]
    job.model.refold(job.projection, owner, step, token=token)

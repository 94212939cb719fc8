"""Keys folded anew from their first event, once their fold or their events can be taken."""

from __future__ import annotations

from pyspark.sql import functions as f

from seriatim.core.fold import Owner
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.folding import KEY, Folder
from seriatim.pipeline.project.job import Job


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
    step = job.outcome(given.drop(KEY), folder, spread=1).step
    step.after = step.until = until
    step.failures = [
        (failure, "skipped" if job.projection.on_failure == "skip" else "parked")
        for failure, _ in step.failures
    ]
    job.model.refold(job.projection, owner, step, token=token)

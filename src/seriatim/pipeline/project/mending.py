"""Keys folded anew from their first event, once their fold or their events can be taken."""

from __future__ import annotations

from pyspark.sql import functions as f

from seriatim.core.errors import LeaseLost
from seriatim.core.fold import Owner
from seriatim.pipeline.project import frames, rebuilding
from seriatim.pipeline.project.folding import KEY, Folder
from seriatim.pipeline.project.job import Job


def mend(job: Job, *, token: int) -> None:
    """Fold anew the keys for which that was asked.

    Where keys share rows and one of them no longer writes a row as it did, only the whole log
    tells what belongs there: then everything is folded anew, and the lease is lost with it.
    """
    owners = {
        (one.failure.tenant_id, one.failure.key)
        for one in job.model.failures(job.projection.name)
        if one.again
    }
    for owner in sorted(owners):
        if not _refold(job, owner, token=token):
            rebuilding.replace(job)
            msg = f"projection {job.projection.name} was rebuilt to mend key {owner[1]!r:.200}"
            raise LeaseLost(msg, details={"projection": job.projection.name})


def _refold(job: Job, owner: Owner, *, token: int) -> bool:
    progress = job.model.progress(job.projection.name)
    until = progress.position if progress else 0
    tenant_id, key = owner
    given = frames.keyed(job.events(0, until), job.projection).where(
        (f.col("tenant_id") == tenant_id) & (f.col(KEY) == key)
    )
    positions: list[int] = given.select("position").toArrow().column(0).to_pylist()
    folder = Folder(projection=job.projection, target=job.target, until=until, only=owner)
    step = job.outcome(given.drop(KEY), folder, spread=1).step
    step.after = step.until = until
    step.failures = [
        (failure, "skipped" if job.projection.on_failure == "skip" else "parked")
        for failure, _ in step.failures
    ]
    return job.model.refold(job.projection, owner, step, positions, token=token)

"""Refold: fold single keys again from their first event, after their failure was fixed."""

from __future__ import annotations

from pyspark.sql import functions as f

from seriatim.core.errors import LeaseLost
from seriatim.core.fold import TenantKey
from seriatim.pipeline.project import dataframes, rebuild
from seriatim.pipeline.project.fold_tasks import KEY_COLUMN, FoldTask
from seriatim.pipeline.project.job import ProjectionJob


def refold_failed_keys(job: ProjectionJob, *, token: int) -> None:
    """Fold again the keys whose failures an operator wants to retry.

    If keys share rows and one of them no longer writes a row as before, the correct row depends on
    the whole log. The projection is then rebuilt, which ends the lease.

    Raises:
        LeaseLost: The projection was rebuilt.

    """
    owners = {
        (one.failure.tenant_id, one.failure.key)
        for one in job.model.failures(job.projection.name)
        if one.again
    }
    for owner in sorted(owners):
        if not _refold(job, owner, token=token):
            rebuild.rebuild_without_comparison(job)
            msg = f"projection {job.projection.name} was rebuilt to refold key {owner[1]!r:.200}"
            raise LeaseLost(msg, details={"projection": job.projection.name})


def _refold(job: ProjectionJob, owner: TenantKey, *, token: int) -> bool:
    """Fold one key again; return False if that needs a rebuild."""
    progress = job.model.progress(job.projection.name)
    until = progress.position if progress else 0
    tenant_id, key = owner
    events = dataframes.add_key_column(job.events(0, until), job.projection).where(
        (f.col("tenant_id") == tenant_id) & (f.col(KEY_COLUMN) == key)
    )
    positions: list[int] = events.select("position").toArrow().column(0).to_pylist()
    task = FoldTask(projection=job.projection, target=job.target, until=until, only_key=owner)
    step = job.fold_in_tasks(events.drop(KEY_COLUMN), task, partitions=1).step
    step.after = step.until = until
    step.failures = [
        (failure, "skipped" if job.projection.on_failure == "skip" else "parked")
        for failure, _ in step.failures
    ]
    return job.model.refold(job.projection, owner, step, positions, token=token)

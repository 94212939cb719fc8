"""Jobs of a service: verifications and rebuilds of projections, with a state that is stored."""

from __future__ import annotations

import secrets
from typing import Any, Literal

import msgspec

from seriatim.core.errors import Conflict, NotFound
from seriatim.core.times import format_us
from seriatim.store.engine import Engine, load_engine_statements

JobKind = Literal["verify", "rebuild", "rebuild_accept"]
JobStatus = Literal["queued", "running", "succeeded", "failed"]
LOST_AFTER_S = 60.0  # a job whose process has not updated it for so long is lost
JOBS_MAX = 1000
_TABLE = "seriatim_jobs"
_MICROSECONDS = 1_000_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A verification or rebuild of a projection, run by a process of the service.

    `result` is the proof: digests, counts, and the first difference. `progress` has the last lines
    of its log. A verification that finds a difference has succeeded, and its result is not equal.
    A rebuild that finds one fails, unless it is `rebuild_accept`, which replaces the tables anyway.
    """

    job_id: str
    kind: JobKind
    projection: str
    tenant_id: str
    status: JobStatus
    actor_id: str
    reason: str
    progress: list[str]
    result: Any
    error: str
    created_at: str
    started_at: str | None
    finished_at: str | None


class JobStore:
    """The jobs of all processes of a service; safe for use by several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sql = load_engine_statements(__package__, engine)
        if not engine.is_ready(_TABLE):
            engine.create_tables([self._sql["create_jobs"], self._sql["create_open_job_index"]])

    def close(self) -> None:
        """Close the database connection."""
        self._engine.close()

    def add(
        self, kind: JobKind, projection: str, tenant_id: str, *, actor_id: str, reason: str
    ) -> Job:
        """Add a queued job.

        Raises:
            Conflict: A job for this projection is queued or running.
        """
        # A lost job still counts as unfinished and would keep this one out.
        self._fail_lost_jobs()
        job_id = secrets.token_hex(8)
        added = self._run(
            "insert_job",
            job_id=job_id,
            kind=kind,
            projection=projection,
            tenant_id=tenant_id,
            actor_id=actor_id,
            reason=reason,
        )
        if not added:
            msg = f"a job for projection {projection} is queued or running: see GET /v1/jobs"
            raise Conflict(msg, details={"projection": projection})
        self._run("delete_old_jobs", jobs_max=JOBS_MAX)
        return self.get(job_id)

    def get(self, job_id: str) -> Job:
        """Return one job; raises `NotFound` if there is none with this id."""
        self._fail_lost_jobs()
        rows = self._run("select_job", job_id=job_id)
        if not rows:
            msg = f"there is no job {job_id!r:.80}: GET /v1/jobs lists the recent ones"
            raise NotFound(msg, details={"job_id": job_id})
        return _decode(rows[0])

    def newest(self, limit: int) -> list[Job]:
        """Return the newest jobs, newest first."""
        self._fail_lost_jobs()
        return [_decode(row) for row in self._run("list_jobs", limit=limit)]

    def update(self, job_id: str, progress: tuple[str, ...]) -> bool:
        """Mark a job as running, with its progress; return False if it counts as lost."""
        text = msgspec.json.encode(progress).decode()
        return bool(self._run("update_job", job_id=job_id, progress=text))

    def finish(
        self, job_id: str, status: Literal["succeeded", "failed"], *, result: Any, error: str
    ) -> None:
        """Store the end of a job."""
        text = None if result is None else msgspec.json.encode(result).decode()
        self._run("finish_job", job_id=job_id, status=status, result=text, error=error)

    def _fail_lost_jobs(self) -> None:
        self._run("fail_lost_jobs", lost_us=int(LOST_AFTER_S * _MICROSECONDS))

    def _run(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        with self._engine.autocommit() as session:
            return session.run(self._sql[statement], values)


def _decode(row: tuple[Any, ...]) -> Job:
    job_id, kind, projection, tenant_id, status, actor_id, reason, progress = row[:8]
    result, error, created_us, started_us, finished_us = row[8:]
    return Job(
        job_id=job_id,
        kind=kind,
        projection=projection,
        tenant_id=tenant_id,
        status=status,
        actor_id=actor_id,
        reason=reason,
        progress=msgspec.json.decode(progress, type=list[str]),
        result=None if result is None else msgspec.json.decode(result),
        error=error,
        created_at=format_us(created_us),
        started_at=None if started_us is None else format_us(started_us),
        finished_at=None if finished_us is None else format_us(finished_us),
    )

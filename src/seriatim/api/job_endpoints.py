"""Endpoints for operators of all tenants: jobs that verify or rebuild a projection."""

from __future__ import annotations

from typing import Annotated

import msgspec

from seriatim.access.jobs import Job, JobKind
from seriatim.api.http import HttpRequest, page_bound
from seriatim.api.operator_endpoints import record_request
from seriatim.api.service import Service
from seriatim.log.arguments import check_name, invalid_argument
from seriatim.log.operator_journal import check_reason

_PAGE_MAX = 100


class JobBody(msgspec.Struct, forbid_unknown_fields=True):
    """A projection of the request's tenant to verify or rebuild, and the reason."""

    kind: JobKind
    projection: str
    reason: str = ""


class JobsParams(msgspec.Struct, frozen=True):
    """The newest jobs."""

    limit: Annotated[int, page_bound(_PAGE_MAX)] = 20


class JobParams(msgspec.Struct, frozen=True):
    """One job."""

    id: str


class JobsResponse(msgspec.Struct, frozen=True):
    """Jobs of all processes of the service, newest first."""

    jobs: list[Job]


class JobResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job.

    `recorded` is false if it was started but could not be recorded in the journal.
    """

    job: Job
    recorded: bool = True


async def start_job(service: Service, request: HttpRequest, body: JobBody) -> JobResponse:
    """Verify or rebuild a projection on Spark, in a process of its own.

    The service runs only projections that `seriatim serve --projection` names, by default the
    shipped ones. Watch the job with `GET /v1/jobs/one`. A `rebuild` replaces the tables only if
    the result equals them, or the version of the declaration has changed; `rebuild_accept`
    replaces them in any case, and needs a reason.
    """
    name, reason = check_name("projection", body.projection), check_reason(body.reason)
    if body.kind == "rebuild_accept" and not reason.strip():
        raise invalid_argument("reason", "is required to accept differences")

    def start() -> JobResponse:
        job = service.jobs.submit(
            body.kind, name, request.tenant_id, actor_id=request.caller.subject, reason=reason
        )
        target = {"projection": name, "kind": body.kind, "job_id": job.job_id}
        recorded = record_request(service, request, "projection_job_started", target, reason=reason)
        return JobResponse(job, recorded)

    return await service.run(start)


async def list_jobs(service: Service, request: HttpRequest, params: JobsParams) -> JobsResponse:
    """List the newest jobs."""
    del request
    if not 1 <= params.limit <= _PAGE_MAX:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE_MAX}")
    return JobsResponse(await service.run(lambda: service.jobs.store.newest(params.limit)))


async def get_job(service: Service, request: HttpRequest, params: JobParams) -> JobResponse:
    """Return the state, progress, result and error of a job."""
    del request
    job_id = check_name("id", params.id)
    return JobResponse(await service.run(lambda: service.jobs.store.get(job_id)))

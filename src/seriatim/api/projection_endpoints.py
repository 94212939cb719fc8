"""Projections over HTTP: where they stand, what failed, and reading one's own writes."""

from __future__ import annotations

import msgspec

from seriatim.api.http import HttpRequest
from seriatim.api.service import Service
from seriatim.core.errors import Conflict, LogIdentityChanged, NotFound
from seriatim.log.arguments import invalid_argument
from seriatim.log.projections import Projections
from seriatim.store.readmodel.port import FailureRecord, Progress, ProjectionStanding
from seriatim.wire.messages import FailuresResponse, ProjectionsResponse


class ProjectionParams(msgspec.Struct, frozen=True):
    """Which projections: all, or the one of a name."""

    name: str | None = None


class ProjectionWaitParams(msgspec.Struct, frozen=True):
    """Which projection must have passed which position; 0 seconds demand it at once."""

    name: str
    position: int
    timeout_s: float = 10.0


class ProjectionNameParams(msgspec.Struct, frozen=True):
    """Which projection."""

    name: str


async def list_projections(
    service: Service, request: HttpRequest, params: ProjectionParams
) -> ProjectionsResponse:
    """Return where the projections beside the log stand."""
    known = service.view(request.tenant_id).projections

    def listed() -> list[ProjectionStanding]:
        wanted = [one for one in known.status() if params.name in (None, one.name)]
        return [mine for one in wanted if (mine := _own(known, one, request.tenant_id))]

    return ProjectionsResponse(await service.run_for_tenant(request.tenant_id, listed))


def _own(known: Projections, one: ProjectionStanding, tenant_id: str) -> ProjectionStanding | None:
    """Return where a projection stands with the caller's failures alone, None if it is foreign."""
    try:
        failures = _mine(known.failures(one.name), tenant_id)
    except Conflict:
        return None
    except LogIdentityChanged:
        return one  # of a log that is no more: it has to be rebuilt, which its status tells
    return msgspec.structs.replace(one, failures=len(failures))


def _mine(found: list[FailureRecord], tenant_id: str) -> list[FailureRecord]:
    return [one for one in found if one.failure.tenant_id == tenant_id]


def _absent(name: str) -> NotFound:
    return NotFound("there is no such projection", details={"projection": name})


async def wait_for_projection(
    service: Service, request: HttpRequest, params: ProjectionWaitParams
) -> Progress:
    """Wait until a projection has passed a position, or demand that it has."""
    known = service.aio(request.tenant_id).projections
    if not 0 <= params.timeout_s <= service.settings.wait_max_s:
        raise invalid_argument("timeout_s", f"must be from 0 to {service.settings.wait_max_s:g}")
    try:
        if params.timeout_s:
            waiting = known.wait_for(params.name, params.position, params.timeout_s)
            found = await service.hub.run_until_stopped(waiting)
        else:
            found = await known.demand(params.name, params.position)
    except (Conflict, NotFound):  # what is another tenant's is not there
        raise _absent(params.name) from None
    # Not for readers: what it is made of, and the id of an event that may not be theirs.
    return msgspec.structs.replace(found, declaration="", last_event_id="")


async def list_projection_failures(
    service: Service, request: HttpRequest, params: ProjectionNameParams
) -> FailuresResponse:
    """Return what a projection could not take, and what became of it."""
    known = service.view(request.tenant_id).projections
    try:
        found = await service.run_for_tenant(request.tenant_id, known.failures, params.name)
    except (Conflict, NotFound):
        raise _absent(params.name) from None
    return FailuresResponse(_mine(found, request.tenant_id))

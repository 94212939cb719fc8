"""Projections over HTTP: where they stand, what failed, and reading one's own writes."""

from __future__ import annotations

import msgspec

from seriatim.api.http import Request
from seriatim.api.service import Service
from seriatim.log.arguments import bad
from seriatim.store.readmodel.port import Progress
from seriatim.wire.shapes import FailuresAnswer, ProjectionsAnswer


class ProjectionParams(msgspec.Struct, frozen=True):
    """Which projections: all, or the one of a name."""

    name: str | None = None


class WaitParams(msgspec.Struct, frozen=True):
    """Which projection must have passed which position; 0 seconds demand it at once."""

    name: str
    position: int
    timeout_s: float = 10.0


class NameParams(msgspec.Struct, frozen=True):
    """Which projection."""

    name: str


async def projections(
    service: Service, request: Request, params: ProjectionParams
) -> ProjectionsAnswer:
    """Return where the projections beside the log stand."""
    found = await service.run(service.view(request.tenant_id).projections.status)
    wanted = [one for one in found if params.name in (None, one.name)]
    return ProjectionsAnswer(wanted)


async def wait(service: Service, request: Request, params: WaitParams) -> Progress:
    """Wait until a projection has passed a position, or demand that it has."""
    known = service.view(request.tenant_id).aio.projections
    if not 0 <= params.timeout_s <= service.serving.wait_max_s:
        raise bad("timeout_s", f"must be from 0 to {service.serving.wait_max_s:g}")
    if params.timeout_s:
        found = await known.wait_for(params.name, params.position, params.timeout_s)
    else:
        found = await known.demand(params.name, params.position)
    # Not for readers: what it is made of, and the id of an event that may not be theirs.
    return msgspec.structs.replace(found, declaration="", tip="")


async def failures(service: Service, request: Request, params: NameParams) -> FailuresAnswer:
    """Return what a projection could not take, and what became of it."""
    found = await service.run(service.view(request.tenant_id).projections.failures, params.name)
    return FailuresAnswer([one for one in found if one.failure.tenant_id == request.tenant_id])

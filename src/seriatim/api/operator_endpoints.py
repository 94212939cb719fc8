"""What operators do over HTTP: declare, raise the epoch, forget old commands."""

from __future__ import annotations

import msgspec

from seriatim.api.http import HttpRequest
from seriatim.api.service import VERSION, Service
from seriatim.log.arguments import invalid_argument
from seriatim.wire.messages import (
    CountResponse,
    DeclarationsResponse,
    DeclareBody,
    LogInfo,
    PurgeBody,
    TokenInfo,
)

_HOURS_MAX = 1e6  # a century or so


class NoParams(msgspec.Struct, frozen=True):
    """Nothing can be chosen."""


async def get_token(service: Service, request: HttpRequest, params: NoParams) -> TokenInfo:
    """Say what the caller's token says: whose it is, and what it may do."""
    del service, params
    caller = request.caller
    return TokenInfo(
        subject=caller.subject,
        service=caller.service,
        tenant_id=caller.tenant_id,
        rights=sorted(caller.rights),
        types=None if caller.types is None else list(caller.types),
    )


async def get_declarations(
    service: Service, request: HttpRequest, params: NoParams
) -> DeclarationsResponse:
    """Return the stream kinds, event types and payload indexes that are declared."""
    del params
    rules = await service.run_for_tenant(request.tenant_id, service.log.store.rules)
    return DeclarationsResponse(
        rules.version,
        list(rules.kinds.values()),
        list(rules.types.values()),
        list(rules.indexes),
    )


async def declare(
    service: Service, request: HttpRequest, body: DeclareBody
) -> DeclarationsResponse:
    """Declare stream kinds, event types and payload indexes, for every process."""
    await service.run(service.log.declare, *body.kinds, *body.types, *body.indexes)
    return await get_declarations(service, request, NoParams())


async def raise_epoch(service: Service, request: HttpRequest, body: NoParams) -> LogInfo:
    """Begin a new epoch, after a restore or a promotion: consumers of the old one stop."""
    del body
    identity = await service.run(service.log.store.raise_epoch)
    head = await service.run(service.log.head)
    return LogInfo(identity.log_id, identity.epoch, head, request.tenant_id, VERSION)


async def purge_commands(service: Service, request: HttpRequest, body: PurgeBody) -> CountResponse:
    """Forget command records that are older than this, which is never less than a day."""
    del request
    if body.older_than_hours > _HOURS_MAX:
        raise invalid_argument("older_than_hours", f"must be at most {_HOURS_MAX:g}")
    return CountResponse(await service.run(service.purge, body.older_than_hours))

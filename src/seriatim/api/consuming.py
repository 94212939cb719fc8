"""Consumers over HTTP: cursors that move only forward, and leases that one owner holds."""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec

from seriatim.access.rights import EVERY_TENANT
from seriatim.api.http import Request
from seriatim.api.service import Service
from seriatim.core.errors import Forbidden
from seriatim.log.arguments import bad, check_name, check_position
from seriatim.store.port import Cursor, Lease
from seriatim.wire.shapes import (
    CursorAnswer,
    CursorBody,
    CursorsAnswer,
    Done,
    LeaseAnswer,
    LeaseBody,
    ReleaseBody,
    RenewAnswer,
    RenewBody,
)

_LEASE_MAX_S = 86_400.0
_EPOCH_MAX = 2**31 - 1
_QUERY_MAX = 1024 * 1024


class CursorParams(msgspec.Struct, frozen=True):
    """Whose cursors: all of a purpose, or the one of a name."""

    purpose: Literal["subscription", "projection"]
    name: str | None = None


async def cursors(service: Service, request: Request, params: CursorParams) -> CursorsAnswer:
    """Return how far consumers have come."""
    store, tenant_id = service.log.store, request.tenant_id

    def found() -> list[Cursor]:
        if params.name is None:
            kept = store.cursors(tenant_id, params.purpose)
        else:
            one = store.cursor(tenant_id, params.purpose, check_name("name", params.name))
            kept = [] if one is None else [one]
        return [_shown(service, request, one) for one in kept]

    return CursorsAnswer(await service.run_for(request.tenant_id, found))


async def put_cursor(service: Service, request: Request, body: CursorBody) -> CursorAnswer:
    """Make or move a cursor: backwards only by a reset, under a lost lease never."""
    check_name("name", body.name)
    check_position("position", body.position)
    _check_known(body)
    lease = body.lease
    if lease is not None and lease.tenant_id != request.tenant_id:
        raise Forbidden("this lease is of another tenant")
    store = service.log.store

    def put() -> Cursor:
        cursor = Cursor(
            tenant_id=request.tenant_id,
            purpose=body.purpose,
            name=body.name,
            position=body.position,
            log_id=body.log_id,
            epoch=body.epoch,
            tip=_kept_tip(service, body),
            query=body.query,
        )
        if body.only_new:
            return _shown(service, request, store.add_cursor(cursor))
        store.put_cursor(cursor, lease=lease, reset=body.reset)
        return cursor

    return CursorAnswer(await service.run_for(request.tenant_id, put))


def _check_known(body: CursorBody) -> None:
    """Refuse what no cursor of a log of ours says: a log has a UUID, its epochs begin with 1."""
    try:
        uuid.UUID(body.log_id)
    except ValueError:
        raise bad("log_id", "must be the id of a log") from None
    if not 1 <= body.epoch <= _EPOCH_MAX:
        raise bad("epoch", "must be the epoch of a log")
    if body.tip:
        check_name("tip", body.tip)
    if len(body.query) > _QUERY_MAX or not body.query.isprintable():
        raise bad("query", f"must be printable text of at most {_QUERY_MAX} characters")


def _kept_tip(service: Service, body: CursorBody) -> str:
    """Return the id that a mark stands for; anything else is kept as it was given."""
    if not body.tip.startswith("tip:"):
        return body.tip
    event_id = service.log.store.event_id_at(body.position)
    known = event_id is not None and service.mark(event_id) == body.tip
    return event_id if known and event_id is not None else body.tip


def _shown(service: Service, request: Request, cursor: Cursor) -> Cursor:
    """Return a cursor without the id of a foreign event."""
    if request.caller.tenant_id == EVERY_TENANT or not cursor.tip or cursor.tip.startswith("tip:"):
        return cursor
    own = service.log.store.event(cursor.tenant_id, cursor.tip)
    if own is not None and request.caller.sees(own.event_type):
        return cursor
    return msgspec.structs.replace(cursor, tip=service.mark(cursor.tip))


async def claim(service: Service, request: Request, body: LeaseBody) -> LeaseAnswer:
    """Claim the right to do a named thing for a while."""
    for name in ("name", "owner"):
        check_name(name, getattr(body, name))
    _check_seconds(body.seconds)
    tenant_id, claimed = request.tenant_id, service.log.store.claim_lease
    lease = await service.run_for(
        tenant_id, claimed, tenant_id, body.name, body.owner, body.seconds
    )
    return LeaseAnswer(lease)


async def renew(service: Service, request: Request, body: RenewBody) -> RenewAnswer:
    """Keep a lease for longer, if it is still the caller's."""
    _check_seconds(body.seconds)
    lease = _own(request, body.lease)
    renewed = service.log.store.renew_lease
    return RenewAnswer(await service.run_for(lease.tenant_id, renewed, lease, body.seconds))


async def release(service: Service, request: Request, body: ReleaseBody) -> Done:
    """Give a lease back."""
    lease = _own(request, body.lease)
    await service.run_for(lease.tenant_id, service.log.store.release_lease, lease)
    return Done()


def _own(request: Request, lease: Lease) -> Lease:
    if lease.tenant_id != request.tenant_id:
        raise Forbidden("this lease is of another tenant")
    return lease


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= _LEASE_MAX_S:
        raise bad("seconds", f"must be above 0 and at most {_LEASE_MAX_S:g}")

"""Consumers over HTTP: cursors that move only forward, and leases that one owner holds."""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec

from seriatim.api.http import Request
from seriatim.api.service import Service
from seriatim.core.errors import Forbidden
from seriatim.core.limits import over
from seriatim.core.reasons import kept_reason
from seriatim.core.tenants import EVERY_TENANT
from seriatim.log.arguments import bad, check_name, check_position
from seriatim.log.subscription_status import status_page
from seriatim.store.port import Cursor, Lease, lease_name
from seriatim.wire.shapes import (
    CursorAnswer,
    CursorBody,
    CursorsAnswer,
    Done,
    FailureBody,
    LeaseAnswer,
    LeaseBody,
    ReleaseBody,
    RenewAnswer,
    RenewBody,
    SubscriptionsAnswer,
)

_LEASE_MAX_S = 86_400.0
_EPOCH_MAX = 2**31 - 1
_PAGE = 100


class CursorParams(msgspec.Struct, frozen=True):
    """Which cursors: those of a purpose by name, behind one if told, or the one of a name."""

    purpose: Literal["subscription", "projection"]
    name: str | None = None
    after: str | None = None
    limit: int = _PAGE


async def cursors(service: Service, request: Request, params: CursorParams) -> CursorsAnswer:
    """Return how far consumers have come, page by page: go on with `after` = the last name."""
    if not 1 <= params.limit <= _PAGE:
        raise bad("limit", f"must be from 1 to {_PAGE}")
    after = "" if params.after is None else check_name("after", params.after)
    store, tenant_id, purpose = service.store, request.tenant_id, params.purpose

    def found() -> list[Cursor]:
        if params.name is None:
            kept = store.cursors_after(tenant_id, purpose, after, params.limit)
        else:
            one = store.cursor(tenant_id, purpose, check_name("name", params.name))
            kept = [] if one is None else [one]
        return [_shown(service, request, one) for one in kept]

    return CursorsAnswer(await service.run_for(request.tenant_id, found))


async def put_cursor(service: Service, request: Request, body: CursorBody) -> CursorAnswer:
    """Make or move a cursor: backwards only by a reset, under a lost lease never."""
    check_name("name", body.name)
    check_position("position", body.position)
    _check_known(body, service.serving.cursor_query_bytes)
    lease = None if body.lease is None else _own(request, body.lease)
    store, at_most = service.store, service.serving.tenant_cursors

    def put() -> Cursor:
        cursor = Cursor(
            tenant_id=request.tenant_id,
            purpose=body.purpose,
            name=body.name,
            position=body.position,
            log_id=body.log_id,
            epoch=body.epoch,
            tip=_kept_tip(service, request, body),
            query=body.query,
        )
        if not store.cursor_room(request.tenant_id, body.purpose, body.name, at_most):
            raise over("tenant_cursors", at_most, at_most + 1)
        if body.only_new:
            cursor = store.add_cursor(cursor)
        else:
            store.put_cursor(cursor, lease=lease, reset=body.reset)
        return _shown(service, request, cursor)

    return CursorAnswer(await service.run_for(request.tenant_id, put))


def _check_known(body: CursorBody, query_bytes: int) -> None:
    """Refuse what no cursor of a log of ours says: a log has a UUID, its epochs begin with 1."""
    try:
        uuid.UUID(body.log_id)
    except ValueError:
        raise bad("log_id", "must be the id of a log") from None
    if not 1 <= body.epoch <= _EPOCH_MAX:
        raise bad("epoch", "must be the epoch of a log")
    if body.tip:
        check_name("tip", body.tip)
    if (size := len(body.query.encode())) > query_bytes:
        raise over("cursor_query_bytes", query_bytes, size)
    if not body.query.isprintable():
        raise bad("query", "must be printable text")


def _kept_tip(service: Service, request: Request, body: CursorBody) -> str:
    """Return the id that a tip stands for, if it is what the caller was shown at the position.

    Whoever might store any other, and have it shown as a mark, could ask whether an id that they
    have guessed is another tenant's.
    """
    if not body.tip:
        return ""
    tenant_id, position, tip = request.tenant_id, body.position, body.tip
    event_id = service.store.event_id_at(position)
    if event_id is not None and tip == service.mark(event_id, tenant_id, position):
        return event_id
    if request.caller.tenant_id == EVERY_TENANT or _sees(service, request, tip, position):
        return tip
    msg = "is not what stands at that position: the log may have been restored or replaced"
    raise bad("tip", msg)


def _shown(service: Service, request: Request, cursor: Cursor) -> Cursor:
    """Return a cursor without the id of a foreign event."""
    tip, position = cursor.tip, cursor.position
    if not tip or request.caller.tenant_id == EVERY_TENANT:
        return cursor
    if _sees(service, request, tip, position):
        return cursor
    mark = service.mark(tip, request.tenant_id, position)
    return msgspec.structs.replace(cursor, tip=mark)


def _sees(service: Service, request: Request, event_id: str, position: int) -> bool:
    """Tell whether the caller may see an event that is its own, at that very position."""
    own = service.store.event(request.tenant_id, event_id)
    return own is not None and own.position == position and request.caller.sees(own.event_type)


class SubscriptionParams(msgspec.Struct, frozen=True):
    """Which durable subscriptions: those with a name after this one, at most so many."""

    after: str | None = None
    limit: int = _PAGE


async def subscriptions(
    service: Service, request: Request, params: SubscriptionParams
) -> SubscriptionsAnswer:
    """List durable subscriptions by name, page by page: go on with `after` = the last name."""
    if not 1 <= params.limit <= _PAGE:
        raise bad("limit", f"must be from 1 to {_PAGE}")
    after = "" if params.after is None else check_name("after", params.after)
    store, tenant_id = service.store, request.tenant_id
    return SubscriptionsAnswer(
        await service.run_for(tenant_id, status_page, store, tenant_id, after, params.limit)
    )


async def record_failure(service: Service, request: Request, body: FailureBody) -> Done:
    """Store the last error of a subscription, told by its owner; a lost lease stores nothing."""
    check_name("name", body.name)
    if not 1 <= body.failures <= _EPOCH_MAX:
        raise bad("failures", "must be a whole number from 1")
    lease = _own(request, body.lease)
    if lease.name != lease_name(body.name):
        raise bad("lease", "is not that of the subscription")
    act, error = service.store.record_failure, kept_reason(body.error)
    await service.run_for(request.tenant_id, act, lease, body.name, body.failures, error)
    return Done()


async def claim(service: Service, request: Request, body: LeaseBody) -> LeaseAnswer:
    """Claim the right to do a named thing for a while."""
    for name in ("name", "owner"):
        check_name(name, getattr(body, name))
    _check_seconds(body.seconds)
    store, tenant_id, at_most = service.store, request.tenant_id, service.serving.tenant_leases

    def claimed() -> Lease | None:
        if not store.lease_room(tenant_id, body.name, at_most):
            raise over("tenant_leases", at_most, at_most + 1)
        return store.claim_lease(tenant_id, body.name, body.owner, body.seconds)

    return LeaseAnswer(await service.run_for(tenant_id, claimed))


async def renew(service: Service, request: Request, body: RenewBody) -> RenewAnswer:
    """Keep a lease for longer, if it is still the caller's."""
    _check_seconds(body.seconds)
    lease = _own(request, body.lease)
    renewed = service.store.renew_lease
    return RenewAnswer(await service.run_for(lease.tenant_id, renewed, lease, body.seconds))


async def release(service: Service, request: Request, body: ReleaseBody) -> Done:
    """Give a lease back."""
    lease = _own(request, body.lease)
    await service.run_for(lease.tenant_id, service.store.release_lease, lease)
    return Done()


def _own(request: Request, lease: Lease) -> Lease:
    check_position("lease.token", lease.token)
    if lease.tenant_id != request.tenant_id:
        raise Forbidden("this lease is of another tenant")
    return lease


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= _LEASE_MAX_S:
        raise bad("seconds", f"must be above 0 and at most {_LEASE_MAX_S:g}")

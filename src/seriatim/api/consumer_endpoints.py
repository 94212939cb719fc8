"""Consumers over HTTP: cursors that move only forward, and leases that one owner holds."""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec

from seriatim.api.http import HttpRequest
from seriatim.api.service import Service
from seriatim.core.error_summary import sanitize_reason
from seriatim.core.errors import Forbidden
from seriatim.core.limits import limit_error
from seriatim.core.tenants import ALL_TENANTS
from seriatim.log.arguments import check_name, check_position, invalid_argument
from seriatim.log.subscription import read_subscription_statuses
from seriatim.store.port import Cursor, Lease, make_lease_name
from seriatim.wire.messages import (
    CursorBody,
    CursorResponse,
    CursorsResponse,
    DoneResponse,
    FailureBody,
    LeaseBody,
    LeaseResponse,
    ReleaseBody,
    RenewBody,
    RenewResponse,
    SubscriptionsResponse,
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


async def list_cursors(
    service: Service, request: HttpRequest, params: CursorParams
) -> CursorsResponse:
    """Return how far consumers have come, page by page: go on with `after` = the last name."""
    if not 1 <= params.limit <= _PAGE:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE}")
    after = "" if params.after is None else check_name("after", params.after)
    store, tenant_id, purpose = service.store, request.tenant_id, params.purpose

    def found() -> list[Cursor]:
        if params.name is None:
            kept = store.cursors_after(tenant_id, purpose, after, params.limit)
        else:
            one = store.cursor(tenant_id, purpose, check_name("name", params.name))
            kept = [] if one is None else [one]
        return [_shown(service, request, one) for one in kept]

    return CursorsResponse(await service.run_for_tenant(request.tenant_id, found))


async def put_cursor(service: Service, request: HttpRequest, body: CursorBody) -> CursorResponse:
    """Make or move a cursor: backwards only by a reset, under a lost lease never."""
    check_name("name", body.name)
    check_position("position", body.position)
    _check_known(body, service.settings.cursor_query_bytes)
    lease = None if body.lease is None else _own(request, body.lease)
    store, at_most = service.store, service.settings.tenant_cursors

    def put() -> Cursor:
        cursor = Cursor(
            tenant_id=request.tenant_id,
            purpose=body.purpose,
            name=body.name,
            position=body.position,
            log_id=body.log_id,
            epoch=body.epoch,
            last_event_id=_kept_tip(service, request, body),
            query=body.query,
        )
        if not store.can_add_cursor(request.tenant_id, body.purpose, body.name, at_most):
            raise limit_error("tenant_cursors", at_most, at_most + 1)
        if body.only_new:
            cursor = store.add_cursor(cursor)
        else:
            store.put_cursor(cursor, lease=lease, reset=body.reset)
        return _shown(service, request, cursor)

    return CursorResponse(await service.run_for_tenant(request.tenant_id, put))


def _check_known(body: CursorBody, query_bytes: int) -> None:
    """Refuse what no cursor of a log of ours says: a log has a UUID, its epochs begin with 1."""
    try:
        uuid.UUID(body.log_id)
    except ValueError:
        raise invalid_argument("log_id", "must be the id of a log") from None
    if not 1 <= body.epoch <= _EPOCH_MAX:
        raise invalid_argument("epoch", "must be the epoch of a log")
    if body.tip:
        check_name("tip", body.tip)
    if (size := len(body.query.encode())) > query_bytes:
        raise limit_error("cursor_query_bytes", query_bytes, size)
    if not body.query.isprintable():
        raise invalid_argument("query", "must be printable text")


def _kept_tip(service: Service, request: HttpRequest, body: CursorBody) -> str:
    """Return the id that a tip stands for, if it is what the caller was shown at the position.

    Whoever might store any other, and have it shown as a mark, could ask whether an id that they
    have guessed is another tenant's.
    """
    if not body.tip:
        return ""
    tenant_id, position, tip = request.tenant_id, body.position, body.tip
    event_id = service.store.event_id_at(position)
    if event_id is not None and tip == service.opaque_event_id(event_id, tenant_id, position):
        return event_id
    if request.caller.tenant_id == ALL_TENANTS or _sees(service, request, tip, position):
        return tip
    msg = "is not what stands at that position: the log may have been restored or replaced"
    raise invalid_argument("tip", msg)


def _shown(service: Service, request: HttpRequest, cursor: Cursor) -> Cursor:
    """Return a cursor without the id of a foreign event."""
    tip, position = cursor.last_event_id, cursor.position
    if not tip or request.caller.tenant_id == ALL_TENANTS:
        return cursor
    if _sees(service, request, tip, position):
        return cursor
    mark = service.opaque_event_id(tip, request.tenant_id, position)
    return msgspec.structs.replace(cursor, last_event_id=mark)


def _sees(service: Service, request: HttpRequest, event_id: str, position: int) -> bool:
    """Tell whether the caller may see an event that is its own, at that very position."""
    own = service.store.event(request.tenant_id, event_id)
    return own is not None and own.position == position and request.caller.can_read(own.event_type)


class SubscriptionParams(msgspec.Struct, frozen=True):
    """Which durable subscriptions: those with a name after this one, at most so many."""

    after: str | None = None
    limit: int = _PAGE


async def list_subscriptions(
    service: Service, request: HttpRequest, params: SubscriptionParams
) -> SubscriptionsResponse:
    """List durable subscriptions by name, page by page: go on with `after` = the last name."""
    if not 1 <= params.limit <= _PAGE:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE}")
    after = "" if params.after is None else check_name("after", params.after)
    store, tenant_id = service.store, request.tenant_id
    return SubscriptionsResponse(
        await service.run_for_tenant(
            tenant_id, read_subscription_statuses, store, tenant_id, after, params.limit
        )
    )


async def record_failure(service: Service, request: HttpRequest, body: FailureBody) -> DoneResponse:
    """Store the last error of a subscription, told by its owner; a lost lease stores nothing."""
    check_name("name", body.name)
    if not 1 <= body.failures <= _EPOCH_MAX:
        raise invalid_argument("failures", "must be a whole number from 1")
    lease = _own(request, body.lease)
    if lease.name != make_lease_name(body.name):
        raise invalid_argument("lease", "is not that of the subscription")
    act, error = service.store.record_failure, sanitize_reason(body.error)
    await service.run_for_tenant(request.tenant_id, act, lease, body.name, body.failures, error)
    return DoneResponse()


async def claim_lease(service: Service, request: HttpRequest, body: LeaseBody) -> LeaseResponse:
    """Claim the right to do a named thing for a while."""
    for name in ("name", "owner"):
        check_name(name, getattr(body, name))
    _check_seconds(body.seconds)
    store, tenant_id, at_most = service.store, request.tenant_id, service.settings.tenant_leases

    def claimed() -> Lease | None:
        if not store.reserve_lease_slot(tenant_id, body.name, at_most):
            raise limit_error("tenant_leases", at_most, at_most + 1)
        return store.claim_lease(tenant_id, body.name, body.owner, body.seconds)

    return LeaseResponse(await service.run_for_tenant(tenant_id, claimed))


async def renew_lease(service: Service, request: HttpRequest, body: RenewBody) -> RenewResponse:
    """Keep a lease for longer, if it is still the caller's."""
    _check_seconds(body.seconds)
    lease = _own(request, body.lease)
    renewed = service.store.renew_lease
    return RenewResponse(
        await service.run_for_tenant(lease.tenant_id, renewed, lease, body.seconds)
    )


async def release_lease(service: Service, request: HttpRequest, body: ReleaseBody) -> DoneResponse:
    """Give a lease back."""
    lease = _own(request, body.lease)
    await service.run_for_tenant(lease.tenant_id, service.store.release_lease, lease)
    return DoneResponse()


def _own(request: HttpRequest, lease: Lease) -> Lease:
    check_position("lease.token", lease.token)
    if lease.tenant_id != request.tenant_id:
        raise Forbidden("this lease is of another tenant")
    return lease


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= _LEASE_MAX_S:
        raise invalid_argument("seconds", f"must be above 0 and at most {_LEASE_MAX_S:g}")

"""Endpoints for operators: handlers, dead letters, declarations, the epoch, old commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import msgspec

from seriatim.api.http import HttpRequest
from seriatim.api.service import VERSION, Service
from seriatim.core.errors import NotFound
from seriatim.core.tenants import ALL_TENANTS
from seriatim.delivery.entries import (
    RETRYABLE_STATUSES,
    UNFINISHED_STATUSES,
    DeclaredHandler,
    Entry,
    EntryFilter,
    HandlerLog,
    StatusCount,
    format_stop_reason,
)
from seriatim.delivery.registry import Registry
from seriatim.log.arguments import check_position, invalid_argument
from seriatim.wire.messages import (
    CountResponse,
    DeclarationsResponse,
    DeclareBody,
    DoctorResponse,
    LogInfo,
    PurgeBody,
    TokenInfo,
)

T = TypeVar("T")
_PAGE_MAX = 1000
_HOURS_MAX = 1e6  # about a century


class RegistryParams(msgspec.Struct, frozen=True):
    """Whether to count finished events too, which takes long if there are many."""

    finished: bool = False


class RegistryResponse(msgspec.Struct, frozen=True):
    """The handlers, their events by status, and the logs that they have processed."""

    handlers: list[DeclaredHandler]
    counts: list[StatusCount]
    logs: list[HandlerLog]


class EntryParams(msgspec.Struct, frozen=True):
    """Dead letters by handler, event, type or stream, after a position."""

    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    after: int = -1
    limit: int = 100


class EntriesResponse(msgspec.Struct, frozen=True):
    """Dead letters in the order of the log."""

    entries: list[Entry]


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """One event to retry, or all events that match the filters."""

    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    all: bool = False


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """One event to skip, or all events that match the filters, and the reason."""

    reason: str
    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    all: bool = False


async def _run_in_registry(
    service: Service, request: HttpRequest, act: Callable[[Registry], T]
) -> T:
    def run() -> T:
        with closing(_open_registry(service)) as registry:
            return act(registry)

    return await service.run_for_tenant(request.tenant_id, run)


def _open_registry(service: Service) -> Registry:
    try:
        return service.registry()
    except NotFound:  # its message contains the address of the database
        raise NotFound("there is no registry next to this log") from None


async def get_registry(
    service: Service, request: HttpRequest, params: RegistryParams
) -> RegistryResponse:
    """Count the events of the tenant by handler and status."""

    def count(registry: Registry) -> RegistryResponse:
        counts = registry.counts(finished=params.finished, tenant_id=request.tenant_id)
        handlers = [_redact_handler(registry, request, one) for one in registry.handlers()]
        logs = [one for one in registry.logs() if one.tenant_id == request.tenant_id]
        return RegistryResponse(handlers, counts, logs)

    return await _run_in_registry(service, request, count)


def _redact_handler(
    registry: Registry, request: HttpRequest, handler: DeclaredHandler
) -> DeclaredHandler:
    """Remove the reason why a handler does not run, which may name another tenant's event.

    A handler that was stopped by an event of another tenant is reported as paused.
    """
    if _is_for_all_tenants(request):
        return handler
    own = handler.status != "stopped" or _is_stopped_by(registry, handler, request.tenant_id)
    status = handler.status if own else "paused"
    return msgspec.structs.replace(handler, status=status, reason="")


def _is_stopped_by(registry: Registry, handler: DeclaredHandler, tenant_id: str) -> bool:
    """Return whether an event of this tenant stopped a handler."""
    begin, end = format_stop_reason(tenant_id, "\0").split("\0")
    event_id = handler.reason.removeprefix(begin).partition(end)[0]
    if not handler.reason.startswith(format_stop_reason(tenant_id, event_id)):
        return False
    entry_filter = EntryFilter(handler=handler.name, tenant_id=tenant_id, event_id=event_id)
    return bool(registry.entries(entry_filter, 1))


def _is_for_all_tenants(request: HttpRequest) -> bool:
    return request.caller.tenant_id == ALL_TENANTS


async def list_dead_letters(
    service: Service, request: HttpRequest, params: EntryParams
) -> EntriesResponse:
    """List dead letters."""
    if not 1 <= params.limit <= _PAGE_MAX:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE_MAX}")
    check_position("after", params.after + 1)  # -1 includes entries without an event, which have 0
    entry_filter = EntryFilter(
        handler=params.handler,
        tenant_id=request.tenant_id,
        event_id=params.event_id,
        event_type=params.event_type,
        stream_type=params.stream_type,
        stream_id=params.stream_id,
        status="dead",
        after=params.after,
    )
    return EntriesResponse(
        await _run_in_registry(
            service, request, lambda registry: registry.entries(entry_filter, params.limit)
        )
    )


def _make_filter(request: HttpRequest, body: RetryBody | SkipBody, status: Any) -> EntryFilter:
    if (body.event_id is None) == (not body.all):
        raise invalid_argument("event_id", "name one event, or set all to true")
    return EntryFilter(
        handler=body.handler,
        tenant_id=request.tenant_id,
        event_id=body.event_id,
        event_type=body.event_type,
        status=status,
    )


async def retry_dead_letters(
    service: Service, request: HttpRequest, body: RetryBody
) -> CountResponse:
    """Retry failed, dead and unknown events at once."""
    entry_filter = _make_filter(request, body, RETRYABLE_STATUSES)
    restart = _is_for_all_tenants(request)
    return CountResponse(
        await _run_in_registry(
            service, request, lambda registry: registry.retry(entry_filter, restart=restart)
        )
    )


async def skip_events(service: Service, request: HttpRequest, body: SkipBody) -> CountResponse:
    """Mark unfinished events as done, with a reason that is stored."""
    entry_filter = _make_filter(request, body, UNFINISHED_STATUSES)
    restart = _is_for_all_tenants(request)
    return CountResponse(
        await _run_in_registry(
            service,
            request,
            lambda registry: registry.skip(entry_filter, body.reason, restart=restart),
        )
    )


# -- the log


class NoParams(msgspec.Struct, frozen=True):
    """No parameters."""


async def get_token(service: Service, request: HttpRequest, params: NoParams) -> TokenInfo:
    """Return the subject, tenant and rights of the caller's token."""
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
    """List the declared stream kinds, event types and payload indexes."""
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
    """Declare stream kinds, event types and payload indexes, for all processes."""
    await service.run(service.log.declare, *body.kinds, *body.types, *body.indexes)
    return await get_declarations(service, request, NoParams())


async def raise_epoch(service: Service, request: HttpRequest, body: NoParams) -> LogInfo:
    """Raise the epoch after a restore or a promotion, so that consumers of the old one stop."""
    del body
    identity = await service.run(service.log.store.raise_epoch)
    head = await service.run(service.log.head)
    return LogInfo(identity.log_id, identity.epoch, head, request.tenant_id, VERSION)


async def purge_commands(service: Service, request: HttpRequest, body: PurgeBody) -> CountResponse:
    """Delete command records older than this, at least a day."""
    del request
    if body.older_than_hours > _HOURS_MAX:
        raise invalid_argument("older_than_hours", f"must be at most {_HOURS_MAX:g}")
    return CountResponse(await service.run(service.purge, body.older_than_hours))


async def run_doctor(service: Service, request: HttpRequest, params: NoParams) -> DoctorResponse:
    """Check the database of the log: schema version, grants, and settings that risk data loss.

    The findings are those of `seriatim doctor`, without paths of files. They may be
    half a minute old.
    """
    del params
    return DoctorResponse(await service.run_for_tenant(request.tenant_id, service.diagnose))

"""Delivery over HTTP: what handlers have done, and the dead letters that wait for people."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import msgspec

from seriatim.api.http import HttpRequest
from seriatim.api.service import Service
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
from seriatim.wire.messages import CountResponse

T = TypeVar("T")
_PAGE_MAX = 1000


class RegistryParams(msgspec.Struct, frozen=True):
    """Whether to count what is done as well, which takes a while when it is much."""

    finished: bool = False


class RegistryAnswer(msgspec.Struct, frozen=True):
    """The handlers, how many events each has in which status, and the log it has handled."""

    handlers: list[DeclaredHandler]
    counts: list[StatusCount]
    logs: list[HandlerLog]


class EntryParams(msgspec.Struct, frozen=True):
    """Which dead letters: of a handler, of a type, of a stream, behind a position."""

    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    after: int = -1
    limit: int = 100


class EntriesAnswer(msgspec.Struct, frozen=True):
    """Dead letters in the order of the log, each with its event."""

    entries: list[Entry]


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which event is tried again, or all that the filters leave."""

    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    all: bool = False


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which event is given up, or all that the filters leave, and why."""

    reason: str
    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    all: bool = False


async def _in_registry(service: Service, request: HttpRequest, act: Callable[[Registry], T]) -> T:
    def run() -> T:
        with closing(_opened(service)) as registry:
            return act(registry)

    return await service.run_for_tenant(request.tenant_id, run)


def _opened(service: Service) -> Registry:
    try:
        return service.registry()
    except NotFound:  # which says where it was looked for
        raise NotFound("there is no registry beside this log") from None


async def get_registry(
    service: Service, request: HttpRequest, params: RegistryParams
) -> RegistryAnswer:
    """Count a tenant's events by handler and status."""

    def counted(known: Registry) -> RegistryAnswer:
        counts = known.counts(finished=params.finished, tenant_id=request.tenant_id)
        handlers = [_shown(known, request, one) for one in known.handlers()]
        logs = [one for one in known.logs() if one.tenant_id == request.tenant_id]
        return RegistryAnswer(handlers, counts, logs)

    return await _in_registry(service, request, counted)


def _shown(registry: Registry, request: HttpRequest, handler: DeclaredHandler) -> DeclaredHandler:
    """Return a handler without why it does not run: that names an event, which may be foreign.

    Stopped by another tenant's event it looks as if somebody had paused it.
    """
    if _for_all(request):
        return handler
    ours = handler.status != "stopped" or _stopped_by(registry, handler, request.tenant_id)
    status = handler.status if ours else "paused"
    return msgspec.structs.replace(handler, status=status, reason="")


def _stopped_by(registry: Registry, handler: DeclaredHandler, tenant_id: str) -> bool:
    """Tell whether it was an event of this tenant that stopped a handler."""
    begin, end = format_stop_reason(tenant_id, "\0").split("\0")
    event_id = handler.reason.removeprefix(begin).partition(end)[0]
    if not handler.reason.startswith(format_stop_reason(tenant_id, event_id)):
        return False
    asked = EntryFilter(handler=handler.name, tenant_id=tenant_id, event_id=event_id)
    return bool(registry.entries(asked, 1))


def _for_all(request: HttpRequest) -> bool:
    return request.caller.tenant_id == ALL_TENANTS


async def list_dead_letters(
    service: Service, request: HttpRequest, params: EntryParams
) -> EntriesAnswer:
    """List dead letters."""
    if not 1 <= params.limit <= _PAGE_MAX:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE_MAX}")
    check_position("after", params.after + 1)  # what is no event has 0, and -1 is before it
    asked = EntryFilter(
        handler=params.handler,
        tenant_id=request.tenant_id,
        event_id=params.event_id,
        event_type=params.event_type,
        stream_type=params.stream_type,
        stream_id=params.stream_id,
        status="dead",
        after=params.after,
    )
    return EntriesAnswer(
        await _in_registry(service, request, lambda known: known.entries(asked, params.limit))
    )


def _asked(request: HttpRequest, body: RetryBody | SkipBody, status: Any) -> EntryFilter:
    if (body.event_id is None) == (not body.all):
        raise invalid_argument("event_id", "name one event, or say all")
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
    """Let failed, dead and unknown events be tried again at once."""
    asked = _asked(request, body, RETRYABLE_STATUSES)
    restart = _for_all(request)
    return CountResponse(
        await _in_registry(service, request, lambda known: known.retry(asked, restart=restart))
    )


async def skip_events(service: Service, request: HttpRequest, body: SkipBody) -> CountResponse:
    """Count unfinished events as done, for a reason that is kept."""
    asked = _asked(request, body, UNFINISHED_STATUSES)
    restart = _for_all(request)
    return CountResponse(
        await _in_registry(
            service, request, lambda known: known.skip(asked, body.reason, restart=restart)
        )
    )

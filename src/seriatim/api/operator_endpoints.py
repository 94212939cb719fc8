"""Endpoints for operators: the journal, events of handlers, declarations, epoch, commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from seriatim.api.http import HttpRequest, page_bound
from seriatim.api.service import VERSION, Service
from seriatim.core.errors import NotFound
from seriatim.core.operation import ActionName, Operator, OperatorAction
from seriatim.core.query import Query
from seriatim.core.tenants import ALL_TENANTS
from seriatim.delivery.entries import (
    RETRYABLE_STATUSES,
    UNFINISHED_STATUSES,
    DeclaredHandler,
    Entry,
    EntryFilter,
    HandlerCursor,
    HandlerLog,
    StatusCount,
    format_stop_reason,
)
from seriatim.delivery.registry import Registry
from seriatim.log.arguments import check_name, check_position, invalid_argument
from seriatim.log.operator_journal import (
    JOURNAL_PAGE_MAX,
    check_expected_count,
    check_reason,
    read_journal,
    record_action,
)
from seriatim.log.subscriptions import measure_lag
from seriatim.wire.messages import (
    CountResponse,
    DeclarationsResponse,
    DeclareBody,
    DoctorResponse,
    LogInfo,
    LogSizeResponse,
    OperationsResponse,
    PurgeBody,
    StorageResponse,
    TokenInfo,
)

T = TypeVar("T")
_PAGE_MAX = 1000
_HOURS_MAX = 1e6  # about a century


class RegistryParams(msgspec.Struct, frozen=True):
    """Whether to count finished events too, which takes long if there are many."""

    finished: bool = False


class HandlerProgress(HandlerCursor, frozen=True, kw_only=True):
    """The cursor of a handler's workers, and its lag.

    `lag_events` is the number of positions from the tenant's first event after the cursor to the
    head, `lag_seconds` the age of that event; both are null for a topic. The cursor of a worker
    that reads every tenant has the tenant `*`.
    """

    lag_events: int | None = None
    lag_seconds: float | None = None


class RegistryResponse(msgspec.Struct, frozen=True):
    """The handlers, their events by status, the logs that they have processed, and their cursors.

    Only `seriatim work` has cursors here; other consumers keep their own.
    """

    handlers: list[DeclaredHandler]
    counts: list[StatusCount]
    logs: list[HandlerLog]
    cursors: list[HandlerProgress]


class SelectionParams(msgspec.Struct, frozen=True):
    """Events of handlers by handler, event, type or stream."""

    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    stream_type: str | None = None
    stream_id: str | None = None


class EntryParams(SelectionParams, frozen=True):
    """Dead letters by handler, event, type or stream, after a position."""

    after: int = -1
    limit: Annotated[int, page_bound(_PAGE_MAX)] = 100


class EntriesResponse(msgspec.Struct, frozen=True):
    """Entries of handlers, in the order of the log, or by handler for one event."""

    entries: list[Entry]


EntryStatus = Literal["claimed", "failed", "blocked", "dead", "unknown"]


class CountParams(SelectionParams, frozen=True):
    """Unfinished events by handler, status, event, type or stream."""

    status: EntryStatus | None = None


class StatusParams(CountParams, frozen=True):
    """Unfinished events by handler, status, event, type or stream, after a position."""

    after: int = -1
    limit: Annotated[int, page_bound(_PAGE_MAX)] = 100


class EventEntryParams(msgspec.Struct, frozen=True):
    """One event."""

    event_id: str


class EntryCountResponse(msgspec.Struct, frozen=True):
    """The number of events that match, in all and by handler and status.

    `retryable` is the number that a retry affects: those that are failed, dead or unknown.
    """

    count: int
    retryable: int
    counts: list[StatusCount]


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """One event to retry, or all events that match the filters.

    `all` needs `expected_count`, the number that `GET /v1/registry/count` returns as `retryable`
    for the same filters, and a `reason`.
    """

    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    all: bool = False
    stream_type: str | None = None
    stream_id: str | None = None
    status: Literal["failed", "dead", "unknown"] | None = None
    expected_count: int | None = None
    reason: str = ""


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """One event to skip, or all events that match the filters, and the reason.

    `all` needs `expected_count`, the number that `GET /v1/registry/count` returns as `count` for
    the same filters.
    """

    reason: str
    handler: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    all: bool = False
    stream_type: str | None = None
    stream_id: str | None = None
    status: EntryStatus | None = None
    expected_count: int | None = None


class OperationParams(msgspec.Struct, frozen=True):
    """Actions before a position, newest first; those of one tenant, or `*` for those on all."""

    tenant_id: str | None = None
    before: int | None = None
    limit: Annotated[int, page_bound(JOURNAL_PAGE_MAX)] = 100


def record_request(
    service: Service,
    request: HttpRequest,
    action: ActionName,
    target: dict[str, Any],
    *,
    count: int = 1,
    reason: str = "",
    tenant_id: str | None = None,
) -> bool:
    """Record an action that a request has performed; return whether it could be recorded.

    The tenant is that of the request unless another is given. It blocks: call it in a thread.
    """
    return record_action(
        service.log,
        OperatorAction(
            action=action,
            operator=make_operator(request),
            tenant_id=request.tenant_id if tenant_id is None else tenant_id,
            target={name: value for name, value in target.items() if value is not None},
            count=count,
            reason=reason,
        ),
    )


def make_operator(request: HttpRequest) -> Operator:
    """Return the caller of a request as the operator of an action."""
    confined = not _is_for_all_tenants(request)
    return Operator(request.caller.subject, "http", confined=confined)


async def list_operations(
    service: Service, request: HttpRequest, params: OperationParams
) -> OperationsResponse:
    """List the actions of operators, newest first.

    A token for one tenant sees the actions that affect that tenant alone.
    """
    tenant_id = params.tenant_id
    if not _is_for_all_tenants(request):
        tenant_id = request.caller.resolve_tenant(tenant_id)
    read = partial(
        read_journal, service.log, tenant_id=tenant_id, before=params.before, limit=params.limit
    )
    return OperationsResponse(await service.run_for_tenant(request.tenant_id, read))


async def run_in_registry(
    service: Service, request: HttpRequest, operation: Callable[[Registry], T]
) -> T:
    """Act on the registry next to the log, in a thread of the tenant.

    Raises:
        NotFound: There is no registry.
    """

    def run() -> T:
        with closing(_open_registry(service)) as registry:
            return operation(registry)

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
        handlers = [_redact_handler(registry, request, handler) for handler in registry.handlers()]
        logs = [log for log in registry.logs() if log.tenant_id == request.tenant_id]
        return RegistryResponse(handlers, counts, logs, _read_progress(service, request, registry))

    return await run_in_registry(service, request, count)


def _read_progress(
    service: Service, request: HttpRequest, registry: Registry
) -> list[HandlerProgress]:
    """Return the cursors that concern the tenant, with their lag.

    Cursors of an earlier log are left out: their workers cannot use them.
    """
    tenant_id = request.tenant_id
    log_id, head = service.log.identity().log_id, service.log.head()
    progress = []
    for cursor in registry.cursors():
        fields = msgspec.structs.asdict(cursor)
        if cursor.log_id == log_id and cursor.tenant_id in (tenant_id, ALL_TENANTS):
            events, seconds = measure_lag(
                service.store, tenant_id, Query(), cursor.position or 0, head
            )
            progress.append(HandlerProgress(**fields, lag_events=events, lag_seconds=seconds))
        elif not cursor.log_id and (cursor.tenant_id == tenant_id or _is_for_all_tenants(request)):
            progress.append(HandlerProgress(**fields))
    return progress


def _redact_handler(
    registry: Registry, request: HttpRequest, handler: DeclaredHandler
) -> DeclaredHandler:
    """Remove the reason why a handler does not run, which may name another tenant's event.

    A handler that was stopped by an event of another tenant is reported as paused.
    """
    if _is_for_all_tenants(request):
        return handler
    is_visible = handler.status != "stopped" or _is_stopped_by(registry, handler, request.tenant_id)
    status = handler.status if is_visible else "paused"
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
        await run_in_registry(
            service, request, lambda registry: registry.entries(entry_filter, params.limit)
        )
    )


async def list_entries(
    service: Service, request: HttpRequest, params: StatusParams
) -> EntriesResponse:
    """List unfinished events of handlers.

    Each has its status, its number of attempts, the time of the first and of the last one, and
    the last error. The registry does not store earlier errors.
    """
    if not 1 <= params.limit <= _PAGE_MAX:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE_MAX}")
    check_position("after", params.after + 1)
    selection = _select_unfinished(request, params, params.after)
    read = run_in_registry(
        service, request, lambda registry: registry.entries(selection, params.limit)
    )
    return EntriesResponse(await read)


async def list_event_entries(
    service: Service, request: HttpRequest, params: EventEntryParams
) -> EntriesResponse:
    """List the handlers that have claimed or finished one event, with its status for each.

    Entries that were pruned are not listed.
    """
    event_id, tenant_id = check_name("event_id", params.event_id), request.tenant_id
    read = run_in_registry(
        service, request, lambda registry: registry.event_entries(tenant_id, event_id)
    )
    return EntriesResponse(await read)


async def count_entries(
    service: Service, request: HttpRequest, params: CountParams
) -> EntryCountResponse:
    """Count unfinished events of handlers, before an action on all of them."""
    selection = _select_unfinished(request, params)
    counts = await run_in_registry(
        service, request, lambda registry: registry.count_entries(selection)
    )
    retryable = sum(
        entry_count.count for entry_count in counts if entry_count.status in RETRYABLE_STATUSES
    )
    return EntryCountResponse(sum(entry_count.count for entry_count in counts), retryable, counts)


def _select_unfinished(
    request: HttpRequest, params: StatusParams | CountParams, after: int = -1
) -> EntryFilter:
    return EntryFilter(
        handler=params.handler,
        tenant_id=request.tenant_id,
        event_id=params.event_id,
        event_type=params.event_type,
        stream_type=params.stream_type,
        stream_id=params.stream_id,
        status=params.status or UNFINISHED_STATUSES,
        after=after,
    )


def _make_filter(
    request: HttpRequest, body: RetryBody | SkipBody, statuses: tuple[str, ...]
) -> EntryFilter:
    """Make the filter of an action; all matching events need an expected count and a reason."""
    if (body.event_id is None) == (not body.all):
        raise invalid_argument("event_id", "name one event, or set all to true")
    if body.all and body.expected_count is None:
        msg = "is required with all: the number of events to affect, as GET /v1/registry/count says"
        raise invalid_argument("expected_count", msg)
    check_reason(body.reason, required=body.all)
    return EntryFilter(
        handler=body.handler,
        tenant_id=request.tenant_id,
        event_id=body.event_id,
        event_type=body.event_type,
        stream_type=body.stream_type,
        stream_id=body.stream_id,
        status=statuses if body.status is None else (body.status,),
    )


async def retry_dead_letters(
    service: Service, request: HttpRequest, body: RetryBody
) -> CountResponse:
    """Retry failed, dead and unknown events at once.

    A request for all that match is refused with `conflict` if their number is not `expected_count`.
    """
    selection = _make_filter(request, body, RETRYABLE_STATUSES)
    restart = _is_for_all_tenants(request)
    return await _apply(
        service,
        request,
        body,
        selection,
        lambda registry: registry.retry(selection, restart=restart),
    )


async def skip_events(service: Service, request: HttpRequest, body: SkipBody) -> CountResponse:
    """Mark unfinished events as done, with a reason that is stored.

    A request for all that match is refused with `conflict` if their number is not `expected_count`.
    """
    selection = _make_filter(request, body, UNFINISHED_STATUSES)
    restart = _is_for_all_tenants(request)
    return await _apply(
        service,
        request,
        body,
        selection,
        lambda registry: registry.skip(selection, body.reason, restart=restart),
    )


async def _apply(
    service: Service,
    request: HttpRequest,
    body: RetryBody | SkipBody,
    selection: EntryFilter,
    operation: Callable[[Registry], int],
) -> CountResponse:
    """Check the expected count, act on the selected events, and record the action."""
    action: ActionName = "events_retried" if isinstance(body, RetryBody) else "events_skipped"

    def run(registry: Registry) -> CountResponse:
        if body.expected_count is not None:
            actual = sum(entry_count.count for entry_count in registry.count_entries(selection))
            check_expected_count(body.expected_count, actual)
        count = operation(registry)
        # An action that affected nothing is not recorded, which counts as success.
        recorded = not count or record_request(
            service, request, action, selection.describe(), count=count, reason=body.reason
        )
        return CountResponse(count, recorded)

    return await run_in_registry(service, request, run)


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
    """Delete command records that are older than a number of hours, at least 24."""
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


async def get_storage(service: Service, request: HttpRequest, params: NoParams) -> StorageResponse:
    """List publishers with their last checkpoints, and archives with their latest segments.

    Only the places that `seriatim serve` was started with are listed (`--checkpoints`,
    `--archive`). The result may be half a minute old.
    """
    del params
    return await service.run_for_tenant(request.tenant_id, service.inspect_storage)


async def get_log_size(service: Service, request: HttpRequest, params: NoParams) -> LogSizeResponse:
    """Return the size of the log, of all tenants, from the catalogue of its database."""
    del params
    size = await service.run_for_tenant(request.tenant_id, service.store.size)
    return LogSizeResponse(size.bytes, size.index_bytes)

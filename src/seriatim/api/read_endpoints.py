"""Endpoints for reads: pages by position, single events, streams, queries, and long polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, cast

import msgspec

from seriatim.access.rights import Caller
from seriatim.api.http import HttpRequest, HttpResponse, page_bound
from seriatim.api.service import VERSION, Service
from seriatim.core.errors import NotFound
from seriatim.core.event import EventRecord
from seriatim.core.limits import MIB
from seriatim.core.query import Filter, Query, check_query
from seriatim.core.query_plan import plan_query
from seriatim.core.request import check_stream_ref
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import Log
from seriatim.log.arguments import check_name, check_position, invalid_argument, make_read_spec
from seriatim.log.batches import estimate_memory, read_first_records
from seriatim.log.lookup import find_stored_by_command, find_stored_by_key
from seriatim.store.port import EVENT_TYPES_MAX, ReadSpec, ServiceStore, StoredAppend
from seriatim.wire.messages import (
    EventTypesResponse,
    LastEventIdResponse,
    LastRecordsResponse,
    LogInfo,
    PageResponse,
    QueryAccess,
    QueryBody,
    QueryResponse,
    RecordResponse,
    RecordsResponse,
    SelectBody,
    StoredReceipt,
    StreamsBody,
    StreamsResponse,
    VersionBody,
    VersionResponse,
)
from seriatim.wire.records import to_wire_record, to_wire_records

STREAMS_MAX = 100  # of one request for last events
RESPONSE_BYTES = 8 * MIB  # of payloads in one response; the last event may exceed it
_FIRST_EVENTS = 4  # of a query: read in the snapshot that determines the context's version
READ_BYTES = 16 * MIB  # of memory to build a response; two fit into the budget for work
_encode = msgspec.json.Encoder().encode


class HeadWaitParams(msgspec.Struct, frozen=True):
    """Wait at most `wait_s` seconds until the head is after a position."""

    after: int | None = None
    wait_s: float = 0.0


class ReadParams(msgspec.Struct, frozen=True):
    """The events of a page: `after` bounds are exclusive, `until` bounds inclusive.

    `types` are exact types, or patterns such as `seat.*`. With `newest_first` a page starts at
    `until` and descends; the next page has `until` = `last_scanned` - 1.
    """

    after: int = 0
    until: int | None = None
    limit: int | None = None
    types: list[str] | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    since_seq: int | None = None
    app_id: str | None = None
    env_id: str | None = None
    occurred_after: str | None = None
    occurred_until: str | None = None
    recorded_after: str | None = None
    recorded_until: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor_id: str | None = None
    newest_first: bool = False
    scope: Literal["log", "traces", "aggregates"] = "log"
    wait_s: float = 0.0


class EventParams(msgspec.Struct, frozen=True):
    """One event by id."""

    event_id: str


class ReceiptParams(msgspec.Struct, frozen=True):
    """One append: by `idempotency_key` and producer, or by the `endpoint` and `key` of a command.

    The default actor of a command is the subject of the token.
    """

    idempotency_key: str | None = None
    producer_id: str | None = None
    actor: str | None = None
    endpoint: str | None = None
    key: str | None = None


class PositionParams(msgspec.Struct, frozen=True):
    """A position of the log."""

    position: int


class StreamsParams(msgspec.Struct, frozen=True):
    """Streams of a type, whose first event is after a position."""

    stream_type: str | None = None
    after: int = 0
    limit: int = 1000


class EventTypesParams(msgspec.Struct, frozen=True):
    """Event types whose names begin with a prefix and are greater than `after`."""

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, page_bound(EVENT_TYPES_MAX)] = EVENT_TYPES_MAX


async def get_log_info(service: Service, request: HttpRequest, params: HeadWaitParams) -> LogInfo:
    """Return the identity and the head of the log.

    With `after` and `wait_s`, wait until the head is after that position.
    """
    _check_wait(service, params.wait_s)
    head = await service.run_for_tenant(request.tenant_id, service.log.head)
    if params.after is not None and params.wait_s:
        check_position("after", params.after)
        head = await _wait_for_head(service, request, params.after, head, params.wait_s)
    identity = service.log.identity()
    return LogInfo(identity.log_id, identity.epoch, head, request.tenant_id, VERSION)


def _check_wait(service: Service, seconds: float) -> None:
    if not 0 <= seconds <= service.settings.wait_max_s:
        raise invalid_argument("wait_s", f"must be from 0 to {service.settings.wait_max_s:g}")


async def _wait_for_head(
    service: Service, request: HttpRequest, after: int, head: int, seconds: float
) -> int:
    """Wait until the head is after a position, and return the head."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while head <= after and not service.hub.stopped and (remaining := deadline - loop.time()) > 0:
        await service.hub.wait_for_head(after, remaining)
        await service.authenticate_again(request)  # the token may have been revoked meanwhile
        head = await service.run_for_tenant(request.tenant_id, service.log.head)
    return head


async def read_page(service: Service, request: HttpRequest, params: ReadParams) -> HttpResponse:
    """Read a page of events by position; with `wait_s`, wait for events if there are none."""
    log = service.view(request.tenant_id)
    types = request.caller.restrict_types(None if params.types is None else tuple(params.types))
    spec = make_read_spec(
        log.settings.limits,
        tenant_id=request.tenant_id,
        limit=log.settings.limits.page if params.limit is None else params.limit,
        scope=params.scope,
        after=params.after,
        until=params.until,
        stream=_parse_stream(params.stream_type, params.stream_id),
        since_seq=params.since_seq,
        types=types,
        app_id=params.app_id,
        env_id=params.env_id,
        occurred_after=params.occurred_after,
        occurred_until=params.occurred_until,
        recorded_after=params.recorded_after,
        recorded_until=params.recorded_until,
        correlation_id=params.correlation_id,
        causation_id=params.causation_id,
        actor_id=params.actor_id,
        newest_first=params.newest_first,
    )
    _check_wait(service, params.wait_s)
    if params.wait_s and params.newest_first:
        raise invalid_argument("wait_s", "waits for newer events: omit newest_first")
    result = await _build_response(service, request, partial(_read_encoded_page, log, spec))
    if params.wait_s and not result.count:
        result = await _poll(service, request, spec, result, params.wait_s)
    return HttpResponse(200, result.body)


class _EncodedPage(msgspec.Struct, frozen=True):
    """An encoded page: the number of its records, and the last scanned position."""

    body: bytes
    count: int = 0
    scanned: int = 0


async def _build_response(
    service: Service, request: HttpRequest, build: Callable[[], _EncodedPage]
) -> _EncodedPage:
    """Build a response in a thread; it counts in the tenant's memory until it is sent.

    Raises:
        LimitExceeded: The tenant's unsent responses leave too little memory.
    """
    tenant_id, memory = request.tenant_id, service.memory
    seconds = service.settings.request_timeout_s
    service.release(request)  # the body of the request is not needed any more
    async with memory.reserve_work(tenant_id, READ_BYTES, seconds):
        memory.check_response(tenant_id, RESPONSE_BYTES)
        result = await service.run_for_tenant(tenant_id, build)
        size = len(result.body)
        service.hold(request, size + size // 3)  # with the overhead of encoding
    return result


def _encode_body(
    records: list[EventRecord], response: PageResponse | QueryResponse | RecordsResponse
) -> bytes:
    """Encode a response with records, which are released one by one.

    Records and text together take no more memory than either alone.
    """
    begin, _, end = _encode(response).partition(b"[]")
    text = bytearray(begin + b"[")
    records.reverse()
    while records:
        text += _encode(to_wire_record(records.pop()))
        text += b"," if records else b""
    text += b"]" + end
    return cast("bytes", text)  # converting it would copy the whole response


async def _poll(
    service: Service, request: HttpRequest, spec: ReadSpec, result: _EncodedPage, seconds: float
) -> _EncodedPage:
    """Poll for events until some match or the time is over, from the last scanned position."""
    log = service.view(request.tenant_id)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (
        not result.count and not service.hub.stopped and (remaining := deadline - loop.time()) > 0
    ):
        if spec.until is not None and result.scanned >= spec.until:
            break
        await service.hub.wait_for_head(result.scanned, remaining)
        await service.authenticate_again(request)
        next_spec = msgspec.structs.replace(spec, after=result.scanned)
        result = await _build_response(
            service, request, partial(_read_encoded_page, log, next_spec)
        )
    return result


def _read_encoded_page(log: Log, spec: ReadSpec) -> _EncodedPage:
    """Read a page, which ends early if its events are large."""
    scanned = spec.after
    start = spec.after
    if spec.newest_first:
        start = (log.head() if spec.until is None else spec.until) + 1

    def read(position: int, limit: int, max_bytes: int) -> list[EventRecord]:
        nonlocal scanned
        bounds = {"until": position - 1} if spec.newest_first else {"after": position}
        page = log.read_page(
            msgspec.structs.replace(spec, limit=limit, max_bytes=max_bytes, **bounds)
        )
        scanned = page.last_scanned
        return page.records

    records = read_first_records(read, start, spec.limit, RESPONSE_BYTES)
    count = len(records)
    cut = count < spec.limit and estimate_memory(records) >= RESPONSE_BYTES
    return _EncodedPage(_encode_body(records, PageResponse([], scanned, cut)), count, scanned)


def _parse_stream(stream_type: str | None, stream_id: str | None) -> tuple[str, str] | None:
    if stream_type is None and stream_id is None:
        return None
    if stream_type is None or stream_id is None:
        raise invalid_argument("stream_id", "and stream_type must be given together")
    return stream_type, stream_id


async def get_event(service: Service, request: HttpRequest, params: EventParams) -> RecordResponse:
    """Return one event by its id."""
    tenant_id = request.tenant_id
    result = await service.run_for_tenant(tenant_id, service.view(tenant_id).event, params.event_id)
    if not request.caller.can_read(result.event_type):
        msg = "there is no event with that id"
        raise NotFound(msg, details={"event_id": params.event_id})
    return RecordResponse(to_wire_record(result))


async def find_receipt(
    service: Service, request: HttpRequest, params: ReceiptParams
) -> StoredReceipt:
    """Return the receipt of the append stored under an idempotency key or a command."""
    find = partial(
        _find_stored_append, service.view(request.tenant_id), request.caller.subject, params
    )
    return _make_receipt(request, await service.run_for_tenant(request.tenant_id, find))


def _find_stored_append(log: Log, subject: str, params: ReceiptParams) -> StoredAppend | None:
    if params.idempotency_key is not None:
        for name in ("actor", "endpoint", "key"):
            if getattr(params, name) is not None:
                raise invalid_argument(name, "cannot be combined with idempotency_key")
        return find_stored_by_key(log, params.idempotency_key, params.producer_id)
    if params.producer_id is not None:
        raise invalid_argument("producer_id", "belongs to an idempotency_key")
    if params.endpoint is None or params.key is None:
        raise invalid_argument("idempotency_key", "is required, or endpoint and key of a command")
    actor = subject if params.actor is None else params.actor
    return find_stored_by_command(log, actor, params.endpoint, params.key)


def _make_receipt(request: HttpRequest, result: StoredAppend | None) -> StoredReceipt:
    """Return the receipt of an append if the caller may read all of its events.

    Raises:
        NotFound: There is none, or the caller may not read it.
    """
    if result is None or not all(
        request.caller.can_read(record.event_type) for record in result.records
    ):
        msg = "no append is stored under that key"
        raise NotFound(msg)
    first = result.records[0]
    return StoredReceipt(
        first.position,
        result.records[-1].position,
        first.recorded_at,
        first.actor_type,
        first.actor_id,
        to_wire_records(result.records),
        result.request_hash,
        result.response,
    )


async def get_last_event_id(
    service: Service, request: HttpRequest, params: PositionParams
) -> LastEventIdResponse:
    """Return the id of the event at a position, to detect that the log was replaced.

    If the caller may not read that event, the value is opaque, but the same for every request.
    """
    check_position("position", params.position)
    return LastEventIdResponse(
        await service.run_for_tenant(
            request.tenant_id, visible_event_id, service, request, params.position
        )
    )


def visible_event_id(service: Service, request: HttpRequest, position: int) -> str | None:
    """Return the id of the event at a position, or an opaque value if the caller may not see it.

    Returns:
        None if the log has no event at that position.
    """
    event_id = service.log.store.event_id_at(position)
    if event_id is None or request.caller.tenant_id == ALL_TENANTS:
        return event_id
    record = service.log.store.event(request.tenant_id, event_id)
    visible = (
        record is not None
        and record.position == position
        and request.caller.can_read(record.event_type)
    )
    return event_id if visible else service.opaque_event_id(event_id, request.tenant_id, position)


async def list_streams(
    service: Service, request: HttpRequest, params: StreamsParams
) -> StreamsResponse:
    """List streams in the order of their first events.

    A page reads a bounded number of events; the next one has `after` = `last_scanned`.
    """
    log = service.view(request.tenant_id)
    if params.stream_type is not None:
        check_name("stream_type", params.stream_type)
    check_position("after", params.after)
    limit = service.limits.check_page("limit", params.limit)

    def read_streams() -> StreamsResponse:
        page = log.store.streams(log.tenant_id, params.stream_type, params.after, limit)
        return StreamsResponse(page.streams, page.last_scanned)

    return await service.run_for_tenant(request.tenant_id, read_streams)


async def list_event_types(
    service: Service, request: HttpRequest, params: EventTypesParams
) -> EventTypesResponse:
    """List event types by name, with their numbers of events, counted up to a bound."""
    log = service.view(request.tenant_id)

    def read_types() -> EventTypesResponse:
        return EventTypesResponse(
            log.event_types(params.prefix, after=params.after, limit=params.limit)
        )

    return await service.run_for_tenant(request.tenant_id, read_types)


async def get_last_events(
    service: Service, request: HttpRequest, body: StreamsBody
) -> LastRecordsResponse:
    """Return the last event of each of several streams."""
    if len(body.streams) > STREAMS_MAX:
        raise invalid_argument("streams", f"must be at most {STREAMS_MAX}")
    if not body.streams:
        return LastRecordsResponse([])
    streams = [check_stream_ref(stream) for stream in body.streams]
    tenant_id, store = request.tenant_id, service.log.store
    result = await service.run_for_tenant(tenant_id, store.last_of_streams, tenant_id, streams)
    return LastRecordsResponse(
        [None if record is None else to_wire_record(record) for record in result]
    )


async def run_query(service: Service, request: HttpRequest, body: QueryBody) -> HttpResponse:
    """Return the events that match a query, and the version of the context, in one snapshot."""
    query = request.caller.restrict_query(Query.from_mapping(body.query))
    log = service.view(request.tenant_id)
    limit = log.settings.limits.page if body.limit is None else body.limit

    result = await _build_response(
        service, request, partial(_run_encoded_query, log, query, limit, body, request.caller)
    )
    return HttpResponse(200, result.body)


def _run_encoded_query(
    log: Log, query: Query, limit: int, body: QueryBody, caller: Caller
) -> _EncodedPage:
    """Run a query; large events end the result early, with `more` set."""
    limit = log.settings.limits.check_page("limit", limit)
    first = log.query(
        query,
        limit=min(limit, _FIRST_EVENTS),
        after=body.after,
        head=body.head,
        until=body.until,
        newest_first=body.newest_first,
    )
    records, remaining = list(first.records), limit - len(first.records)
    start = max(query.min_position or 0, body.after or 0)
    end = first.head if body.until is None else min(body.until, first.head)

    def read(position: int, limit: int, max_bytes: int) -> list[EventRecord]:
        after, until = (start, position - 1) if body.newest_first else (position, end)
        if after >= until:
            return []
        return log.store.select(
            log.tenant_id,
            query,
            after,
            until,
            limit,
            newest_first=body.newest_first,
            max_bytes=max_bytes,
        )

    more = first.more
    if more and remaining:
        available = RESPONSE_BYTES - estimate_memory(records)
        records += (
            read_first_records(read, records[-1].position, remaining, available)
            if available > 0
            else ()
        )
        # The result may end at its limit or its size: only another event tells whether it is cut.
        more = bool(read(records[-1].position, 1, 1))
    last = records[-1].position if records else None
    version, head = first.context_version, first.head
    first.records.clear()  # `_encode_body` releases them one by one
    access = events_read = None
    if body.explain:
        access = _explain_query(log, query, (start, end))
    if body.explain and caller.types is None:  # the number includes events of any type
        events_read = _count_events_read(log, query, (start, end), limit, body)
    response = QueryResponse([], last, version, head, more, access, events_read)
    return _EncodedPage(_encode_body(records, response))


def _count_events_read(
    log: Log, query: Query, positions: tuple[int, int], limit: int, body: QueryBody
) -> int:
    """Return how many events a page of a query reads, by running it again."""
    if positions[0] >= positions[1]:
        return 0
    store = cast("ServiceStore", log.store)
    return store.count_events_read(
        log.tenant_id, query, *positions, limit, newest_first=body.newest_first
    )


def _explain_query(log: Log, query: Query, positions: tuple[int, int]) -> list[QueryAccess]:
    """Return the access paths of a query in a range of positions, without running it."""
    filters = list(query.filters or (Filter(),))
    paths = plan_query(log.tenant_id, query, log.store.rules(), *positions)
    return [
        QueryAccess(filters.index(path.filter), path.index, path.after, path.until, path.exact)
        for path in paths
    ]


async def select_records(service: Service, request: HttpRequest, body: SelectBody) -> HttpResponse:
    """Return the events of a range of positions that match a query."""
    query = request.caller.restrict_query(Query.from_mapping(body.query))
    limits = service.limits
    check_query(query, limits)
    limits.check_page("limit", body.limit)
    for name in ("after", "until"):
        check_position(name, getattr(body, name))
    store, tenant_id = service.log.store, request.tenant_id

    def read(position: int, limit: int, max_bytes: int) -> list[EventRecord]:
        after, until = (body.after, position - 1) if body.newest_first else (position, body.until)
        return store.select(
            tenant_id,
            query,
            after,
            until,
            limit,
            newest_first=body.newest_first,
            max_bytes=max_bytes,
        )

    def build() -> _EncodedPage:
        start = body.until + 1 if body.newest_first else body.after
        records = read_first_records(read, start, body.limit, RESPONSE_BYTES)
        cut = len(records) < body.limit and estimate_memory(records) >= RESPONSE_BYTES
        return _EncodedPage(_encode_body(records, RecordsResponse([], cut)))

    return HttpResponse(200, (await _build_response(service, request, build)).body)


async def get_context_version(
    service: Service, request: HttpRequest, body: VersionBody
) -> VersionResponse:
    """Return the version of a context."""
    query = request.caller.restrict_query(Query.from_mapping(body.query))
    check_query(query, service.limits)
    check_position("until", body.until)
    tenant_id, read_version = request.tenant_id, service.log.store.context_version
    result = await service.run_for_tenant(tenant_id, read_version, tenant_id, query, body.until)
    return VersionResponse(result)

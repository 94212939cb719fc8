"""Reads over HTTP: pages by position, one event, streams, queries, and waiting for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import msgspec

from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.request_bodies import parse_query
from seriatim.api.schema_bounds import STREAMS_MAX
from seriatim.api.service import VERSION, Service
from seriatim.core.errors import NotFound
from seriatim.core.event import EventRecord
from seriatim.core.limits import MIB
from seriatim.core.query import Query, check_query
from seriatim.core.request import check_stream_ref
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import Log
from seriatim.log.arguments import check_position, invalid_argument, make_read_spec
from seriatim.log.batches import estimate_memory, read_first_records
from seriatim.log.lookup import find_stored_by_command, find_stored_by_key
from seriatim.store.port import ReadSpec, StoredAppend
from seriatim.wire.messages import (
    FoundAppend,
    LastEventIdResponse,
    LastRecordsResponse,
    LogInfo,
    PageResponse,
    QueryBody,
    QueryResponse,
    RecordResponse,
    RecordsResponse,
    SelectBody,
    StreamsBody,
    StreamsResponse,
    VersionBody,
    VersionResponse,
)
from seriatim.wire.records import to_wire_record, to_wire_records

RESPONSE_BYTES = 8 * MIB  # of payloads in one answer, or a little more
_FIRST_EVENTS = 4  # of a query, which comes with the context's version
READ_BYTES = 16 * MIB  # of memory while an answer is made: two of them at once fit
_encode = msgspec.json.Encoder().encode


class HeadWaitParams(msgspec.Struct, frozen=True):
    """Wait until the head has passed a position, at most so long."""

    after: int | None = None
    wait_s: float = 0.0


class ReadParams(msgspec.Struct, frozen=True):
    """Which events: `after` and the since-sides are exclusive, the until-sides inclusive.

    `types` are exact types, or patterns such as `seat.*`. With `newest_first` a page begins at
    `until` and goes down; the next one has `until` = `last_scanned` - 1.
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
    newest_first: bool = False
    scope: Literal["log", "traces", "aggregates"] = "log"
    wait_s: float = 0.0


class EventParams(msgspec.Struct, frozen=True):
    """One event, by its id."""

    event_id: str


class KeyParams(msgspec.Struct, frozen=True):
    """One append, by its idempotency key; keys are kept for each producer."""

    idempotency_key: str
    producer_id: str | None = None


class CommandParams(msgspec.Struct, frozen=True):
    """One append, by its command; the actor is the token's own unless named."""

    endpoint: str
    key: str
    actor: str | None = None


class PositionParams(msgspec.Struct, frozen=True):
    """One position of the log."""

    position: int


class StreamsParams(msgspec.Struct, frozen=True):
    """Which streams, and from where on."""

    stream_type: str | None = None
    after: int = 0
    limit: int = 1000


async def get_log_info(service: Service, request: HttpRequest, params: HeadWaitParams) -> LogInfo:
    """Say which log this is and how far it reaches; with `after`, wait until it reaches farther."""
    _check_wait(service, params.wait_s)
    head = await service.run_for_tenant(request.tenant_id, service.log.head)
    if params.after is not None and params.wait_s:
        check_position("after", params.after)
        head = await _wait(service, request, params.after, head, params.wait_s)
    identity = service.log.identity()
    return LogInfo(identity.log_id, identity.epoch, head, request.tenant_id, VERSION)


def _check_wait(service: Service, seconds: float) -> None:
    if not 0 <= seconds <= service.settings.wait_max_s:
        raise invalid_argument("wait_s", f"must be from 0 to {service.settings.wait_max_s:g}")


async def _wait(
    service: Service, request: HttpRequest, after: int, head: int, seconds: float
) -> int:
    """Wait until the head has passed a position, at most so long."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while head <= after and not service.hub.stopped and (left := until - loop.time()) > 0:
        await service.hub.wait_for_head(after, left)
        await service.authenticate(request.headers)  # whose token has ended waits in vain
        head = await service.run_for_tenant(request.tenant_id, service.log.head)
    return head


async def read_page(service: Service, request: HttpRequest, params: ReadParams) -> HttpResponse:
    """Read a page by position; with `wait_s`, wait for something to come when there is nothing."""
    log = service.view(request.tenant_id)
    types = request.caller.restrict_types(None if params.types is None else tuple(params.types))
    spec = make_read_spec(
        log.settings.limits,
        tenant_id=request.tenant_id,
        limit=log.settings.limits.page if params.limit is None else params.limit,
        scope=params.scope,
        after=params.after,
        until=params.until,
        stream=_stream(params.stream_type, params.stream_id),
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
        newest_first=params.newest_first,
    )
    _check_wait(service, params.wait_s)
    if params.wait_s and params.newest_first:
        raise invalid_argument("wait_s", "waits for newer events: leave out newest_first")
    found = await _read(service, request, partial(_page, log, spec))
    if params.wait_s and not found.count:
        found = await _awaited(service, request, spec, found, params.wait_s)
    return HttpResponse(200, found.body)


class _Written(msgspec.Struct, frozen=True):
    """A page as it is sent: how many records it has, and up to where it was read."""

    body: bytes
    count: int = 0
    scanned: int = 0


async def _read(service: Service, request: HttpRequest, act: Callable[[], _Written]) -> _Written:
    """Read and write an answer in a thread; its bytes count as the tenant's until they are sent.

    Raises `LimitExceeded` if the tenant's unsent answers leave no room.
    """
    tenant_id, memory = request.tenant_id, service.memory
    seconds = service.settings.request_timeout_s
    service.release(request)
    async with memory.reserve_work(tenant_id, READ_BYTES, seconds):
        memory.check_response(tenant_id, RESPONSE_BYTES)
        found = await service.run_for_tenant(tenant_id, act)
        service.hold(request, len(found.body) + len(found.body) // 3)  # with what it took to make
    return found


def _body(
    records: list[EventRecord], answer: PageResponse | QueryResponse | RecordsResponse
) -> bytes:
    """Return an answer with records as JSON; each record is let go of once it is written.

    The records and the text of an answer together take no more memory than either alone.
    """
    begin, _, end = _encode(answer).partition(b"[]")
    text = bytearray(begin + b"[")
    records.reverse()
    while records:
        text += _encode(to_wire_record(records.pop()))
        text += b"," if records else b""
    text += b"]" + end
    return cast("bytes", text)  # a copy would take as much again


async def _awaited(
    service: Service, request: HttpRequest, spec: ReadSpec, found: _Written, seconds: float
) -> _Written:
    """Read on until something is there, at most so long; what was scanned is not scanned again."""
    log = service.view(request.tenant_id)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not found.count and not service.hub.stopped and (left := until - loop.time()) > 0:
        if spec.until is not None and found.scanned >= spec.until:
            break
        await service.hub.wait_for_head(found.scanned, left)
        await service.authenticate(request.headers)
        on = msgspec.structs.replace(spec, after=found.scanned)
        found = await _read(service, request, partial(_page, log, on))
    return found


def _page(log: Log, spec: ReadSpec) -> _Written:
    """Read a page, which ends early when its events are large."""
    scanned = spec.after
    start = spec.after
    if spec.newest_first:
        start = (log.head() if spec.until is None else spec.until) + 1

    def read(at: int, limit: int, max_bytes: int) -> list[EventRecord]:
        nonlocal scanned
        edge = {"until": at - 1} if spec.newest_first else {"after": at}
        part = log.read_page(
            msgspec.structs.replace(spec, limit=limit, max_bytes=max_bytes, **edge)
        )
        scanned = part.last_scanned
        return part.records

    records = read_first_records(read, start, spec.limit, RESPONSE_BYTES)
    count = len(records)
    cut = count < spec.limit and estimate_memory(records) >= RESPONSE_BYTES
    return _Written(_body(records, PageResponse([], scanned, cut)), count, scanned)


def _stream(stream_type: str | None, stream_id: str | None) -> tuple[str, str] | None:
    if stream_type is None and stream_id is None:
        return None
    if stream_type is None or stream_id is None:
        raise invalid_argument("stream_id", "and stream_type go together")
    return stream_type, stream_id


async def get_event(service: Service, request: HttpRequest, params: EventParams) -> RecordResponse:
    """Return one event by its id."""
    tenant_id = request.tenant_id
    found = await service.run_for_tenant(tenant_id, service.view(tenant_id).event, params.event_id)
    if not request.caller.can_read(found.event_type):
        msg = "there is no event with that id"
        raise NotFound(msg, details={"event_id": params.event_id})
    return RecordResponse(to_wire_record(found))


async def find_append(service: Service, request: HttpRequest, params: KeyParams) -> FoundAppend:
    """Return the append stored under an idempotency key."""
    log = service.view(request.tenant_id)
    key, producer = params.idempotency_key, params.producer_id
    found = await service.run_for_tenant(request.tenant_id, find_stored_by_key, log, key, producer)
    return _shown_append(request, found)


async def find_command(
    service: Service, request: HttpRequest, params: CommandParams
) -> FoundAppend:
    """Return the append stored under a command, with the command's response."""
    actor = request.caller.subject if params.actor is None else params.actor
    log = service.view(request.tenant_id)
    endpoint, key = params.endpoint, params.key
    found = await service.run_for_tenant(
        request.tenant_id, find_stored_by_command, log, actor, endpoint, key
    )
    return _shown_append(request, found)


def _shown_append(request: HttpRequest, found: StoredAppend | None) -> FoundAppend:
    """Return what the caller may see; an append with other events in it is as good as absent."""
    if found is None or not all(request.caller.can_read(one.event_type) for one in found.records):
        msg = "no append is stored under that key"
        raise NotFound(msg)
    return FoundAppend(
        found.records[0].position,
        found.records[-1].position,
        to_wire_records(found.records),
        found.request_hash,
        found.response,
    )


async def get_last_event_id(
    service: Service, request: HttpRequest, params: PositionParams
) -> LastEventIdResponse:
    """Return what tells whether a position still holds the event that it held."""
    check_position("position", params.position)
    return LastEventIdResponse(
        await service.run_for_tenant(
            request.tenant_id, visible_event_id, service, request, params.position
        )
    )


def visible_event_id(service: Service, request: HttpRequest, position: int) -> str | None:
    """Return the id of an event if the caller may see it, else what stands for it."""
    event_id = service.log.store.event_id_at(position)
    if event_id is None or request.caller.tenant_id == ALL_TENANTS:
        return event_id
    own = service.log.store.event(request.tenant_id, event_id)
    seen = own is not None and own.position == position and request.caller.can_read(own.event_type)
    return event_id if seen else service.opaque_event_id(event_id, request.tenant_id, position)


async def list_streams(
    service: Service, request: HttpRequest, params: StreamsParams
) -> StreamsResponse:
    """List streams in the order in which they began."""
    log = service.view(request.tenant_id)

    def listed() -> StreamsResponse:
        return StreamsResponse(
            log.streams(params.stream_type, after=params.after, limit=params.limit)
        )

    return await service.run_for_tenant(request.tenant_id, listed)


async def get_last_events(
    service: Service, request: HttpRequest, body: StreamsBody
) -> LastRecordsResponse:
    """Return the last event of each of several streams."""
    if len(body.streams) > STREAMS_MAX:
        raise invalid_argument("streams", f"must be at most {STREAMS_MAX}")
    if not body.streams:
        return LastRecordsResponse([])
    wanted = [check_stream_ref(stream) for stream in body.streams]
    tenant_id, store = request.tenant_id, service.log.store
    found = await service.run_for_tenant(tenant_id, store.last_of_streams, tenant_id, wanted)
    return LastRecordsResponse(
        [None if record is None else to_wire_record(record) for record in found]
    )


async def run_query(service: Service, request: HttpRequest, body: QueryBody) -> HttpResponse:
    """Return the events that match, and their context's version, from one snapshot."""
    wanted = request.caller.restrict_query(parse_query(body.query))
    log = service.view(request.tenant_id)
    limit = log.settings.limits.page if body.limit is None else body.limit

    found = await _read(service, request, partial(_found, log, wanted, limit, body))
    return HttpResponse(200, found.body)


def _found(log: Log, wanted: Query, limit: int, body: QueryBody) -> _Written:
    """Run a query; with large events it returns fewer of them, and says that there are more."""
    limit = log.settings.limits.check_page("limit", limit)
    first = log.query(
        wanted,
        limit=min(limit, _FIRST_EVENTS),
        after=body.after,
        head=body.head,
        until=body.until,
        newest_first=body.newest_first,
    )
    records, left = list(first.records), limit - len(first.records)
    start = max(wanted.min_position or 0, body.after or 0)
    end = first.head if body.until is None else min(body.until, first.head)

    def read(at: int, limit: int, max_bytes: int) -> list[EventRecord]:
        after, until = (start, at - 1) if body.newest_first else (at, end)
        if after >= until:
            return []
        return log.store.select(
            log.tenant_id,
            wanted,
            after,
            until,
            limit,
            newest_first=body.newest_first,
            max_bytes=max_bytes,
        )

    more = first.more
    if more and left:
        room = RESPONSE_BYTES - estimate_memory(records)
        records += read_first_records(read, records[-1].position, left, room) if room > 0 else ()
        more = bool(read(records[-1].position, 1, 1))
    last = records[-1].position if records else None
    version, head = first.context_version, first.head
    first.records.clear()  # they are let go of one by one
    return _Written(_body(records, QueryResponse([], last, version, head, more)))


async def select_records(service: Service, request: HttpRequest, body: SelectBody) -> HttpResponse:
    """Return the events of a range that match."""
    wanted = request.caller.restrict_query(parse_query(body.query))
    limits = service.limits
    check_query(wanted, limits)
    limits.check_page("limit", body.limit)
    for name in ("after", "until"):
        check_position(name, getattr(body, name))
    store, tenant_id = service.log.store, request.tenant_id

    def read(at: int, limit: int, max_bytes: int) -> list[EventRecord]:
        after, until = (body.after, at - 1) if body.newest_first else (at, body.until)
        return store.select(
            tenant_id,
            wanted,
            after,
            until,
            limit,
            newest_first=body.newest_first,
            max_bytes=max_bytes,
        )

    def found() -> _Written:
        start = body.until + 1 if body.newest_first else body.after
        records = read_first_records(read, start, body.limit, RESPONSE_BYTES)
        cut = len(records) < body.limit and estimate_memory(records) >= RESPONSE_BYTES
        return _Written(_body(records, RecordsResponse([], cut)))

    return HttpResponse(200, (await _read(service, request, found)).body)


async def get_context_version(
    service: Service, request: HttpRequest, body: VersionBody
) -> VersionResponse:
    """Return the version of a context."""
    wanted = request.caller.restrict_query(parse_query(body.query))
    check_query(wanted, service.limits)
    check_position("until", body.until)
    tenant_id, version_of = request.tenant_id, service.log.store.context_version
    found = await service.run_for_tenant(tenant_id, version_of, tenant_id, wanted, body.until)
    return VersionResponse(found)

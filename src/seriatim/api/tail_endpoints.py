"""Endpoints for live tails: Server-Sent Events or NDJSON, one committed append at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from seriatim.api.http import HttpRequest, HttpStream
from seriatim.api.hub import TAIL_PAGE, TAIL_PAGE_BYTES, identity_changed_error, take_page
from seriatim.api.read_endpoints import READ_BYTES, visible_event_id
from seriatim.api.request_bodies import parse_json_body
from seriatim.api.service import Service
from seriatim.api.tail_buffer import TailBuffer, TailChunk
from seriatim.core.errors import SeriatimError
from seriatim.core.event import LogIdentity
from seriatim.core.limits import limit_error
from seriatim.core.query import ID_FIELDS, Filter, Query, check_query
from seriatim.factory import Log
from seriatim.log.arguments import check_position, invalid_argument
from seriatim.log.batches import iterate_matching_appends
from seriatim.wire.records import to_wire_record

KEEP_ALIVE_MIN_S = 0.01
KEEP_ALIVE_MAX_S = 60.0
MEMORY_WAIT_S = 120.0  # until other clients of the tenant have read their responses
_PAGE_MEMORY_BYTES = 2 * TAIL_PAGE_BYTES  # a page ends with the append that reaches its size
_SHARED_BYTES = 16 * 1024  # a larger append is sent without a copy
_DIGITS_MAX = 19  # of a position
SSE = b"text/event-stream"
NDJSON = b"application/x-ndjson"
_encode = msgspec.json.Encoder().encode


class TailParams(msgspec.Struct, frozen=True):
    """The events to follow, by filters or by a query in JSON; without `after`, new ones only.

    `log_id`, `epoch` and `last_event_id` (of `GET /v1/log` and `GET /v1/last-event-id`) detect
    that the log was restored or replaced.
    """

    after: int | None = None
    types: list[str] | None = None
    tags: list[str] | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor_id: str | None = None
    query: str | None = None
    log_id: str | None = None
    epoch: int | None = None
    last_event_id: str | None = None
    keep_alive_s: float = 15.0


class TailBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of `GET /v1/tail`; the query is an object."""

    after: int | None = None
    types: list[str] | None = None
    tags: list[str] | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor_id: str | None = None
    query: dict[str, Any] | None = None
    log_id: str | None = None
    epoch: int | None = None
    last_event_id: str | None = None
    keep_alive_s: float = 15.0


async def follow_with_body(service: Service, request: HttpRequest, body: TailBody) -> HttpStream:
    """Follow the log as `GET /v1/tail` does, with a query that is too long for a URL."""
    return await follow(service, request, body)


async def follow(
    service: Service, request: HttpRequest, params: TailParams | TailBody
) -> HttpStream:
    """Follow the log until the client disconnects: stored events after a position, then new ones.

    Each message is one committed append. The header `Last-Event-ID` is the position to continue
    from, and takes precedence over `after`.
    """
    if not KEEP_ALIVE_MIN_S <= params.keep_alive_s <= KEEP_ALIVE_MAX_S:
        raise invalid_argument(
            "keep_alive_s", f"must be from {KEEP_ALIVE_MIN_S:g} to {KEEP_ALIVE_MAX_S:g}"
        )
    query = request.caller.restrict_query(_parse_query(params))
    check_query(query, service.limits)
    _check_tail_limits(service, request.tenant_id)
    start = await service.run_for_tenant(request.tenant_id, _find_start, service, request, params)
    content_type = NDJSON if _accepts_ndjson(request) else SSE
    tail = service.hub.make_tail(request.tenant_id, query, start)
    encoder = _NdjsonEncoder() if content_type is NDJSON else _SseEncoder()
    chunks = _stream_tail(service, request, tail, encoder, params.keep_alive_s)
    return HttpStream(content_type, chunks, ((b"cache-control", b"no-store"),))


def _parse_query(params: TailParams | TailBody) -> Query:
    ids = {name: getattr(params, name) for name in ID_FIELDS}
    filters = (params.types, params.tags, params.stream_type, params.stream_id, *ids.values())
    if params.query is not None:
        if any(part is not None for part in filters):
            raise invalid_argument("query", "cannot be combined with other filters")
        query = params.query
        value = parse_json_body(query.encode()) if isinstance(query, str) else query
        return Query.from_mapping(value)
    if all(part is None for part in filters):
        return Query()
    streams = None
    if params.stream_type is not None or params.stream_id is not None:
        if params.stream_type is None or params.stream_id is None:
            raise invalid_argument("stream_id", "and stream_type must be given together")
        streams = [(params.stream_type, params.stream_id)]
    return Query([Filter(types=params.types, tags=params.tags, streams=streams, **ids)])


def _accepts_ndjson(request: HttpRequest) -> bool:
    return NDJSON in request.headers.get(b"accept", b"")


def _check_tail_limits(service: Service, tenant_id: str) -> None:
    service.limits.check("subscriptions", service.hub.open_tails + 1)
    open_tails, bound = service.hub.tails_of[tenant_id] + 1, service.settings.tenant_tails
    if open_tails > bound:
        raise limit_error("tenant_tails", bound, open_tails)


def _find_start(service: Service, request: HttpRequest, params: TailParams | TailBody) -> int:
    """Return the position to start after.

    Raises:
        LogIdentityChanged: The log is not the one that the client has read before.
        InvalidArgument: The position is invalid, or after the head.
    """
    store = service.log.store
    head = store.head()
    header = request.header(b"last-event-id")
    if header is not None:
        if not header.isascii() or not header.isdigit() or len(header) > _DIGITS_MAX:
            raise invalid_argument("last-event-id", "must be a position")
        start = int(header)
    else:
        start = head if params.after is None else params.after
    check_position("after", start)
    identity = store.identity()
    same_log = params.log_id in (None, identity.log_id)
    same_epoch = params.epoch in (None, identity.epoch)
    expected = params.last_event_id
    actual = None if expected is None else visible_event_id(service, request, start)
    if not same_log or not same_epoch or actual != expected:
        raise identity_changed_error(head)
    if start > head:
        raise invalid_argument("after", "must not be after the head")
    return start


async def _stream_tail(
    service: Service,
    request: HttpRequest,
    tail: TailBuffer,
    encoder: _SseEncoder | _NdjsonEncoder,
    keep_alive_s: float,
) -> AsyncGenerator[bytes, None]:
    """Yield the response of a tail: stored events, then new ones; stored ones again if it lags."""
    hub = service.hub
    hub.open_tails += 1
    hub.tails_of[tail.tenant_id] += 1
    service.track_tail(request.caller, tail)
    identity = service.log.identity()
    try:
        while not hub.stopped:
            async with aclosing(_read_stored(service, tail, identity)) as stored:
                async for chunk in stored:
                    for part in encoder.encode_append(chunk):
                        yield part
                    del chunk  # release its text while waiting for the next one
            if tail.failure is not None:
                raise tail.failure
            if not hub.add_tail(tail):
                continue
            try:
                yield encoder.encode_position(tail.position)  # all stored events have been sent
                async for chunk in _read_new(service, request, tail, identity, keep_alive_s):
                    for part in encoder.encode_append(chunk):
                        yield part
                    del chunk
            finally:
                hub.remove_tail(tail)
    except SeriatimError as error:
        yield encoder.encode_problem(_encode(service.problem(error, request.request_id)))
    finally:
        tail.close()
        hub.open_tails -= 1
        hub.tails_of[tail.tenant_id] -= 1
        if not hub.tails_of[tail.tenant_id]:
            del hub.tails_of[tail.tenant_id]
        service.untrack_tail(request.caller, tail)


async def _read_new(
    service: Service,
    request: HttpRequest,
    tail: TailBuffer,
    identity: LogIdentity,
    keep_alive_s: float,
) -> AsyncGenerator[TailChunk, None]:
    """Yield new appends until the tail lags.

    Raises:
        Unauthorized: The token was revoked or has expired.
        LogIdentityChanged: The log was restored or replaced.
    """
    while not service.hub.stopped and not tail.lagging:
        chunk = await tail.next(keep_alive_s)
        if chunk is None and not tail.lagging:
            await service.authenticate_again(request)
            if service.log.identity() != identity:
                raise identity_changed_error(service.hub.head)
            if tail.has_pending or tail.lagging:
                continue  # an append arrived meanwhile: its position must not be sent before it
            chunk = TailChunk(service.hub.delivered_position(tail))
        if chunk is not None:
            tail.position = max(tail.position, chunk.position)
            yield chunk
        del chunk


async def _read_stored(
    service: Service, tail: TailBuffer, identity: LogIdentity
) -> AsyncGenerator[TailChunk, None]:
    """Yield stored appends after the position of a tail, page by page."""
    while not service.hub.stopped:
        if tail.failure is not None:
            raise tail.failure
        head = await service.run_for_tenant(tail.tenant_id, service.log.head)
        if service.log.identity() != identity or head < tail.position:
            raise identity_changed_error(head)
        if tail.position >= head:
            return
        chunks, last_scanned, size = await _read_page_in_memory(service, tail, head)
        chunks.reverse()
        try:
            while chunks:
                if tail.failure is not None:
                    raise tail.failure
                chunk = chunks.pop()
                yield chunk
                tail.position = chunk.position
                del chunk  # its memory is no longer counted after this page, so nothing may keep it
        finally:
            service.memory.release(tail.tenant_id, size)
        tail.position = last_scanned


async def _read_page_in_memory(
    service: Service, tail: TailBuffer, head: int
) -> tuple[list[TailChunk], int, int]:
    """Read a page for a tail once it fits into the memory of the tenant.

    Returns:
        The appends, the last scanned position, and the bytes counted in the tenant's memory.
    """
    memory, tenant_id = service.memory, tail.tenant_id
    reserved = _PAGE_MEMORY_BYTES
    while True:
        await memory.wait_and_acquire(tenant_id, reserved, MEMORY_WAIT_S)
        try:
            async with memory.reserve_work(tenant_id, READ_BYTES, MEMORY_WAIT_S):
                chunks, last_scanned = await service.run_for_tenant(
                    tenant_id, _read_page, service.log, tail, head
                )
        except BaseException:
            memory.release(tenant_id, reserved)
            raise
        size = sum(len(chunk.records) for chunk in chunks)
        if size <= reserved or memory.try_acquire(tenant_id, size - reserved):
            memory.release(tenant_id, max(0, reserved - size))
            return chunks, last_scanned, size
        memory.release(tenant_id, reserved)
        if size > memory.bound:
            return chunks, last_scanned, 0
        # One append exceeds the reserved memory: read it again when enough is free. Until then
        # nothing of it may be kept, because it is not counted.
        del chunks
        reserved = size


def _read_page(log: Log, tail: TailBuffer, head: int) -> tuple[list[TailChunk], int]:
    """Read about a page of whole appends that match, and the last scanned position."""
    store, tenant_id = log.store, tail.tenant_id
    appends, is_all = take_page(
        iterate_matching_appends(
            store,
            tenant_id,
            tail.query,
            tail.position,
            head,
            TAIL_PAGE,
            max_bytes=TAIL_PAGE_BYTES,
        )
    )
    chunks = [
        TailChunk(
            append[-1].position, b",".join([_encode(to_wire_record(record)) for record in append])
        )
        for append in appends
    ]
    return chunks, head if is_all else chunks[-1].position


def _split_parts(prefix: bytes, records: bytes, suffix: bytes) -> list[bytes]:
    """Return the parts of a message; the text of a large append, which tails share, uncopied."""
    if len(records) < _SHARED_BYTES:
        return [prefix + records + suffix]
    return [prefix, records, suffix]


class _SseEncoder:
    """Server-Sent Events; the id is the position to continue from."""

    def encode_position(self, position: int) -> bytes:
        """Advance the client's Last-Event-ID without an event."""
        return b": at %d\nid: %d\n\n" % (position, position)

    def encode_append(self, chunk: TailChunk) -> list[bytes]:
        """Encode one append."""
        if not chunk.records:
            return [self.encode_position(chunk.position)]
        prefix = b'id: %d\nevent: append\ndata: {"position":%d,"records":[' % (
            chunk.position,
            chunk.position,
        )
        return _split_parts(prefix, chunk.records, b"]}\n\n")

    def encode_problem(self, text: bytes) -> bytes:
        """Encode the error that ends the tail."""
        return b"event: problem\ndata: %b\n\n" % text


class _NdjsonEncoder:
    """NDJSON: a line for each append, and for a position without one."""

    def encode_position(self, position: int) -> bytes:
        """Encode a position without an append."""
        return b'{"position":%d}\n' % position

    def encode_append(self, chunk: TailChunk) -> list[bytes]:
        """Encode one append."""
        if not chunk.records:
            return [self.encode_position(chunk.position)]
        return _split_parts(b'{"position":%d,"records":[' % chunk.position, chunk.records, b"]}\n")

    def encode_problem(self, text: bytes) -> bytes:
        """Encode the error that ends the tail."""
        return b'{"problem":%b}\n' % text

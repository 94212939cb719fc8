"""The live tail over HTTP: Server-Sent Events or NDJSON, one committed append at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from seriatim.api.http import HttpRequest, HttpStream
from seriatim.api.hub import TAIL_PAGE, TAIL_PAGE_BYTES, identity_changed_error, take_page
from seriatim.api.read_endpoints import READ_BYTES, visible_event_id
from seriatim.api.request_bodies import parse_json_body, parse_query
from seriatim.api.service import Service
from seriatim.api.tail_buffer import TailBuffer, TailChunk
from seriatim.core.errors import SeriatimError
from seriatim.core.event import LogIdentity
from seriatim.core.limits import limit_error
from seriatim.core.query import Filter, Query, check_query
from seriatim.factory import Log
from seriatim.log.arguments import check_position, invalid_argument
from seriatim.log.batches import iterate_matching_appends
from seriatim.wire.records import to_wire_record

KEEP_ALIVE_MIN_S = 0.01
KEEP_ALIVE_MAX_S = 60.0
MEMORY_WAIT_S = 120.0  # for other readers of the tenant to take what was sent to them
_TAIL_ROOM_BYTES = 2 * TAIL_PAGE_BYTES  # a page ends with the append that reaches its size
_SHARED_BYTES = 16 * 1024
_DIGITS_MAX = 19  # of a position
SSE = b"text/event-stream"
NDJSON = b"application/x-ndjson"
_encode = msgspec.json.Encoder().encode


class TailParams(msgspec.Struct, frozen=True):
    """What to follow: simple filters, or a whole query as JSON; from now on unless told."""

    after: int | None = None
    types: list[str] | None = None
    tags: list[str] | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    query: str | None = None
    log_id: str | None = None
    epoch: int | None = None
    tip: str | None = None
    keep_alive_s: float = 15.0


class TailBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to follow, as in the parameters of the same path; the query is an object."""

    after: int | None = None
    types: list[str] | None = None
    tags: list[str] | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    query: dict[str, Any] | None = None
    log_id: str | None = None
    epoch: int | None = None
    tip: str | None = None
    keep_alive_s: float = 15.0


async def follow_with_body(service: Service, request: HttpRequest, body: TailBody) -> HttpStream:
    """Follow the log as by GET, with a query that is too long for an address."""
    return await follow(service, request, body)


async def follow(
    service: Service, request: HttpRequest, params: TailParams | TailBody
) -> HttpStream:
    """Follow the log: what there is behind a position, then what comes, for as long as one stays.

    Each piece is one committed append. `Last-Event-ID` is the position to go on from.
    """
    if not KEEP_ALIVE_MIN_S <= params.keep_alive_s <= KEEP_ALIVE_MAX_S:
        raise invalid_argument(
            "keep_alive_s", f"must be from {KEEP_ALIVE_MIN_S:g} to {KEEP_ALIVE_MAX_S:g}"
        )
    query = request.caller.restrict_query(_query(params))
    check_query(query, service.limits)
    _check_room(service, request.tenant_id)
    start = await service.run_for_tenant(request.tenant_id, _start, service, request, params)
    content_type = NDJSON if _wants_lines(request) else SSE
    followed = service.hub.make_tail(request.tenant_id, query, start)
    form = _Lines() if content_type is NDJSON else _Events()
    pieces = _pieces(service, request, followed, form, params.keep_alive_s)
    return HttpStream(content_type, pieces, ((b"cache-control", b"no-store"),))


def _query(params: TailParams | TailBody) -> Query:
    simple = (params.types, params.tags, params.stream_type, params.stream_id)
    if params.query is not None:
        if any(one is not None for one in simple):
            raise invalid_argument("query", "says it all: give no other filter with it")
        given = params.query
        return parse_query(parse_json_body(given.encode()) if isinstance(given, str) else given)
    if all(one is None for one in simple):
        return Query()
    streams = None
    if params.stream_type is not None or params.stream_id is not None:
        if params.stream_type is None or params.stream_id is None:
            raise invalid_argument("stream_id", "and stream_type go together")
        streams = [(params.stream_type, params.stream_id)]
    return Query([Filter(types=params.types, tags=params.tags, streams=streams)])


def _wants_lines(request: HttpRequest) -> bool:
    return NDJSON in request.headers.get(b"accept", b"")


def _check_room(service: Service, tenant_id: str) -> None:
    service.limits.check("subscriptions", service.hub.open_tails + 1)
    own, bound = service.hub.tails_of[tenant_id] + 1, service.settings.tenant_tails
    if own > bound:
        raise limit_error("tenant_tails", bound, own)


def _start(service: Service, request: HttpRequest, params: TailParams | TailBody) -> int:
    """Return where to begin, if the log is the one that the reader knows."""
    store = service.log.store
    head = store.head()
    told = request.header(b"last-event-id")
    if told is not None:
        if not told.isascii() or not told.isdigit() or len(told) > _DIGITS_MAX:
            raise invalid_argument("last-event-id", "is a position")
        start = int(told)
    else:
        start = head if params.after is None else params.after
    check_position("after", start)
    identity = store.identity()
    known = params.log_id in (None, identity.log_id) and params.epoch in (None, identity.epoch)
    tip = None if params.tip is None else visible_event_id(service, request, start)
    if not known or tip != params.tip:
        raise identity_changed_error(head)
    if start > head:
        raise invalid_argument("after", "must not lie beyond the head")
    return start


async def _pieces(
    service: Service,
    request: HttpRequest,
    followed: TailBuffer,
    form: _Events | _Lines,
    keep_alive_s: float,
) -> AsyncGenerator[bytes, None]:
    """Yield what a reader gets: the past, then what comes, and the past again if it was slow."""
    hub = service.hub
    hub.open_tails += 1
    hub.tails_of[followed.tenant_id] += 1
    service.track_tail(request.caller, followed)
    identity = service.log.identity()
    try:
        while not hub.stopped:
            async with aclosing(_caught_up(service, followed, identity)) as past:
                async for piece in past:
                    for part in form.piece(piece):
                        yield part
                    del piece  # its text is not kept while the next one is awaited
            if followed.failure is not None:
                raise followed.failure
            if not hub.add_tail(followed):
                continue
            try:
                yield form.position(followed.position)  # all that was there has been sent
                async for piece in _live(service, request, followed, identity, keep_alive_s):
                    for part in form.piece(piece):
                        yield part
                    del piece
            finally:
                hub.remove_tail(followed)
    except SeriatimError as error:
        yield form.problem(_encode(service.problem(error, request.request_id)))
    finally:
        followed.close()
        hub.open_tails -= 1
        hub.tails_of[followed.tenant_id] -= 1
        if not hub.tails_of[followed.tenant_id]:
            del hub.tails_of[followed.tenant_id]
        service.untrack_tail(request.caller, followed)


async def _live(
    service: Service,
    request: HttpRequest,
    followed: TailBuffer,
    identity: LogIdentity,
    keep_alive_s: float,
) -> AsyncGenerator[TailChunk, None]:
    """Yield what comes until the reader is behind, its token has ended or the log is another."""
    while not service.hub.stopped and not followed.lagging:
        piece = await followed.next(keep_alive_s)
        if piece is None and not followed.lagging:
            await service.authenticate(request.headers)
            if service.log.identity() != identity:
                raise identity_changed_error(service.hub.head)
            if followed.has_pending or followed.lagging:
                continue  # it came meanwhile: its position is told with it, not before
            piece = TailChunk(service.hub.delivered_position(followed))
        if piece is not None:
            followed.position = max(followed.position, piece.position)
            yield piece
        del piece


async def _caught_up(
    service: Service, followed: TailBuffer, identity: LogIdentity
) -> AsyncGenerator[TailChunk, None]:
    """Yield what there is behind the reader's position, page by page."""
    while not service.hub.stopped:
        if followed.failure is not None:
            raise followed.failure
        head = await service.run_for_tenant(followed.tenant_id, service.log.head)
        if service.log.identity() != identity or head < followed.position:
            raise identity_changed_error(head)
        if followed.position >= head:
            return
        pieces, scanned, size = await _held_past(service, followed, head)
        pieces.reverse()
        try:
            while pieces:
                if followed.failure is not None:
                    raise followed.failure
                piece = pieces.pop()
                yield piece
                followed.position = piece.position
                del piece  # the text of a page that was sent is counted no longer: nothing keeps it
        finally:
            service.memory.release(followed.tenant_id, size)
        followed.position = scanned


async def _held_past(
    service: Service, followed: TailBuffer, head: int
) -> tuple[list[TailChunk], int, int]:
    """Read a page for a tail once its tenant's memory has room for it; return its size, too."""
    memory, tenant_id = service.memory, followed.tenant_id
    room = _TAIL_ROOM_BYTES
    while True:
        await memory.wait_and_acquire(tenant_id, room, MEMORY_WAIT_S)
        try:
            async with memory.reserve_work(tenant_id, READ_BYTES, MEMORY_WAIT_S):
                pieces, scanned = await service.run_for_tenant(
                    tenant_id, _past, service.log, followed, head
                )
        except BaseException:
            memory.release(tenant_id, room)
            raise
        size = sum(len(piece.records) for piece in pieces)
        if size <= room or memory.try_acquire(tenant_id, size - room):
            memory.release(tenant_id, max(0, room - size))
            return pieces, scanned, size
        memory.release(tenant_id, room)
        if size > memory.bound:
            return pieces, scanned, 0
        # One append is larger than the room: it is read again when there is enough, and until
        # then nothing of it is kept, for it is not counted.
        del pieces
        room = size


def _past(log: Log, followed: TailBuffer, head: int) -> tuple[list[TailChunk], int]:
    """Read a page or so of whole appends that match, and say how far that was."""
    store, tenant_id = log.store, followed.tenant_id
    groups, all_of_it = take_page(
        iterate_matching_appends(
            store,
            tenant_id,
            followed.query,
            followed.position,
            head,
            TAIL_PAGE,
            max_bytes=TAIL_PAGE_BYTES,
        )
    )
    pieces = [
        TailChunk(
            group[-1].position, b",".join([_encode(to_wire_record(record)) for record in group])
        )
        for group in groups
    ]
    return pieces, head if all_of_it else pieces[-1].position


def _parts(before: bytes, records: bytes, after: bytes) -> list[bytes]:
    """Return what is sent of an append; a large one, which tails share, is not copied."""
    if len(records) < _SHARED_BYTES:
        return [before + records + after]
    return [before, records, after]


class _Events:
    """Server-Sent Events: the id is the position to go on from."""

    def position(self, position: int) -> bytes:
        """Move a reader's Last-Event-ID on, without an event."""
        return b": at %d\nid: %d\n\n" % (position, position)

    def piece(self, piece: TailChunk) -> list[bytes]:
        """Write one append."""
        if not piece.records:
            return [self.position(piece.position)]
        before = b'id: %d\nevent: append\ndata: {"position":%d,"records":[' % (
            piece.position,
            piece.position,
        )
        return _parts(before, piece.records, b"]}\n\n")

    def problem(self, text: bytes) -> bytes:
        """Write why it ends."""
        return b"event: problem\ndata: %b\n\n" % text


class _Lines:
    """NDJSON: a line for each append, and for a position that moved without one."""

    def position(self, position: int) -> bytes:
        """Tell how far the log was seen."""
        return b'{"position":%d}\n' % position

    def piece(self, piece: TailChunk) -> list[bytes]:
        """Write one append."""
        if not piece.records:
            return [self.position(piece.position)]
        return _parts(b'{"position":%d,"records":[' % piece.position, piece.records, b"]}\n")

    def problem(self, text: bytes) -> bytes:
        """Write why it ends."""
        return b'{"problem":%b}\n' % text

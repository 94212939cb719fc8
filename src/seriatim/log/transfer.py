"""Taking a log out as NDJSON and into another log, again and again without storing anything twice.

An export is a header line (which log, its declarations), one line a record, and an end line.
An import gives every event its old id, so what is stored already is recognised; positions and
`recorded_at` are the new log's own. Neither holds more than a few pages in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from seriatim.core.errors import InvalidEvent, LogIdentityChanged
from seriatim.core.event import EventRecord
from seriatim.core.ids import ID_BYTES_MAX
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import BUILT_IN_KINDS, EventType, StreamKind
from seriatim.core.limits import Limits
from seriatim.core.tenants import check_tenant
from seriatim.log.pages import pages
from seriatim.store.port import ReadSpec, Store

FORMAT = "seriatim-export"
FORMAT_VERSION = 1
PAGE = 1000
_ENVELOPES = 4  # an append's lines may be so many times longer than its payloads may be
_ESCAPED = 6  # bytes of JSON that stand for one byte of text at most
_FIELDS = 32  # texts of an envelope, about
_SMALL_LINE = 64 * 1024

Progress = Callable[[int, int], None]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of an export: where it comes from, and the rules of its events."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    log_id: str
    epoch: int
    head: int
    tenant_id: str | None = None
    after: int = 0
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[PayloadIndex] = []


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of an export: without it, the file was cut off."""

    end: str = FORMAT
    events: int


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One event of an export, or of a file made by hand: then without what only a log can know."""

    event_type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    position: int | None = None
    append_position: int | None = None
    event_id: str | None = None
    tenant_id: str | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    stream_seq: int | None = None
    event_version: int = 1
    occurred_at: str | None = None
    recorded_at: str | None = None
    producer_id: str | None = None
    source_system: str | None = None
    source_subsystem: str | None = None
    actor_type: str | None = None
    actor_id: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    idempotency_key: str | None = None
    app_id: str | None = None
    env_id: str | None = None
    metadata: dict[str, str] = {}
    payload_hash: str | None = None
    tags: list[str] = []


class _Outline(msgspec.Struct, frozen=True, gc=False):
    """What is read of a large line first: whose it is, and the size of its payload."""

    payload: msgspec.Raw = msgspec.Raw(b"{}")
    append_position: int | None = None
    tenant_id: str | None = None


def export_log(  # noqa: PLR0913 - what, where to, from where to where
    store: Store,
    write: Callable[[bytes], object],
    *,
    tenant_id: str | None = None,
    after: int = 0,
    until: int | None = None,
    progress: Progress | None = None,
) -> Footer:
    """Write every event up to the head as it is now, of one tenant or of all."""
    if tenant_id is not None:
        check_tenant(tenant_id)
    head = store.head() if until is None else min(until, store.head())
    identity = store.identity()
    rules = store.rules()
    header = Header(
        log_id=identity.log_id,
        epoch=identity.epoch,
        head=head,
        tenant_id=tenant_id,
        after=after,
        kinds=[kind for kind in rules.kinds.values() if kind not in BUILT_IN_KINDS],
        types=list(rules.types.values()),
        indexes=[index.declared for index in rules.indexes],
    )
    write(_encoded(header))
    events = 0
    for page in pages(store, ReadSpec(tenant_id=tenant_id, limit=PAGE, after=after, until=head)):
        write(b"".join(record_line(record) for record in page))
        events += len(page)
        if progress is not None:
            progress(page[-1].position, head)
    if store.identity() != identity:
        msg = "the log was restored or replaced during the export; start it again"
        raise LogIdentityChanged(msg, details={"log_id": identity.log_id})
    footer = Footer(events=events)
    write(_encoded(footer))
    return footer


def record_line(record: EventRecord) -> bytes:
    """Return one record as a line of JSON, its payload byte for byte as it is stored."""
    fields = msgspec.structs.asdict(record)
    fields["payload"] = msgspec.Raw(record.payload.encode())
    return _encoded(fields)


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


_LINE = msgspec.json.Decoder(Line)
_HEADER = msgspec.json.Decoder(Header)
_FOOTER = msgspec.json.Decoder(Footer)


_OUTLINE = msgspec.json.Decoder(_Outline)


class OversizedAppend(msgspec.Struct, frozen=True):
    """An append over a bound, of which only its place and its size were kept."""

    line: int
    events: int
    tenant_id: str | None
    message: str


class _Pending:
    """The lines of one append while they are read; past a bound they are counted, not kept."""

    def __init__(self, limits: Limits, number: int, line: Line | _Outline) -> None:
        self._limits = limits
        self._first = number
        self.last = line
        self._lines: list[tuple[int, Line]] = []
        self._events = self._payload_bytes = self._bytes = 0
        self._problem: str | None = None

    def add(self, number: int, line: Line | _Outline, size: int) -> None:
        """Take one more line of the append; of a line that is too large there is an outline."""
        self.last = line
        self._events += 1
        self._payload_bytes += len(line.payload)
        self._bytes += size
        self._problem = self._problem or self._problem_of(number, line)
        if self._problem or isinstance(line, _Outline):
            self._lines.clear()
        else:
            self._lines.append((number, line))

    def _problem_of(self, number: int, line: Line | _Outline) -> str | None:
        """Say which bound the append exceeds with this line."""
        limits = self._limits
        if isinstance(line, _Outline):
            if len(line.payload) > _ESCAPED * limits.payload_bytes:
                return f"has a payload over {limits.payload_bytes} bytes (payload_bytes)"
            bounds = f"tags {limits.tags}, metadata_entries {limits.metadata_entries}"
            return f"has an envelope over its bounds ({bounds}) at line {number}"
        if self._events > limits.append_events:
            return f"has more than {limits.append_events} events (append_events)"
        size = max(self._payload_bytes, self._bytes // _ENVELOPES)
        if size > limits.append_bytes:
            return f"has more than {limits.append_bytes} bytes (append_bytes)"
        return None

    def finish(self) -> list[tuple[int, Line]] | OversizedAppend:
        """Return the append, or what is known of one that is too large."""
        if self._problem is None:
            return self._lines
        message = (
            f"the append that begins at line {self._first} {self._problem}: raise that limit, or "
            "split the append"
        )
        return OversizedAppend(self._first, self._events, self.last.tenant_id, message)


class CutOff(Exception):  # noqa: N818 - not an error of the caller: the report says it
    """The lines of a file end before the file does: it is cut off or damaged."""


class Source:
    """The lines of an export, one append at a time; header and footer are kept aside.

    A file without a header is taken as events made by hand. `whole` tells, when all is read,
    whether nothing is missing as far as the file shows it.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._cut_off = False
        self._lines = enumerate(self._intact(lines), start=1)
        self._held: tuple[int, bytes] | None = None
        self.header: Header | None = None
        self.whole = False
        first = next(self._lines, None)
        if first is not None and first[1].startswith(b'{"format":'):
            self.header = _decoded(_HEADER, *first)
            _check_header(self.header)
        else:
            self._held = first

    def _intact(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        try:
            yield from lines
        except CutOff:
            self._cut_off = True

    def appends(self, limits: Limits) -> Iterator[list[tuple[int, Line]] | OversizedAppend]:
        """Yield the numbered lines of each append: neighbours that say they began together.

        No more of one append is kept in memory than the limits let a log take.
        """
        pending: _Pending | None = None
        for number, line, size in self._events(limits):
            if pending is not None and not _together(pending.last, line):
                yield pending.finish()
                pending = None
            if pending is None:
                pending = _Pending(limits, number, line)
            pending.add(number, line, size)
        if pending is not None:
            yield pending.finish()

    def _events(self, limits: Limits) -> Iterator[tuple[int, Line | _Outline, int]]:
        held = [] if self._held is None else [self._held]
        events, declared = 0, None
        for number, raw in chain(held, self._lines):
            if raw.startswith(b'{"end":'):
                declared = _decoded(_FOOTER, number, raw).events
            elif raw.strip():
                events += 1
                yield number, _line(number, raw, limits), len(raw)
        complete = self.header is None if declared is None else declared == events
        self.whole = complete and not self._cut_off


def _line(number: int, raw: bytes, limits: Limits) -> Line | _Outline:
    """Read a line; of one that no log takes only an outline, since its tags may need far more."""
    if len(raw) > _SMALL_LINE:
        outline: _Outline = _decoded(_OUTLINE, number, raw)
        payload = len(outline.payload)
        texts = limits.tags * limits.tag_bytes + limits.metadata_bytes + _FIELDS * ID_BYTES_MAX
        if payload > _ESCAPED * limits.payload_bytes or len(raw) - payload > _ESCAPED * texts:
            return outline
    found: Line = _decoded(_LINE, number, raw)
    return found


def _together(one: Line | _Outline, other: Line | _Outline) -> bool:
    return (
        one.append_position is not None
        and one.append_position == other.append_position
        and one.tenant_id == other.tenant_id
    )


def _decoded(decoder: msgspec.json.Decoder[Any], number: int, raw: bytes) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"line {number} is no event of an export: {error}"
        raise InvalidEvent(msg, details={"line": number}) from None


def _check_header(header: Header) -> None:
    if header.format != FORMAT or header.version != FORMAT_VERSION:
        msg = (
            f"this file is {header.format!r:.40} version {header.version}, which is not known here"
        )
        raise InvalidEvent(msg, details={"line": 1})

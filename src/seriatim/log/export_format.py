"""The export format: write a log as NDJSON, and read the lines of such a file.

An export is a header line (the log's identity and declarations), one line per record, and a footer.
An import keeps event ids, so events that are stored already are recognised; positions and
`recorded_at` are assigned by the target log. Both keep only a few pages in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from seriatim.core.errors import InvalidEvent, LogIdentityChanged
from seriatim.core.event import RECORD_COLUMNS, EventRecord
from seriatim.core.ids import ID_BYTES_MAX
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.limits import Limits
from seriatim.core.tenants import check_tenant
from seriatim.log.batches import iterate_pages
from seriatim.store.port import ReadSpec, Store

FORMAT = "seriatim-export"
FORMAT_VERSION = 1
EXPORT_PAGE_EVENTS = 1000
_LINES_PER_PAYLOADS = 4  # the lines of an append may be so many times the limit of its payloads
_ESCAPE_FACTOR = 6  # JSON escapes one byte of text with at most six bytes
_ENVELOPE_TEXTS = 32  # about how many text fields an envelope has
_SMALL_LINE_BYTES = 64 * 1024

ProgressCallback = Callable[[int, int], None]


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of an export: the log's identity, the range, and the declarations."""

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


class ExportFooter(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of an export; a file without it is truncated."""

    end: str = FORMAT
    events: int


class ExportLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One event of an export; a file written by hand omits the fields that a log assigns."""

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
    """The part of a large line that is decoded first, to check its size."""

    payload: msgspec.Raw = msgspec.Raw(b"{}")
    append_position: int | None = None
    tenant_id: str | None = None


def export_log(
    store: Store,
    write: Callable[[bytes], object],
    *,
    tenant_id: str | None = None,
    after: int = 0,
    until: int | None = None,
    progress: ProgressCallback | None = None,
) -> ExportFooter:
    """Write the events up to the current head as NDJSON.

    Args:
        store: The store of the log.
        write: Called with each part of the file.
        tenant_id: Export only this tenant's events; None exports all.
        after: The exclusive start position.
        until: The inclusive end position; None means the head.
        progress: Called with the position reached and the last position.

    Returns:
        The footer, with the number of events.

    Raises:
        LogIdentityChanged: The log was restored or replaced during the export.

    Example:
        with open("export.ndjson", "wb") as file:
            export_log(log.store, file.write)
    """
    if tenant_id is not None:
        check_tenant(tenant_id)
    head = store.head() if until is None else min(until, store.head())
    identity = store.identity()
    rules = store.rules()
    header = ExportHeader(
        log_id=identity.log_id,
        epoch=identity.epoch,
        head=head,
        tenant_id=tenant_id,
        after=after,
        kinds=rules.declared_kinds,
        types=list(rules.types.values()),
        indexes=[index.declaration for index in rules.indexes],
    )
    write(_encode_line(header))
    events = 0
    for page in iterate_pages(
        store, ReadSpec(tenant_id=tenant_id, limit=EXPORT_PAGE_EVENTS, after=after, until=head)
    ):
        write(b"".join(encode_record_line(record) for record in page))
        events += len(page)
        if progress is not None:
            progress(page[-1].position, head)
    if store.identity() != identity:
        msg = "the log was restored or replaced during the export; start it again"
        raise LogIdentityChanged(msg, details={"log_id": identity.log_id})
    footer = ExportFooter(events=events)
    write(_encode_line(footer))
    return footer


def encode_record_line(record: EventRecord) -> bytes:
    """Return a record as a line of JSON, with the payload byte for byte as stored."""
    fields = dict(zip(RECORD_COLUMNS, msgspec.structs.astuple(record), strict=True))
    fields["payload"] = msgspec.Raw(record.payload_json.encode())
    return _encode_line(fields)


def _encode_line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


_LINE = msgspec.json.Decoder(ExportLine)
_HEADER = msgspec.json.Decoder(ExportHeader)
_FOOTER = msgspec.json.Decoder(ExportFooter)
_OUTLINE = msgspec.json.Decoder(_Outline)


class OversizedAppend(msgspec.Struct, frozen=True):
    """An append that exceeds a limit; only its first line number and its size are kept."""

    line: int
    events: int
    tenant_id: str | None
    message: str


class _Pending:
    """The lines of one append while they are read; over a limit they are counted, not kept."""

    def __init__(self, limits: Limits, number: int, line: ExportLine | _Outline) -> None:
        self._limits = limits
        self._first = number
        self.last = line
        self._lines: list[tuple[int, ExportLine]] = []
        self._event_count = self._payload_bytes = self._bytes = 0
        self._problem: str | None = None

    def add(self, number: int, line: ExportLine | _Outline, size: int) -> None:
        """Add a line of the append; a line that is too large is passed as its outline."""
        self.last = line
        self._event_count += 1
        self._payload_bytes += len(line.payload)
        self._bytes += size
        self._problem = self._problem or self._find_problem(number, line)
        if self._problem or isinstance(line, _Outline):
            self._lines.clear()
        else:
            self._lines.append((number, line))

    def _find_problem(self, number: int, line: ExportLine | _Outline) -> str | None:
        """Return which limit the append exceeds with this line, or None."""
        limits = self._limits
        if isinstance(line, _Outline):
            if len(line.payload) > _ESCAPE_FACTOR * limits.payload_bytes:
                return f"has a payload over {limits.payload_bytes} bytes (payload_bytes)"
            bounds = f"tags {limits.tags}, metadata_entries {limits.metadata_entries}"
            return f"has an envelope over its bounds ({bounds}) at line {number}"
        if self._event_count > limits.append_events:
            return f"has more than {limits.append_events} events (append_events)"
        size = max(self._payload_bytes, self._bytes // _LINES_PER_PAYLOADS)
        if size > limits.append_bytes:
            return f"has more than {limits.append_bytes} bytes (append_bytes)"
        return None

    def finish(self) -> list[tuple[int, ExportLine]] | OversizedAppend:
        """Return the lines of the append, or a description of one that is too large."""
        if self._problem is None:
            return self._lines
        message = (
            f"the append that begins at line {self._first} {self._problem}: raise that limit, or "
            "split the append"
        )
        return OversizedAppend(self._first, self._event_count, self.last.tenant_id, message)


class ExportTruncatedError(Exception):
    """Raised by an iterator of lines when the file is truncated or damaged."""


class ExportReader:
    """Read an export file one append at a time.

    A file without a header is accepted as events written by hand. After all lines were read,
    `complete` is true if the file is complete as far as its footer shows.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._cut_off = False
        self._lines = enumerate(self._read_until_truncated(lines), start=1)
        self._first: tuple[int, bytes] | None = None
        self.header: ExportHeader | None = None
        self.complete = False
        first = next(self._lines, None)
        if first is not None and first[1].startswith(b'{"format":'):
            self.header = _decode_line(_HEADER, *first)
            _check_header(self.header)
        else:
            self._first = first

    def _read_until_truncated(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        try:
            yield from lines
        except ExportTruncatedError:
            self._cut_off = True

    def appends(self, limits: Limits) -> Iterator[list[tuple[int, ExportLine]] | OversizedAppend]:
        """Yield the numbered lines of each append.

        Consecutive lines with the same append position and tenant form an append. Of an append
        that exceeds the limits, the lines are not kept in memory.
        """
        pending: _Pending | None = None
        for number, line, size in self._iterate_events(limits):
            if pending is not None and not _is_same_append(pending.last, line):
                yield pending.finish()
                pending = None
            if pending is None:
                pending = _Pending(limits, number, line)
            pending.add(number, line, size)
        if pending is not None:
            yield pending.finish()

    def _iterate_events(self, limits: Limits) -> Iterator[tuple[int, ExportLine | _Outline, int]]:
        first = [] if self._first is None else [self._first]
        events, expected_events = 0, None
        for number, raw in chain(first, self._lines):
            if raw.startswith(b'{"end":'):
                expected_events = _decode_line(_FOOTER, number, raw).events
            elif raw.strip():
                events += 1
                yield number, _parse_event(number, raw, limits), len(raw)
        matches_footer = (
            self.header is None if expected_events is None else expected_events == events
        )
        self.complete = matches_footer and not self._cut_off


def _parse_event(number: int, raw: bytes, limits: Limits) -> ExportLine | _Outline:
    """Decode a line; return only its outline if no log could accept it.

    Decoding such a line completely, with its tags and metadata, could take far more memory.
    """
    if len(raw) > _SMALL_LINE_BYTES:
        outline: _Outline = _decode_line(_OUTLINE, number, raw)
        payload = len(outline.payload)
        texts = limits.tags * limits.tag_bytes + limits.metadata_bytes
        texts += _ENVELOPE_TEXTS * ID_BYTES_MAX
        payload_max, rest_max = _ESCAPE_FACTOR * limits.payload_bytes, _ESCAPE_FACTOR * texts
        if payload > payload_max or len(raw) - payload > rest_max:
            return outline
    line: ExportLine = _decode_line(_LINE, number, raw)
    return line


def _is_same_append(line: ExportLine | _Outline, other: ExportLine | _Outline) -> bool:
    return (
        line.append_position is not None
        and line.append_position == other.append_position
        and line.tenant_id == other.tenant_id
    )


def _decode_line(decoder: msgspec.json.Decoder[Any], number: int, raw: bytes) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"line {number} is not an event of an export: {error}"
        raise InvalidEvent(msg, details={"line": number}) from None


def _check_header(header: ExportHeader) -> None:
    if header.format != FORMAT or header.version != FORMAT_VERSION:
        msg = (
            f"the file has the format {header.format!r:.40} version {header.version}; supported "
            f"is {FORMAT!r} version {FORMAT_VERSION}"
        )
        raise InvalidEvent(msg, details={"line": 1})

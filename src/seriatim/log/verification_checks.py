"""The checks of a verification: each sees every record once, in order, in bounded memory."""

# ruff: noqa: D102 - documented in RecordCheck

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from seriatim.core.canonical import canonical_text, decode_stored_json, hash_text
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.ids import id_problem, key_problem, stream_key
from seriatim.core.kinds import TRACE_STREAM_TYPE, Rules, StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.times import format_us, parse_us
from seriatim.store.port import ReadSpec, Store

TRACKED_STREAMS_MAX = 100_000
PREDICATE_BYTES_MAX = 4096

# The level and description of a problem; a warning may have a harmless reason.
RecordProblem = tuple[Literal["warning", "error"], str]


class RecordCheck(Protocol):
    """A check of one property of the log."""

    name: str

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        """Yield the problems of the next record."""
        ...

    def summarize(self) -> str:
        """Describe the property that holds, if there were no problems."""
        ...


class PositionCheck:
    """Check that positions increase by one from 1."""

    name = "positions"

    def __init__(self, head: int) -> None:
        self._head = head
        self._last = 0

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        expected, self._last = self._last + 1, record.position
        if record.position != expected:
            yield "error", f"position {record.position} where {expected} was expected"

    def summarize(self) -> str:
        return f"{self._head:,} positions from 1, in order, without gaps"


class AppendCheck:
    """Check that each append is a contiguous range of one tenant."""

    name = "appends"

    def __init__(self) -> None:
        self.count = 0
        self._first = 0
        self._tenant = ""

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        if record.append_position == record.position:
            self.count += 1
            self._first, self._tenant = record.position, record.tenant_id
        elif record.append_position != self._first:
            claim = f"position {record.position} has the append position {record.append_position}"
            yield "error", f"{claim}, but its append starts at {self._first}"
        elif record.tenant_id != self._tenant:
            yield (
                "error",
                f"position {record.position} has another tenant than the rest of its append",
            )

    def summarize(self) -> str:
        return f"{self.count:,} appends, each a contiguous range of one tenant"


class PayloadCheck:
    """Check that payloads are canonical JSON and match their hashes."""

    name = "payloads"

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        text = record.payload_json
        try:
            canonical = canonical_text(decode_stored_json(text))
        except (ValueError, RecursionError, msgspec.MsgspecError):
            yield "error", f"position {record.position}: the payload is not JSON"
            return
        if canonical != text:
            yield "error", f"position {record.position}: the payload is not canonical JSON"
        if hash_text(text) != record.payload_hash:
            yield "error", f"position {record.position}: the payload does not match its hash"

    def summarize(self) -> str:
        return "every payload is canonical JSON and matches its SHA-256"


class EnvelopeCheck:
    """Check that ids, keys, numbers and times are well-formed."""

    name = "envelopes"

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        for field, problem in _envelope_problems(record):
            yield "error", f"position {record.position}: {field} {problem}"

    def summarize(self) -> str:
        return "ids, keys, numbers and times are well-formed"


def _envelope_problems(record: EventRecord) -> Iterator[tuple[str, str]]:
    fields = ["event_id", "tenant_id", "event_type"]
    parts = (record.stream_type, record.stream_id, record.stream_seq)
    if parts != (None, None, None):
        fields += ["stream_type", "stream_id"]
        if record.stream_seq is None:
            yield "stream_seq", "is missing"
    for field in fields:
        if problem := id_problem(getattr(record, field)):
            yield field, problem
    if record.idempotency_key is not None and (problem := key_problem(record.idempotency_key)):
        yield "idempotency_key", problem
    if record.event_version < 1:
        yield "event_version", "is below 1"
    if parse_us(record.occurred_at) is None:
        yield "occurred_at", "is not an RFC 3339 timestamp"
    recorded = parse_us(record.recorded_at)
    if recorded is None or format_us(recorded) != record.recorded_at:
        yield "recorded_at", "is not in UTC with microseconds"


class StreamCheck:
    """Check sequence numbers, opening and closing types of streams.

    The last event is kept for a bounded number of streams; for others it is looked up.
    """

    name = "streams"

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules
        self._last: dict[bytes, tuple[int, str]] = {}  # sequence number and type
        self._evicted = False
        self._count = 0

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        stream, seq = record.stream, record.stream_seq
        if stream is None or seq is None:
            return
        key = stream_key(record.tenant_id, *stream)
        last = self._last.pop(key, None) or self._find_predecessor(record, stream, seq)
        self._remember(key, (seq, record.event_type))
        yield from _find_stream_problems(record, last, self._rules.kind_of(stream[0]))
        self._count += last is None

    def _remember(self, key: bytes, last: tuple[int, str]) -> None:
        self._last[key] = last
        if len(self._last) > TRACKED_STREAMS_MAX:
            # Entries are inserted again on each use, so the first one is the least recently used.
            del self._last[next(iter(self._last))]
            self._evicted = True

    def _find_predecessor(
        self, record: EventRecord, stream: StreamRef, seq: int
    ) -> tuple[int, str] | None:
        """Look up the previous event of a stream that may have been evicted."""
        if not self._evicted:
            return None
        spec = ReadSpec(
            tenant_id=record.tenant_id,
            limit=1,
            until=record.position - 1,
            stream=stream,
            after_seq=seq - 2,
        )
        found = self._store.read(spec)
        return (found[0].stream_seq or 0, found[0].event_type) if found else None

    def summarize(self) -> str:
        return f"{self._count:,} streams, each numbered without gaps, none continued after its end"


def _find_stream_problems(
    record: EventRecord, last: tuple[int, str] | None, kind: StreamKind
) -> Iterator[RecordProblem]:
    """Yield the problems of a record after the previous event of its stream.

    A kind may be declared after a stream of its type began, so violating its rules is only a
    warning. The rules of traces are built in, so violating them is an error.
    """
    where = f"position {record.position}: stream ({record.stream_type}, {record.stream_id})"
    rule: Literal["warning", "error"] = "error" if kind.name == TRACE_STREAM_TYPE else "warning"
    seq = record.stream_seq
    if last is None:
        if seq != kind.first_seq:
            yield (rule if seq in (0, 1) else "error"), f"{where} begins with number {seq}"
        if kind.opening_type not in (None, record.event_type):
            yield rule, f"{where} does not open with {kind.opening_type}"
        return
    if seq != last[0] + 1:
        yield "error", f"{where} has number {seq} after {last[0]}"
    if last[1] in kind.closing_types:
        yield rule, f"{where} continues after it was closed by {last[1]}"
    if record.event_type == kind.opening_type:
        yield rule, f"{where} opens a second time"


class LookupCheck:
    """Look a sample of records up by every key, to detect an index that misses a record."""

    name = "look-ups"

    def __init__(self, store: Store, step: int) -> None:
        self._store = store
        self._step = step
        self._count = 0

    def check(self, record: EventRecord) -> Iterator[RecordProblem]:
        if record.position % self._step:
            return
        self._count += 1
        for key in self._find_misses(record):
            yield "error", f"position {record.position} is not found by its {key}"

    def _find_misses(self, record: EventRecord) -> Iterator[str]:
        store, tenant = self._store, record.tenant_id
        if store.event(tenant, record.event_id) != record:
            yield "event id"
        if store.event_id_at(record.position) != record.event_id:
            yield "position"
        if record.stream is not None:
            last = store.last_of_stream(tenant, record.stream)
            if last is None or last.position < record.position:
                yield "stream"
        if store.context_version(tenant, _make_query(record), record.position) != record.position:
            yield "type, tags and payload"

    def summarize(self) -> str:
        return f"{self._count:,} records found by event id, position, stream and query"


def _make_query(record: EventRecord) -> Query:
    one = Filter(
        types=(record.event_type,),
        payload=_make_predicate(record),
        tags=record.tags or None,
        streams=None if record.stream is None else (record.stream,),
    )
    return Query((one,))


def _make_predicate(record: EventRecord) -> tuple[object, ...] | None:
    """Return the payload as a predicate; None if it is large, or malformed (reported elsewhere)."""
    if len(record.payload_json) > PREDICATE_BYTES_MAX:
        return None
    try:
        return (record.payload,)
    except ValueError:
        return None

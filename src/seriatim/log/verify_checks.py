"""The checks of a verification: each looks at every record once, in order, and remembers little."""

# ruff: noqa: D102 - look and holds do what Check says

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from seriatim.core.canonical import canonical_text, read_json, text_hash
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.ids import id_problem, key_problem, stream_key
from seriatim.core.kinds import TRACE_KIND, Rules, StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.times import format_us, instant_us
from seriatim.store.port import ReadSpec, Store

FOLLOWED_STREAMS_MAX = 100_000
PREDICATE_BYTES_MAX = 4096

# What is wrong with a record, and whether it may have an innocent reason.
Problem = tuple[Literal["warning", "error"], str]


class Check(Protocol):
    """One property of the log."""

    name: str

    def look(self, record: EventRecord) -> Iterator[Problem]:
        """Yield what is wrong with the next record."""
        ...

    def holds(self) -> str:
        """Say what was proved, when nothing was wrong."""
        ...


class Positions:
    """Positions rise by one from 1."""

    name = "positions"

    def __init__(self, head: int) -> None:
        self._head = head
        self._last = 0

    def look(self, record: EventRecord) -> Iterator[Problem]:
        expected, self._last = self._last + 1, record.position
        if record.position != expected:
            yield "error", f"position {record.position} stands where {expected} belongs"

    def holds(self) -> str:
        return f"{self._head:,} positions from 1, in order, without a gap"


class Appends:
    """Each append is one consecutive range of one tenant."""

    name = "appends"

    def __init__(self) -> None:
        self.count = 0
        self._first = 0
        self._tenant = ""

    def look(self, record: EventRecord) -> Iterator[Problem]:
        if record.append_position == record.position:
            self.count += 1
            self._first, self._tenant = record.position, record.tenant_id
        elif record.append_position != self._first:
            claimed = (
                f"position {record.position} says its append began at {record.append_position}"
            )
            yield "error", f"{claimed}, the append before it began at {self._first}"
        elif record.tenant_id != self._tenant:
            yield (
                "error",
                f"position {record.position} is another tenant's than the rest of its append",
            )

    def holds(self) -> str:
        return f"{self.count:,} appends, each one consecutive range of one tenant"


class Payloads:
    """Payloads are canonical and have their hash."""

    name = "payloads"

    def look(self, record: EventRecord) -> Iterator[Problem]:
        text = record.payload
        try:
            canonical = canonical_text(read_json(text))
        except (ValueError, RecursionError, msgspec.MsgspecError):
            yield "error", f"position {record.position}: the payload is not JSON"
            return
        if canonical != text:
            yield "error", f"position {record.position}: the payload is not canonical JSON"
        if text_hash(text) != record.payload_hash:
            yield "error", f"position {record.position}: the payload does not have its hash"

    def holds(self) -> str:
        return "every payload is canonical JSON and has its SHA-256"


class Envelopes:
    """What stands around the payloads is well-formed."""

    name = "envelopes"

    def look(self, record: EventRecord) -> Iterator[Problem]:
        for field, problem in _envelope_problems(record):
            yield "error", f"position {record.position}: {field} {problem}"

    def holds(self) -> str:
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
    if instant_us(record.occurred_at) is None:
        yield "occurred_at", "is no RFC 3339 timestamp"
    recorded = instant_us(record.recorded_at)
    if recorded is None or format_us(recorded) != record.recorded_at:
        yield "recorded_at", "is not in UTC with microseconds"


class Streams:
    """Follows the last number and type of each stream, of as many streams as memory allows."""

    name = "streams"

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules
        self._ends: dict[bytes, tuple[int, str]] = {}
        self._dropped = False
        self._count = 0

    def look(self, record: EventRecord) -> Iterator[Problem]:
        stream, seq = record.stream, record.stream_seq
        if stream is None or seq is None:
            return
        key = stream_key(record.tenant_id, *stream)
        end = self._ends.pop(key, None) or self._looked_up(record, stream, seq)
        self._follow(key, (seq, record.event_type))
        yield from _step_problems(record, end, self._rules.kind_of(stream[0]))
        self._count += end is None

    def _follow(self, key: bytes, end: tuple[int, str]) -> None:
        self._ends[key] = end
        if len(self._ends) > FOLLOWED_STREAMS_MAX:
            del self._ends[next(iter(self._ends))]
            self._dropped = True

    def _looked_up(
        self, record: EventRecord, stream: StreamRef, seq: int
    ) -> tuple[int, str] | None:
        """Fetch the predecessor of a stream that is not followed any more."""
        if not self._dropped:
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

    def holds(self) -> str:
        return f"{self._count:,} streams, each numbered without a gap, none going on after its end"


def _step_problems(
    record: EventRecord, end: tuple[int, str] | None, kind: StreamKind
) -> Iterator[Problem]:
    """Say what is wrong with one step of a stream, from its end so far to this record.

    A kind may have been declared after a stream of its type began, so breaking its rules is only
    a warning; the rules of traces are older than any log.
    """
    where = f"position {record.position}: stream ({record.stream_type}, {record.stream_id})"
    rule: Literal["warning", "error"] = "error" if kind.name == TRACE_KIND else "warning"
    seq = record.stream_seq
    if end is None:
        if seq != kind.first_seq:
            yield (rule if seq in (0, 1) else "error"), f"{where} begins with number {seq}"
        if kind.opening_type not in (None, record.event_type):
            yield rule, f"{where} does not open with {kind.opening_type}"
        return
    if seq != end[0] + 1:
        yield "error", f"{where} has number {seq} after {end[0]}"
    if end[1] in kind.closing_types:
        yield rule, f"{where} goes on after it was closed by {end[1]}"
    if record.event_type == kind.opening_type:
        yield rule, f"{where} opens a second time"


class Lookups:
    """Fetches a sample by every key, so that an index that lost a record is noticed."""

    name = "look-ups"

    def __init__(self, store: Store, step: int) -> None:
        self._store = store
        self._step = step
        self._count = 0

    def look(self, record: EventRecord) -> Iterator[Problem]:
        if record.position % self._step:
            return
        self._count += 1
        for way in self._misses(record):
            yield "error", f"position {record.position} is not found by its {way}"

    def _misses(self, record: EventRecord) -> Iterator[str]:
        store, tenant = self._store, record.tenant_id
        if store.event(tenant, record.event_id) != record:
            yield "event id"
        if store.event_id_at(record.position) != record.event_id:
            yield "position"
        if record.stream is not None:
            last = store.last_of_stream(tenant, record.stream)
            if last is None or last.position < record.position:
                yield "stream"
        if store.context_version(tenant, _query_for(record), record.position) != record.position:
            yield "type, tags and payload"

    def holds(self) -> str:
        return f"{self._count:,} records found again by event id, position, stream and query"


def _query_for(record: EventRecord) -> Query:
    one = Filter(
        types=(record.event_type,),
        payload=_predicate(record),
        tags=record.tags or None,
        streams=None if record.stream is None else (record.stream,),
    )
    return Query((one,))


def _predicate(record: EventRecord) -> tuple[object, ...] | None:
    """Ask for the payload itself, unless it is large or broken, which another check reports."""
    if len(record.payload) > PREDICATE_BYTES_MAX:
        return None
    try:
        return (record.data,)
    except ValueError:
        return None

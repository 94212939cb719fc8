"""Verification: read the whole log, across tenants, and check that it is consistent.

Every record passes through every check, page by page. Checks that need an index or a query over the
whole table are made by the backend (`Store.verify`) at the end. The last event of each stream is
kept in a table of bounded size; the predecessor of an evicted stream is looked up, so memory does
not grow with the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

import msgspec

from seriatim.core.consistency import (
    EventProblem,
    find_append_problem,
    find_envelope_problems,
    find_payload_problems,
    find_stream_problems,
)
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Filter, Query
from seriatim.core.times import format_us, parse_us
from seriatim.log.batches import iterate_pages
from seriatim.store.port import Finding, ReadSpec, Store

# ruff: noqa: D102 - documented in RecordCheck


TRACKED_STREAMS_MAX = 100_000
PREDICATE_BYTES_MAX = 4096


class RecordCheck(Protocol):
    """A check of one property of the log."""

    name: str

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
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

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
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

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
        start = (self._first, self._tenant) if self._first else None
        if record.append_position == record.position:
            self.count += 1
            self._first, self._tenant = record.position, record.tenant_id
        elif problem := find_append_problem(
            record.position, record.append_position, record.tenant_id, start
        ):
            yield "error", problem

    def summarize(self) -> str:
        return f"{self.count:,} appends, each a contiguous range of one tenant"


class PayloadCheck:
    """Check that payloads are canonical JSON and match their hashes."""

    name = "payloads"

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
        for problem in find_payload_problems(record.payload_json, record.payload_hash):
            yield "error", f"position {record.position}: {problem}"

    def summarize(self) -> str:
        return "every payload is canonical JSON and matches its SHA-256"


class EnvelopeCheck:
    """Check that ids, keys, numbers and times are well-formed."""

    name = "envelopes"

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
        problems = find_envelope_problems(
            event_id=record.event_id,
            tenant_id=record.tenant_id,
            event_type=record.event_type,
            event_version=record.event_version,
            stream_type=record.stream_type,
            stream_id=record.stream_id,
            stream_seq=record.stream_seq,
            idempotency_key=record.idempotency_key,
        )
        for problem in (*problems, *_find_time_problems(record)):
            yield "error", f"position {record.position}: {problem}"

    def summarize(self) -> str:
        return "ids, keys, numbers and times are well-formed"


def _find_time_problems(record: EventRecord) -> Iterator[str]:
    if parse_us(record.occurred_at) is None:
        yield "occurred_at is not an RFC 3339 timestamp"
    recorded = parse_us(record.recorded_at)
    if recorded is None or format_us(recorded) != record.recorded_at:
        yield "recorded_at is not in UTC with microseconds"


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

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
        stream, seq = record.stream, record.stream_seq
        if stream is None or seq is None:
            return
        key = stream_key(record.tenant_id, *stream)
        last = self._last.pop(key, None) or self._find_predecessor(record, stream, seq)
        self._remember(key, (seq, record.event_type))
        where = f"position {record.position}: stream ({stream[0]}, {stream[1]})"
        kind = self._rules.kind_of(stream[0])
        for level, problem in find_stream_problems(seq, record.event_type, last, kind):
            yield level, f"{where} {problem}"
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
        records = self._store.read(spec)
        return (records[0].stream_seq or 0, records[0].event_type) if records else None

    def summarize(self) -> str:
        return f"{self._count:,} streams, each numbered without gaps, none continued after its end"


class LookupCheck:
    """Look a sample of records up by every key, to detect an index that misses a record."""

    name = "look-ups"

    def __init__(self, store: Store, step: int) -> None:
        self._store = store
        self._step = step
        self._count = 0

    def check(self, record: EventRecord) -> Iterator[EventProblem]:
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
    query_filter = Filter(
        types=(record.event_type,),
        payload=_make_predicate(record),
        tags=record.tags or None,
        streams=None if record.stream is None else (record.stream,),
    )
    return Query((query_filter,))


def _make_predicate(record: EventRecord) -> tuple[object, ...] | None:
    """Return the payload as a predicate; None if it is large, or malformed (reported elsewhere)."""
    if len(record.payload_json) > PREDICATE_BYTES_MAX:
        return None
    try:
        return (record.payload,)
    except ValueError:
        return None


VERIFY_PAGE_EVENTS = 2000
REPORTED_PROBLEMS_MAX = 20

_CURE = "find the cause before appending more; restore a backup, or export the intact events"

ProgressCallback = Callable[[int, int], None]


class VerificationReport(msgspec.Struct, frozen=True):
    """The result of a verification: a finding per passed check, or its first problems.

    Attributes:
        findings: The level, check, message and cure of each.
        head: The last position of the log.
        events: The number of verified events.
        appends: The number of appends that they belong to.
        seconds: How long it took.
    """

    findings: list[Finding]
    head: int
    events: int
    appends: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings do not count."""
        return all(finding.level != "error" for finding in self.findings)


def verify(
    store: Store,
    *,
    lookups: int | None = 1000,
    progress: ProgressCallback | None = None,
) -> VerificationReport:
    """Read the whole log and check it. Events appended meanwhile are not checked.

    Args:
        store: The store of the log.
        lookups: How many records are also looked up by their keys; None means all.
        progress: Called with the position reached and the head.

    Example:
        report = verify(log.store)
        assert report.ok, report.findings
    """
    started = time.perf_counter()
    head = store.head()
    step = 1 if lookups is None else max(1, head // max(1, lookups))
    appends = AppendCheck()
    checks: list[RecordCheck] = [
        PositionCheck(head),
        appends,
        PayloadCheck(),
        EnvelopeCheck(),
        StreamCheck(store, store.rules()),
        LookupCheck(store, step),
    ]
    problems = _Problems()
    events = 0
    for record in _iterate_records(store, head, progress):
        events += 1
        for check in checks:
            for problem in check.check(record):
                problems.add(check.name, problem)
    findings = [*_summarize(checks, problems, events, head), *_verify_backend(store)]
    return VerificationReport(findings, head, events, appends.count, time.perf_counter() - started)


def _iterate_records(
    store: Store, head: int, progress: ProgressCallback | None
) -> Iterator[EventRecord]:
    for page in iterate_pages(
        store, ReadSpec(tenant_id=None, limit=VERIFY_PAGE_EVENTS, until=head)
    ):
        yield from page
        if progress is not None:
            progress(page[-1].position, head)


def _summarize(
    checks: Iterable[RecordCheck], problems: _Problems, events: int, head: int
) -> Iterator[Finding]:
    if events != head:
        message = f"the head is {head}, but {events} events were read"
        problems.add(PositionCheck.name, ("error", message))
    for check in checks:
        findings = problems.collect(check.name)
        yield from findings or [Finding("ok", check.name, check.summarize())]


def _verify_backend(store: Store) -> Iterator[Finding]:
    """Yield the findings of the backend, with its name before each check."""
    for finding in store.verify():
        yield msgspec.structs.replace(finding, check=f"{store.name} {finding.check}")


class _Problems:
    """Count all problems and keep the first of each check."""

    def __init__(self) -> None:
        self._findings: dict[str, list[Finding]] = {}
        self._counts: dict[tuple[str, Literal["warning", "error"]], int] = {}

    def add(self, check: str, problem: EventProblem) -> None:
        level, message = problem
        count = self._counts[check, level] = self._counts.get((check, level), 0) + 1
        if count <= REPORTED_PROBLEMS_MAX:
            cure = _CURE if level == "error" else "none, if the kind was declared later"
            self._findings.setdefault(check, []).append(Finding(level, check, message, cure))

    def collect(self, check: str) -> list[Finding]:
        findings = self._findings.get(check, [])
        for (name, level), count in self._counts.items():
            if name == check and count > REPORTED_PROBLEMS_MAX:
                findings.append(
                    Finding(level, check, f"and {count - REPORTED_PROBLEMS_MAX} more of this kind")
                )
        return findings

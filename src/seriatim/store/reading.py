"""What a read keeps, what a cursor may do and what indexes know, judged in Python."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import msgspec

from seriatim.core.canonical import read_json
from seriatim.core.errors import Conflict, InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.ids import idempotency_index_key, key_problem
from seriatim.core.kinds import TRACE_KIND, Rules
from seriatim.core.patterns import Names
from seriatim.core.request import StoredCommand
from seriatim.core.routes import Route
from seriatim.core.times import format_us, instant_us
from seriatim.store.port import (
    Cursor,
    Finding,
    ReadSpec,
    StoredAppend,
    StreamSummary,
    SubscriptionState,
)

_APPEND_PAGE = 16  # events: most appends are smaller
_APPEND_PAGE_MAX = 4096

Read = Callable[[ReadSpec], list[EventRecord]]


def payload_bytes(record: EventRecord) -> int:
    """Return the size of a record's payload as it is stored."""
    text = record.payload
    return len(text) if text.isascii() else len(text.encode())


def take(
    records: Iterable[EventRecord], limit: int, max_bytes: int | None = None
) -> list[EventRecord]:
    """Return the first `limit` records, or those up to the one that reaches `max_bytes`."""
    if max_bytes is None:
        return list(islice(records, limit))
    found: list[EventRecord] = []
    for record in records:
        found.append(record)
        max_bytes -= payload_bytes(record)
        if len(found) == limit or max_bytes <= 0:
            break
    return found


def is_full(records: Sequence[EventRecord], limit: int, max_bytes: int | None) -> bool:
    """Tell whether a page ended by one of its bounds, so that more records may follow it."""
    if len(records) >= limit:
        return True
    return max_bytes is not None and sum(map(payload_bytes, records)) >= max_bytes


class PageBounds(msgspec.Struct, frozen=True):
    """The range, the bounds and the order of one page of records."""

    after: int
    until: int
    limit: int
    max_bytes: int | None = None
    newest_first: bool = False

    def within(self, route: Route) -> Route:
        """Return the part of a route that lies in the page's range."""
        after, until = max(route.after, self.after), min(route.until, self.until)
        return msgspec.structs.replace(route, after=after, until=until)

    def ending_at(self, position: int) -> PageBounds:
        """Return the page with a range that ends at a position, in its own order."""
        edge = {"after": position - 1} if self.newest_first else {"until": position}
        return msgspec.structs.replace(self, **edge)

    def merge(self, first: list[EventRecord], second: list[EventRecord]) -> list[EventRecord]:
        """Return the first records of two lists, those in both once."""
        merged = heapq.merge(
            first, second, key=lambda record: record.position, reverse=self.newest_first
        )
        unique = (next(same) for _, same in groupby(merged, key=lambda record: record.position))
        return take(unique, self.limit, self.max_bytes)


def keeps(spec: ReadSpec, record: EventRecord) -> bool:
    """Tell whether a record in the position range belongs to the read."""
    return (
        spec.tenant_id in (None, record.tenant_id)
        and _in_scope(spec, record)
        and spec.stream in (None, record.stream)
        and (spec.after_seq is None or (record.stream_seq or 0) > spec.after_seq)
        and (spec.types is None or Names.of(spec.types).allows(record.event_type))
        and spec.app_id in (None, record.app_id)
        and spec.env_id in (None, record.env_id)
        and spec.correlation_id in (None, record.correlation_id)
        and spec.causation_id in (None, record.causation_id)
        and _within(record.occurred_at, spec.occurred_after_us, spec.occurred_until_us)
        and _within(record.recorded_at, spec.recorded_after_us, spec.recorded_until_us)
    )


def _in_scope(spec: ReadSpec, record: EventRecord) -> bool:
    if spec.scope == "log":
        return True
    if spec.scope == "traces":
        return record.stream_type == TRACE_KIND
    return record.stream_type not in (None, TRACE_KIND)


def _within(text: str, after_us: int | None, until_us: int | None) -> bool:
    if after_us is None and until_us is None:
        return True
    moment = instant_us(text) or 0
    return (after_us is None or moment > after_us) and (until_us is None or moment <= until_us)


def append_by_key(
    by_index: Callable[[bytes], EventRecord | None],
    read: Read,
    tenant_id: str,
    producer_id: str | None,
    key: str,
) -> StoredAppend | None:
    """Return the append stored under a key: k stands on its first event as k/0."""
    for one in (f"{key}/0", key):
        if key_problem(one) is None:
            record = by_index(idempotency_index_key(tenant_id, producer_id, one))
            if record is not None:
                return StoredAppend(_whole_append(read, record))
    return None


def append_by_command(
    stored: StoredCommand | None, read: Read, tenant_id: str
) -> StoredAppend | None:
    """Return the append of a command, with its response."""
    if stored is None:
        return None
    records: list[EventRecord] = []
    while (after := stored.first_position - 1 + len(records)) < stored.last_position:
        until = min(stored.last_position, after + _APPEND_PAGE_MAX)
        spec = ReadSpec(tenant_id=tenant_id, limit=until - after, after=after, until=until)
        records += read(spec)
    return StoredAppend(tuple(records), stored.request_hash, read_json(stored.response))


def _whole_append(read: Read, record: EventRecord) -> tuple[EventRecord, ...]:
    """Read the append of a record: consecutive positions that share their first."""
    first, limit = record.append_position, _APPEND_PAGE
    found: list[EventRecord] = []
    while True:
        after = first - 1 + len(found)
        until = after + limit
        spec = ReadSpec(tenant_id=record.tenant_id, limit=limit, after=after, until=until)
        own = [one for one in read(spec) if one.append_position == first]
        found += own
        if len(own) < limit:
            return tuple(found)
        limit = min(limit * 8, _APPEND_PAGE_MAX)


def summary(first: EventRecord, last: EventRecord) -> StreamSummary:
    """Sum up a stream from its first and its last event."""
    return StreamSummary(
        first.stream_type or "",
        first.stream_id or "",
        first.position,
        last.position,
        last.stream_seq or 0,
        last.event_type,
    )


def subscription_state(row: tuple[Any, ...]) -> SubscriptionState:
    """Make the state of one row of `subscriptions`."""
    tenant_id, name, position, query, updated_us, owner, failures, error, failed_us = row
    return SubscriptionState(
        tenant_id=tenant_id,
        name=name,
        position=position,
        query=query,
        updated_at=format_us(updated_us),
        owner=owner,
        failures=failures,
        last_error=error,
        last_error_at=None if failed_us is None else format_us(failed_us),
    )


def index_findings(rules: Rules) -> Iterator[Finding]:
    """Tell doctor which payload indexes there are, and which of them know only newer events."""
    for index in rules.indexes:
        if index.since:
            message = f"{index.path} of {index.event_type} up to position {index.since} is walked"
            cure = "import an export of the log into a new one, which indexes all of it"
            yield Finding("warning", "payload index", message, cure)
    if rules.indexes:
        yield Finding("ok", "payload indexes", f"{len(rules.indexes)} are declared")


def check_cursor_move(stored: Cursor | None, wanted: Cursor, *, reset: bool) -> None:
    """Refuse a move backwards, and another query under a known name, unless it is a reset."""
    if stored is None or reset:
        return
    if stored.query != wanted.query:
        msg = f"{wanted.name!r} is known with another query"
        raise Conflict(msg, details={"name": wanted.name})
    if wanted.position < stored.position:
        msg = f"the cursor of {wanted.name!r} moves backwards only by a reset"
        details = {"argument": "position", "stored": stored.position, "given": wanted.position}
        raise InvalidArgument(msg, details=details)

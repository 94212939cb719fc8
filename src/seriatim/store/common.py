"""Logic that the backends share: page limits, read filters, append lookups and cursor rules."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import msgspec

from seriatim.core.canonical import decode_stored_json
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.errors import Conflict, InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.ids import idempotency_index_key, key_problem
from seriatim.core.kinds import Rules
from seriatim.core.limits import limit_error
from seriatim.core.patterns import NameFilter
from seriatim.core.query_plan import AccessPath
from seriatim.core.request import StoredCommand
from seriatim.core.times import format_us, parse_us
from seriatim.store.port import (
    SKIPPED_BATCHES_MAX,
    STREAM_SCAN_MAX,
    BatchAttempt,
    Cursor,
    Finding,
    ReadSpec,
    SkippedBatch,
    Store,
    StoredAppend,
    StreamPage,
    StreamSummary,
    SubscriptionState,
)

_APPEND_PAGE = 16  # events; most appends are smaller
_APPEND_PAGE_MAX = 4096

ReadPage = Callable[[ReadSpec], list[EventRecord]]


def count_payload_bytes(record: EventRecord) -> int:
    """Return the stored size of a record's payload in bytes."""
    text = record.payload_json
    return len(text) if text.isascii() else len(text.encode())


def take_page(
    records: Iterable[EventRecord], limit: int, max_bytes: int | None = None
) -> list[EventRecord]:
    """Return the first `limit` records, or fewer if their payloads reach `max_bytes`."""
    if max_bytes is None:
        return list(islice(records, limit))
    page: list[EventRecord] = []
    for record in records:
        page.append(record)
        # After it was added: a page has at least one record, however large.
        max_bytes -= count_payload_bytes(record)
        if len(page) == limit or max_bytes <= 0:
            break
    return page


def is_page_full(records: Sequence[EventRecord], limit: int, max_bytes: int | None) -> bool:
    """Return True if a page reached one of its limits, so that more records may follow."""
    if len(records) >= limit:
        return True
    return max_bytes is not None and sum(map(count_payload_bytes, records)) >= max_bytes


def read_pages(store: Store, spec: ReadSpec, until: int) -> Iterator[list[EventRecord]]:
    """Yield the records up to a position in pages, each within the limits of `spec`."""
    after = spec.after
    while after < until:
        limit = min(spec.limit, until - after)
        page = msgspec.structs.replace(spec, after=after, until=until, limit=limit)
        records = list(store.read(page))
        if records:
            after = records[-1].position
            yield records
        if not is_page_full(records, limit, spec.max_bytes):
            return


class PageBounds(msgspec.Struct, frozen=True):
    """The position range (after, until], the limits and the order of one page."""

    after: int
    until: int
    limit: int
    max_bytes: int | None = None
    newest_first: bool = False

    def narrow_route(self, route: AccessPath) -> AccessPath:
        """Return the route, restricted to the page's range."""
        after, until = max(route.after, self.after), min(route.until, self.until)
        return msgspec.structs.replace(route, after=after, until=until)

    def end_at(self, position: int) -> PageBounds:
        """Return the page with its range cut off at a position, in its own order."""
        bound = {"after": position - 1} if self.newest_first else {"until": position}
        return msgspec.structs.replace(self, **bound)

    def merge_records(
        self, first: list[EventRecord], second: list[EventRecord]
    ) -> list[EventRecord]:
        """Merge two sorted lists into one page, without duplicates."""
        merged = heapq.merge(
            first, second, key=lambda record: record.position, reverse=self.newest_first
        )
        groups = groupby(merged, key=lambda record: record.position)
        unique = (next(duplicates) for _, duplicates in groups)
        return take_page(unique, self.limit, self.max_bytes)


def matches_spec(spec: ReadSpec, record: EventRecord) -> bool:
    """Return True if a record satisfies all filters of a read; positions are not compared."""
    return (
        spec.tenant_id in (None, record.tenant_id)
        and _in_scope(spec, record)
        and spec.stream in (None, record.stream)
        and (spec.after_seq is None or (record.stream_seq or 0) > spec.after_seq)
        and (spec.types is None or NameFilter.parse(spec.types).allows(record.event_type))
        and spec.app_id in (None, record.app_id)
        and spec.env_id in (None, record.env_id)
        and spec.correlation_id in (None, record.correlation_id)
        and spec.causation_id in (None, record.causation_id)
        and spec.actor_id in (None, record.actor_id)
        and _within(record.occurred_at, spec.occurred_after_us, spec.occurred_until_us)
        and _within(record.recorded_at, spec.recorded_after_us, spec.recorded_until_us)
    )


def _in_scope(spec: ReadSpec, record: EventRecord) -> bool:
    if spec.scope == "log":
        return True
    if spec.scope == "traces":
        return record.stream_type == TRACE_STREAM_TYPE
    return record.stream_type not in (None, TRACE_STREAM_TYPE)


def _within(text: str, after_us: int | None, until_us: int | None) -> bool:
    if after_us is None and until_us is None:
        return True
    time_us = parse_us(text) or 0
    return (after_us is None or time_us > after_us) and (until_us is None or time_us <= until_us)


def find_append_by_key(
    find_by_index: Callable[[bytes], EventRecord | None],
    read: ReadPage,
    tenant_id: str,
    producer_id: str | None,
    key: str,
) -> StoredAppend | None:
    """Find the append stored under an idempotency key.

    The key k of a whole append is stored on its first event as k/0. A key may also belong to one
    event only.

    Args:
        find_by_index: Looks up an event by its idempotency index key.
        read: Reads a page of records.
        tenant_id: The tenant.
        producer_id: The producer that the key belongs to.
        key: The idempotency key.

    Returns:
        The append, or the single event with this key; None if there is neither.

    """
    for stored_key in (f"{key}/0", key):
        if key_problem(stored_key) is None:
            record = find_by_index(idempotency_index_key(tenant_id, producer_id, stored_key))
            if record is not None:
                return StoredAppend(_read_append(read, record))
    return None


def find_append_by_command(
    stored: StoredCommand | None, read: ReadPage, tenant_id: str
) -> StoredAppend | None:
    """Return the append of a stored command, with its response; None without a command."""
    if stored is None:
        return None
    records: list[EventRecord] = []
    while (after := stored.first_position - 1 + len(records)) < stored.last_position:
        until = min(stored.last_position, after + _APPEND_PAGE_MAX)
        spec = ReadSpec(tenant_id=tenant_id, limit=until - after, after=after, until=until)
        records += read(spec)
    return StoredAppend(tuple(records), stored.request_hash, decode_stored_json(stored.response))


def _read_append(read: ReadPage, record: EventRecord) -> tuple[EventRecord, ...]:
    """Read all events of a record's append: consecutive records with one append position."""
    # An event does not record the size of its append, so pages grow until one ends the append.
    first, limit = record.append_position, _APPEND_PAGE
    records: list[EventRecord] = []
    while True:
        after = first - 1 + len(records)
        until = after + limit
        spec = ReadSpec(tenant_id=record.tenant_id, limit=limit, after=after, until=until)
        page = [found for found in read(spec) if found.append_position == first]
        records += page
        if len(page) < limit:
            return tuple(records)
        limit = min(limit * 8, _APPEND_PAGE_MAX)


def make_stream_page(rows: Iterable[Sequence[Any]], limit: int) -> StreamPage:
    """Return a page of streams from rows of `list_streams`.

    The row without a type has the last position that was read, and the number of events read.
    """
    streams, last_scanned = [], None
    for row in rows:
        if row[0] is not None:
            streams.append(StreamSummary(*row))
        elif row[4] >= STREAM_SCAN_MAX:
            last_scanned = row[2]
    if len(streams) >= limit:
        last_scanned = streams[-1].first_position
    return StreamPage(streams, last_scanned)


def summarize_stream(first: EventRecord, last: EventRecord) -> StreamSummary:
    """Return the summary of a stream from its first and last event."""
    return StreamSummary(
        first.stream_type or "",
        first.stream_id or "",
        first.position,
        last.position,
        last.stream_seq or 0,
        last.event_type,
    )


def decode_cursor(row: tuple[Any, ...]) -> Cursor:
    """Build a cursor from a row of the statement `find_cursor`."""
    tenant_id, purpose, name, position, log_id, epoch, last_event_id, query, updated_us = row[:9]
    return Cursor(
        tenant_id=tenant_id,
        purpose=purpose,
        name=name,
        position=position,
        log_id=log_id,
        epoch=epoch,
        last_event_id=last_event_id,
        query=query,
        updated_at=format_us(updated_us),
        attempt=_decode_attempt(position, row[9:]),
    )


def _decode_attempt(position: int, columns: tuple[Any, ...]) -> BatchAttempt | None:
    """Build the attempts at the next batch, None if there are none.

    Attempts belong to the position of the cursor at which they were made. A program that does not
    know them moves the cursor and leaves them behind.
    """
    attempts, failures, after, first, last, parked_us = columns
    if after != position:
        return None
    return BatchAttempt(
        first_position=first,
        last_position=last,
        attempts=attempts,
        failures=failures,
        parked_at=None if parked_us is None else format_us(parked_us),
    )


def decode_subscription(row: tuple[Any, ...]) -> SubscriptionState:
    """Build the state from a row of the statement `list_subscriptions`."""
    tenant_id, name, position, query, updated_us, owner, error, failed_us, skipped = row[:9]
    return SubscriptionState(
        tenant_id=tenant_id,
        name=name,
        position=position,
        query=query,
        updated_at=format_us(updated_us),
        owner=owner,
        failures=row[10],
        last_error=error,
        last_error_at=None if failed_us is None else format_us(failed_us),
        attempt=_decode_attempt(position, row[9:]),
        skipped=skipped,
    )


def decode_skipped_batch(row: tuple[Any, ...]) -> SkippedBatch:
    """Build a skipped batch from a row of the statement `list_skipped_batches`."""
    first, last, attempts, error, skipped_us, skipped_by, reason = row
    return SkippedBatch(
        first_position=first,
        last_position=last,
        attempts=attempts,
        error=error,
        skipped_at=format_us(skipped_us),
        skipped_by=skipped_by,
        reason=reason,
    )


def check_payload_indexes(rules: Rules) -> Iterator[Finding]:
    """Yield findings on the payload indexes: a warning for each that does not cover old events."""
    for index in rules.indexes:
        if index.since:
            message = (
                f"the index on {index.path} of {index.event_type} does not cover positions up to "
                f"{index.since}, which queries scan"
            )
            cure = "export the log and import it into a new one, which indexes all events"
            yield Finding("warning", "payload index", message, cure)
    if rules.indexes:
        yield Finding("ok", "payload indexes", f"{len(rules.indexes)} are declared")


def check_cursor_move(stored: Cursor | None, requested: Cursor, *, reset: bool) -> None:
    """Check that a cursor moves forward and keeps its query, unless it is reset.

    Args:
        stored: The stored cursor, None if there is none.
        requested: The cursor to store.
        reset: Allow any move.

    Raises:
        Conflict: The query differs from the stored one.
        InvalidArgument: The position is lower than the stored one.

    """
    if stored is None or reset:
        return
    name = requested.name
    if stored.query != requested.query:
        msg = f"{name!r} exists with another query: reset it, or use another name"
        raise Conflict(msg, details={"name": name})
    if requested.position < stored.position:
        msg = (
            f"the cursor of {name!r} cannot move back from {stored.position} to "
            f"{requested.position} without a reset"
        )
        details = {"argument": "position", "stored": stored.position, "given": requested.position}
        raise InvalidArgument(msg, details=details)


def check_skip(stored: Cursor | None, requested: Cursor, after: int) -> None:
    """Check that the cursor of a subscription is still before the batch to skip.

    Raises:
        Conflict: It is not.

    """
    if stored is None or stored.position != after or stored.query != requested.query:
        msg = (
            f"the cursor of {requested.name!r} is no longer at {after}: show the subscription, and "
            "skip the batch that it reports"
        )
        position = None if stored is None else stored.position
        raise Conflict(msg, details={"name": requested.name, "position": position})


def check_skipped_count(count: int) -> None:
    """Check that a subscription may skip one more batch by its policy.

    Raises:
        LimitExceeded: It has skipped too many.

    """
    if count >= SKIPPED_BATCHES_MAX:
        raise limit_error("skipped_batches", SKIPPED_BATCHES_MAX, count + 1)

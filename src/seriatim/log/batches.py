"""Group pages of records into whole appends: events committed together stay together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.limits import MIB
from seriatim.core.query import Query
from seriatim.store.common import is_page_full
from seriatim.store.port import ReadSpec, Store

PAGE_BYTES = 8 * MIB  # of payloads in one page
# For responses of bounded size; text with wide characters takes four times as much memory.
READ_STEP_BYTES = 2 * MIB

ReadPage = Callable[[int, int, int], list[EventRecord]]
"""Reads records after a position: (position, maximum number, about how many bytes of payloads)."""


def iterate_pages(store: Store, spec: ReadSpec) -> Iterator[list[EventRecord]]:
    """Yield the pages of a read, each with at most `spec.limit` events."""

    def read(after: int, limit: int, max_bytes: int) -> list[EventRecord]:
        return store.read(
            msgspec.structs.replace(spec, after=after, limit=limit, max_bytes=max_bytes)
        )

    return iterate_pages_after(read, spec.after, spec.limit)


def iterate_pages_after(
    read: ReadPage, after: int, limit: int, max_bytes: int = PAGE_BYTES
) -> Iterator[list[EventRecord]]:
    """Yield the pages after a position, each with at most `limit` events."""
    while page := read(after, limit, max_bytes):
        yield page
        if not is_page_full(page, limit, max_bytes):
            return
        after = page[-1].position


def read_first_records(
    read: ReadPage, after: int, limit: int, size: int, *, step: int = READ_STEP_BYTES
) -> list[EventRecord]:
    """Return the first records after a position.

    Args:
        read: Reads one page.
        after: The exclusive start position.
        limit: The maximum number of records.
        size: About how many bytes of memory the records may take.
        step: About how many bytes of payloads to read at a time.
    """
    records: list[EventRecord] = []
    while remaining := limit - len(records):
        page = read(after, remaining, step)
        records += page
        size -= estimate_memory(page)
        if size <= 0 or not is_page_full(page, remaining, step):
            break
        after = page[-1].position
    return records


def estimate_memory(records: Sequence[EventRecord]) -> int:
    """Estimate the memory of records in bytes; nearly all of it is their payloads."""
    # __sizeof__, not len: one wide character makes a string take up to four bytes a character.
    return sum(record.payload_json.__sizeof__() for record in records)


class Page(msgspec.Struct, frozen=True):
    """One page of a read.

    Pass `last_scanned` as the `after` of the next page; it advances even if no record matched.
    """

    records: list[EventRecord]
    last_scanned: int


def limit_batches(
    batches: Iterator[list[EventRecord]], limit: int | None
) -> Iterator[list[EventRecord]]:
    """Yield batches with at most `limit` records together."""
    remaining = limit
    for batch in batches:
        if remaining is not None and remaining <= len(batch):
            yield batch[:remaining]
            return
        yield batch
        remaining = None if remaining is None else remaining - len(batch)


PAGE_EVENTS = 1000

Batch = list[EventRecord]


def iterate_appends(
    read: ReadPage, after: int, page_events: int = PAGE_EVENTS, *, max_bytes: int = PAGE_BYTES
) -> Iterator[Batch]:
    """Yield whole appends after a position; an append may span two pages.

    Args:
        read: Reads one page.
        after: The exclusive start position.
        page_events: The maximum number of events of a page.
        max_bytes: About how many bytes of payloads a page may have.
    """
    pending: Batch = []  # the last append of a page: the next page may have more of it
    for page in iterate_pages_after(read, after, page_events, max_bytes):
        for _, grouped in groupby(page, key=lambda record: record.append_position):
            group = list(grouped)
            if pending and pending[0].append_position != group[0].append_position:
                yield pending
                pending = []
            pending.extend(group)
    if pending:
        yield pending


def iterate_matching_appends(
    store: Store,
    tenant_id: str,
    query: Query,
    after: int,
    head: int,
    page_events: int = PAGE_EVENTS,
    *,
    max_bytes: int = PAGE_BYTES,
) -> Iterator[Batch]:
    """Yield the matching events of each append in (after, head], one list per append."""
    start = max(after, query.min_position or 0)
    if start >= head:
        return iter(())

    def read(at: int, limit: int, max_bytes: int) -> list[EventRecord]:
        return store.select(tenant_id, query, at, head, limit, max_bytes=max_bytes)

    return iterate_appends(read, start, page_events, max_bytes=max_bytes)

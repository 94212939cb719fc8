"""Reading a long range page by page, in pages that stay small in bytes whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from seriatim.core.event import EventRecord
from seriatim.store.port import ReadSpec, Store

PAGE_EVENTS_FIRST = 100
PAGE_BYTES = 8 * 1024 * 1024

Read = Callable[[int, int], list[EventRecord]]  # behind a position, so many at most


def pages(store: Store, spec: ReadSpec) -> Iterator[list[EventRecord]]:
    """Yield every page of a read up to its `until`, none with more events than its `limit`."""

    def read(after: int, limit: int) -> list[EventRecord]:
        return store.read(msgspec.structs.replace(spec, after=after, limit=limit))

    return measured(read, spec.after, spec.limit)


def measured(read: Read, after: int, most: int) -> Iterator[list[EventRecord]]:
    """Yield every page behind a position, none with more than so many events.

    The first page is short; what it weighs decides how long the next may be, and so on.
    """
    limit = min(most, PAGE_EVENTS_FIRST)
    while page := read(after, limit):
        yield page
        if len(page) < limit or page[-1].position <= after:
            return
        after = page[-1].position
        limit = _fitting(page, PAGE_BYTES, most)


def first_of(read: Read, after: int, most: int, size: int) -> list[EventRecord]:
    """Return the first records behind a position, at most so many, and about that size in all."""
    found: list[EventRecord] = []
    limit = min(most, PAGE_EVENTS_FIRST)
    while limit:
        page = read(after, limit)
        found += page
        size -= weight(page)
        if len(page) < limit or size <= 0:
            break
        after = page[-1].position
        limit = min(_fitting(page, size, most), most - len(found))
    return found


def weight(records: Sequence[EventRecord]) -> int:
    """Return about how much memory records take: nearly all of it is payload."""
    return sum(len(record.payload) for record in records)


def _fitting(page: Sequence[EventRecord], size: int, most: int) -> int:
    return max(1, min(most, size // (weight(page) // len(page) + 1)))

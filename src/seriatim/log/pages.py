"""Reading a long range page by page, in pages that stay small in bytes whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from seriatim.core.event import EventRecord
from seriatim.store.port import ReadSpec, Store

PAGE_EVENTS_FIRST = 4
_GROWTH = 8  # of a page over the one before
PAGE_EVENTS_NEXT = 128  # of a bounded answer: small events may be followed by the largest
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
        limit = min(_fitting(page, PAGE_BYTES, most), _GROWTH * limit)


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
        next_most = min(PAGE_EVENTS_NEXT, _GROWTH * limit)
        limit = min(_fitting(page, size, next_most), most - len(found))
    return found


def weight(records: Sequence[EventRecord]) -> int:
    """Return about how much memory records take: nearly all of it is payload."""
    # A text with one wide character takes up to four bytes for each of its characters.
    return sum(record.payload.__sizeof__() for record in records)


def _fitting(page: Sequence[EventRecord], size: int, most: int) -> int:
    return max(1, min(most, size // (weight(page) // len(page) + 1)))

"""Read a range of the log page by page, with a bounded number of bytes in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.limits import MIB
from seriatim.store.port import ReadSpec, Store
from seriatim.store.reading import is_full

PAGE_BYTES = 8 * MIB  # of payloads in one page
# For responses of bounded size; text with wide characters takes four times as much memory.
STEP_BYTES = 2 * MIB

Read = Callable[[int, int, int], list[EventRecord]]
"""Reads records after a position: (position, maximum number, about how many bytes of payloads)."""


def pages(store: Store, spec: ReadSpec) -> Iterator[list[EventRecord]]:
    """Yield the pages of a read, each with at most `spec.limit` events."""

    def read(after: int, limit: int, max_bytes: int) -> list[EventRecord]:
        return store.read(
            msgspec.structs.replace(spec, after=after, limit=limit, max_bytes=max_bytes)
        )

    return pages_after(read, spec.after, spec.limit)


def pages_after(
    read: Read, after: int, limit: int, max_bytes: int = PAGE_BYTES
) -> Iterator[list[EventRecord]]:
    """Yield the pages after a position, each with at most `limit` events."""
    while page := read(after, limit, max_bytes):
        yield page
        if not is_full(page, limit, max_bytes):
            return
        after = page[-1].position


def first_records(
    read: Read, after: int, limit: int, size: int, *, step: int = STEP_BYTES
) -> list[EventRecord]:
    """Return the first records after a position.

    Args:
        read: Reads one page.
        after: The exclusive start position.
        limit: The maximum number of records.
        size: About how many bytes of memory the records may take.
        step: About how many bytes of payloads to read at a time.
    """
    found: list[EventRecord] = []
    while left := limit - len(found):
        page = read(after, left, step)
        found += page
        size -= memory_size(page)
        if size <= 0 or not is_full(page, left, step):
            break
        after = page[-1].position
    return found


def memory_size(records: Sequence[EventRecord]) -> int:
    """Estimate the memory of records in bytes; nearly all of it is their payloads."""
    # __sizeof__, not len: one wide character makes a string take up to four bytes a character.
    return sum(record.payload.__sizeof__() for record in records)

"""Reading a long range page by page, in pages that stay small in bytes whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.limits import MIB
from seriatim.store.port import ReadSpec, Store
from seriatim.store.reading import is_full

PAGE_BYTES = 8 * MIB  # of payloads in one page
# Of one read for a bounded answer: text with wide characters takes four times as much memory.
STEP_BYTES = 2 * MIB

Read = Callable[[int, int, int], list[EventRecord]]
"""Returns the records after a position: at most so many, and about so many bytes of payloads."""


def pages(store: Store, spec: ReadSpec) -> Iterator[list[EventRecord]]:
    """Yield every page of a read up to its `until`, none with more events than its `limit`."""

    def read(after: int, limit: int, max_bytes: int) -> list[EventRecord]:
        return store.read(
            msgspec.structs.replace(spec, after=after, limit=limit, max_bytes=max_bytes)
        )

    return pages_after(read, spec.after, spec.limit)


def pages_after(
    read: Read, after: int, limit: int, max_bytes: int = PAGE_BYTES
) -> Iterator[list[EventRecord]]:
    """Yield every page after a position, each with at most `limit` events."""
    while page := read(after, limit, max_bytes):
        yield page
        if not is_full(page, limit, max_bytes):
            return
        after = page[-1].position


def first_records(
    read: Read, after: int, limit: int, size: int, *, step: int = STEP_BYTES
) -> list[EventRecord]:
    """Return the first records after a position: at most `limit`, and about `size` in memory."""
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
    """Return about how much memory records take: nearly all of it is payload."""
    # A text with one wide character takes up to four bytes for each of its characters.
    return sum(record.payload.__sizeof__() for record in records)

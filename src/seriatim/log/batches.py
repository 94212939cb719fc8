"""Group pages of records into whole appends: events committed together stay together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from seriatim.core.event import EventRecord
from seriatim.core.query import Query
from seriatim.log.pages import PAGE_BYTES, Read, pages_after
from seriatim.store.port import Store

PAGE = 1000

Batch = list[EventRecord]


def whole_appends(
    read: Read, after: int, most: int = PAGE, *, max_bytes: int = PAGE_BYTES
) -> Iterator[Batch]:
    """Yield whole appends after a position; an append may span two pages.

    Args:
        read: Reads one page.
        after: The exclusive start position.
        page_events: The maximum number of events of a page.
        max_bytes: About how many bytes of payloads a page may have.
    """
    pending: Batch = []
    for page in pages_after(read, after, most, max_bytes):
        for _, grouped in groupby(page, key=lambda record: record.append_position):
            group = list(grouped)
            if pending and pending[0].append_position != group[0].append_position:
                yield pending
                pending = []
            pending.extend(group)
    if pending:
        yield pending


def matching_appends(  # noqa: PLR0913 - a query, its range and page size
    store: Store,
    tenant_id: str,
    query: Query,
    after: int,
    head: int,
    most: int = PAGE,
    *,
    max_bytes: int = PAGE_BYTES,
) -> Iterator[Batch]:
    """Yield the matching events of each append in (after, head], one list per append."""
    start = max(after, query.min_position or 0)
    if start >= head:
        return iter(())

    def read(at: int, limit: int, max_bytes: int) -> list[EventRecord]:
        return store.select(tenant_id, query, at, head, limit, max_bytes=max_bytes)

    return whole_appends(read, start, most, max_bytes=max_bytes)

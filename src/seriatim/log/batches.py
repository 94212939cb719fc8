"""Whole appends from pages of records: what was committed together is handed on together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from seriatim.core.event import EventRecord
from seriatim.core.query import Query
from seriatim.log.pages import Read, measured
from seriatim.store.port import Store

PAGE = 1000

Batch = list[EventRecord]


def whole_appends(read: Read, after: int) -> Iterator[Batch]:
    """Yield the appends behind a position; the last one of a page may go on in the next."""
    pending: Batch = []
    for page in measured(read, after, PAGE):
        for _, grouped in groupby(page, key=lambda record: record.append_position):
            group = list(grouped)
            if pending and pending[0].append_position != group[0].append_position:
                yield pending
                pending = []
            pending.extend(group)
    if pending:
        yield pending


def matching_appends(
    store: Store, tenant_id: str, query: Query, after: int, head: int
) -> Iterator[Batch]:
    """Yield what of each append in (after, head] matches a query."""
    start = max(after, query.min_position or 0)
    if start >= head:
        return iter(())
    return whole_appends(lambda at, most: store.select(tenant_id, query, at, head, most), start)

"""Whole appends from pages of records: what was committed together is handed on together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from seriatim.core.event import EventRecord
from seriatim.core.query import Query
from seriatim.store.port import Store

PAGE = 1000

Batch = list[EventRecord]


def whole_appends(read: Callable[[int], Batch], after: int, head: int) -> Iterator[Batch]:
    """Yield the appends in (after, head]; `read` gives a page of `PAGE` records behind a position.

    The last append of a page may go on in the next.
    """
    pending: Batch = []
    while after < head:
        page = read(after)
        for _, grouped in groupby(page, key=lambda record: record.append_position):
            group = list(grouped)
            if pending and pending[0].append_position != group[0].append_position:
                yield pending
                pending = []
            pending.extend(group)
        if len(page) < PAGE:
            break
        after = page[-1].position
    if pending:
        yield pending


def matching_appends(
    store: Store, tenant_id: str, query: Query, after: int, head: int
) -> Iterator[Batch]:
    """Yield what of each append in (after, head] matches a query."""
    start = max(after, query.min_position or 0)
    return whole_appends(lambda at: store.select(tenant_id, query, at, head, PAGE), start, head)

"""Query execution: matching records and the version of their context, from one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.limits import Limits
from seriatim.core.query import Query, check_query
from seriatim.log.arguments import check_position, invalid_argument

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog


class QueryResult(msgspec.Struct, frozen=True):
    """The result of a query in a snapshot of the log with the head `head`.

    `context_version` is the highest matching position of the snapshot, also if that record was not
    returned. `more` means that the limit was reached: the next page has
    `after=last_returned_position` and the same `head`.
    """

    records: list[EventRecord]
    last_returned_position: int | None
    context_version: int | None
    head: int
    more: bool = False


class QueryRange(msgspec.Struct, frozen=True):
    """The range of a query's records to return; it does not affect the context's version."""

    limit: int | None = None
    after: int | None = None
    until: int | None = None
    head: int | None = None
    newest_first: bool = False

    def check(self, limits: Limits, start: int = 0) -> int:
        """Validate the range and return the page size; raises `InvalidArgument`."""
        for name in ("after", "until", "head"):
            if (value := getattr(self, name)) is not None:
                check_position(name, value)
        if not isinstance(self.newest_first, bool):
            raise invalid_argument("newest_first", "must be true or false")
        if self.until is not None and self.until < max(start, self.after or 0):
            raise invalid_argument("until", "must not be less than after")
        return limits.page if self.limit is None else limits.check_page("limit", self.limit)


def run_query(log: BaseLog, query: Query, window: QueryRange) -> QueryResult:
    """Run a query against the store; see `Log.query`."""
    check_query(query, log.settings.limits)
    size = window.check(log.settings.limits)
    # The head first: events up to it never change, so that all later statements, and the queries
    # for further pages, see the same snapshot without a transaction.
    snapshot = log.store.head()
    if window.head is not None and window.head > snapshot:
        problem = f"must not be after the log's head: {window.head} > {snapshot}"
        raise invalid_argument("head", problem)
    snapshot = snapshot if window.head is None else window.head
    start = max(query.min_position or 0, window.after or 0)
    end = snapshot if window.until is None else min(window.until, snapshot)
    version = log.store.context_version(log.tenant_id, query, snapshot)
    records: list[EventRecord] = []
    more = version is not None and version > start
    while more and start < end:
        # One record more than the page shows whether there is another page.
        page = _read_page(log, query, (start, end), size + 1, window)
        more = len(page) > size
        records.extend(page[:size])
        if window.limit is not None or not more:
            break
        if window.newest_first:
            end = records[-1].position - 1
        else:
            start = records[-1].position
    last = records[-1].position if records else None
    return QueryResult(records, last, version, snapshot, more and bool(records))


def _read_page(
    log: BaseLog, query: Query, positions: tuple[int, int], limit: int, window: QueryRange
) -> list[EventRecord]:
    newest_first = window.newest_first
    return log.store.select(log.tenant_id, query, *positions, limit, newest_first=newest_first)

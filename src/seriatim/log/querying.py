"""A query: the matching records and the version of their context, from one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.limits import Limits
from seriatim.core.query import Query, check_query
from seriatim.log.arguments import bad, check_position

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog


class QueryResult(msgspec.Struct, frozen=True):
    """What a query found in one snapshot of the log, whose head is `head`.

    `context_version` is the highest position of the whole context, whatever was returned; `more`
    tells that the limit cut the records: ask again with `after` and `head` of this result.
    """

    records: list[EventRecord]
    last_returned_position: int | None
    context_version: int | None
    head: int
    more: bool = False


class Window(msgspec.Struct, frozen=True):
    """Which records of a query are returned; none of it changes the context's version."""

    limit: int | None = None
    after: int | None = None
    until: int | None = None
    head: int | None = None
    newest_first: bool = False

    def check(self, limits: Limits, start: int = 0) -> int:
        """Refuse what is no page; return how many records a page has at most."""
        for name in ("after", "until", "head"):
            if (value := getattr(self, name)) is not None:
                check_position(name, value)
        if not isinstance(self.newest_first, bool):
            raise bad("newest_first", "must be true or false")
        if self.until is not None and self.until < max(start, self.after or 0):
            raise bad("until", "must not lie before after")
        return limits.page if self.limit is None else limits.check_page("limit", self.limit)


def run_query(log: BaseLog, query: Query, window: Window) -> QueryResult:
    """Ask a log; see `Log.query`."""
    check_query(query, log.settings.limits)
    size = window.check(log.settings.limits)
    snapshot = log.store.head()
    if window.head is not None and window.head > snapshot:
        raise bad("head", "must not lie beyond the log's own")
    snapshot = snapshot if window.head is None else window.head
    start = max(query.min_position or 0, window.after or 0)
    end = snapshot if window.until is None else min(window.until, snapshot)
    version = log.store.context_version(log.tenant_id, query, snapshot)
    records: list[EventRecord] = []
    more = version is not None and version > start
    while more and start < end:
        page = _page(log, query, (start, end), size + 1, window)
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


def _page(
    log: BaseLog, query: Query, within: tuple[int, int], most: int, window: Window
) -> list[EventRecord]:
    newest_first = window.newest_first
    return log.store.select(log.tenant_id, query, *within, most, newest_first=newest_first)

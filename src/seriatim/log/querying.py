"""A query: the matching records and the version of their context, from one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from seriatim.core.event import EventRecord
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


def run_query(
    log: BaseLog, query: Query, *, limit: int | None, after: int | None, head: int | None
) -> QueryResult:
    """Ask a log; see `Log.query`."""
    check_query(query, log.settings.limits)
    size = log.settings.limits.page
    if limit is not None:
        size = log.settings.limits.check_page("limit", limit)
    snapshot = log.store.head()
    if head is not None and check_position("head", head) > snapshot:
        raise bad("head", "must not lie beyond the log's own")
    snapshot = snapshot if head is None else head
    start = query.min_position or 0
    start = start if after is None else max(start, check_position("after", after))
    version = log.store.context_version(log.tenant_id, query, snapshot)
    records: list[EventRecord] = []
    more = version is not None and version > start
    while more:
        page = log.store.select(log.tenant_id, query, start, snapshot, size)
        records.extend(page)
        more = len(page) == size and page[-1].position != version
        if limit is not None:
            break
        start = page[-1].position if page else snapshot
    last = records[-1].position if records else None
    return QueryResult(records, last, version, snapshot, more)

"""Searches that no index answers: read a part of the log for a page, and say how far it got."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from seriatim.console.page import ConsolePage
from seriatim.core.errors import TimedOut

BUDGET_S = 2.0  # of the reads of one page; the last one may take longer
FIRST_POSITIONS = 4096  # of the first read; later ones grow while they are fast
POSITIONS_MAX = 262_144  # of one read
_FAST_S, _SLOW_S = 0.2, 1.0
_GROWTH = 4


class SearchResult(msgspec.Struct, frozen=True):
    """The result of a search in a range of positions.

    Attributes:
        records: The events that match, in the order of the search.
        first: The first position of the searched part.
        last: The last position of the searched part.
        complete: Whether the whole range was searched.
        newest_first: Whether the search went from the newest event to the oldest.
    """

    records: list[dict[str, Any]]
    first: int
    last: int
    complete: bool
    newest_first: bool

    @property
    def following(self) -> dict[str, int]:
        """The parameter of the address of the page that goes on with the search."""
        return {"until": self.first - 1} if self.newest_first else {"after": self.last}


async def search_events(
    page: ConsolePage,
    query: dict[str, Any],
    *,
    after: int,
    until: int,
    newest_first: bool,
    limit: int,
    budget_s: float | None = None,
) -> SearchResult:
    """Search positions after `after` and up to `until`, in reads that are bounded in positions.

    Args:
        page: The page.
        query: The query.
        after: The exclusive start of the range.
        until: The inclusive end of the range.
        newest_first: Whether to search from its end.
        limit: The number of events at which the search ends.
        budget_s: The time at which the search ends; `BUDGET_S` by default.
    """
    deadline = time.monotonic() + (BUDGET_S if budget_s is None else budget_s)
    records: list[dict[str, Any]] = []
    low, high, size, complete = after, until, FIRST_POSITIONS, after >= until
    while not complete:
        bounds = (max(low, high - size), high) if newest_first else (low, min(high, low + size))
        started = time.monotonic()
        body = {
            "query": query,
            "after": bounds[0],
            "until": bounds[1],
            "limit": limit - len(records),
            "newest_first": newest_first,
        }
        try:
            response = await page.post("/v1/query/records", body)
        except TimedOut:
            if (low, high) == (after, until):
                raise  # not even the first read has ended
            break
        records += response["records"]
        full = response.get("cut", False) or len(records) >= limit
        if newest_first:
            high = records[-1]["position"] - 1 if full else bounds[0]
        else:
            low = records[-1]["position"] if full else bounds[1]
        complete = low >= high
        if full or time.monotonic() >= deadline:
            break
        size = _next_size(size, time.monotonic() - started)
    searched = (high + 1, until) if newest_first else (after + 1, low)
    return SearchResult(records, *searched, complete, newest_first)


def _next_size(size: int, seconds: float) -> int:
    """Return the number of positions of the next read, by the time of the last one."""
    if seconds < _FAST_S:
        return min(size * _GROWTH, POSITIONS_MAX)
    return max(size // _GROWTH, FIRST_POSITIONS) if seconds > _SLOW_S else size

"""Pages of events by position: the newest or the oldest first, with links to both neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from seriatim.console.page import ConsolePage, Param
from seriatim.console.search import SearchResult, search_events
from seriatim.core.errors import InvalidArgument
from seriatim.core.times import format_us, parse_us

PAGE_EVENTS = 50
_DIGITS_MAX = 18  # fewer than those of 2**63, the bound of positions
_MARGIN_US = 60_000_000  # clocks of writers differ: times follow positions only nearly


class EventPage(msgspec.Struct, frozen=True):
    """A page of events in the order of display.

    Attributes:
        events: The events, as the API returns them.
        previous: Parameters of the address of the page before, None if there is none.
        following: Parameters of the address of the next page, None if there is none.
        at_start: Whether the page is the first one, so that new events belong to its top.
        search: How far a search has got that no index answers.
        continued: Parameters of the address that goes on with this search, None if it has ended.
    """

    events: list[dict[str, Any]]
    previous: dict[str, Any] | None = None
    following: dict[str, Any] | None = None
    at_start: bool = True
    search: SearchResult | None = None
    continued: dict[str, Any] | None = None


def parse_number(page: ConsolePage, name: str) -> int | None:
    """Return a whole number from the address, None if the address has none.

    Raises:
        InvalidArgument: It is not a whole number.
    """
    text = page.params.get(name, "").strip().replace(",", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        msg = f"{name} must be a whole number"
        raise InvalidArgument(msg, details={"argument": name})
    return int(text)


def parse_moment(text: str, name: str) -> int | None:
    """Return a time in microseconds since 1970, None for an empty text.

    The zone and the seconds may be left out, and a space may separate date and time: times without
    a zone are UTC.

    Raises:
        InvalidArgument: It is not a time.
    """
    normalized = text.strip().replace(" ", "T", 1)
    if not normalized:
        return None
    for suffix in ("", "Z", ":00Z", "T00:00:00Z"):
        if (moment := parse_us(normalized + suffix)) is not None:
            return moment
    msg = f"{name} must be a time such as 2026-05-01T12:30:00Z"
    raise InvalidArgument(msg, details={"argument": name})


async def find_position(page: ConsolePage, moment_us: int, **filters: Param) -> int:
    """Return the position of the last event that was recorded up to a time, 0 if there is none.

    It is a binary search over positions: each step reads one event.
    """
    moment = format_us(moment_us)
    low, high = 0, (await page.get("/v1/log"))["head"]
    while low < high:
        middle = (low + high + 1) // 2
        response = await page.get("/v1/events", after=middle - 1, until=high, limit=1, **filters)
        if response["records"] and response["records"][0]["recorded_at"] <= moment:
            low = response["records"][0]["position"]
        else:
            high = middle - 1
    return int(low)


class TimeWindow(msgspec.Struct, frozen=True):
    """A window of recording times in microseconds: after `since`, up to `until`."""

    since: int | None = None
    until: int | None = None

    def contains(self, event: dict[str, Any]) -> bool:
        """Return whether an event was recorded in the window."""
        moment = parse_us(event["recorded_at"]) or 0
        return (self.since is None or moment > self.since) and (
            self.until is None or moment <= self.until
        )


def parse_window(params: Mapping[str, str]) -> TimeWindow:
    """Return the window of `recorded_after` and `recorded_until`.

    Raises:
        InvalidArgument: One of them is not a time, or the window ends before it starts.
    """
    since = parse_moment(params.get("recorded_after") or "", "recorded_after")
    until = parse_moment(params.get("recorded_until") or "", "recorded_until")
    if since is not None and until is not None and until < since:
        msg = "recorded_until must not be before recorded_after"
        raise InvalidArgument(msg, details={"argument": "recorded_until"})
    return TimeWindow(since, until)


async def find_window(
    page: ConsolePage, window: TimeWindow, margin_us: int = _MARGIN_US
) -> dict[str, int | None]:
    """Return the bounds in positions of a window of recording times, so that an index answers.

    With a margin they are wider than the window, because clocks differ; the times still filter.
    """
    since, until = window.since, window.until
    return {
        "after": None if since is None else await find_position(page, max(0, since - margin_us)),
        "until": None if until is None else await find_position(page, until + margin_us),
    }


async def read_event_page(
    page: ConsolePage,
    filters: dict[str, Any],
    *,
    newest_first: bool,
    query: dict[str, Any] | None = None,
) -> EventPage:
    """Read the page of events that the address names by `after`, `until` and `back`.

    A page further on starts after `after`, or at `until` if the newest come first. A page back is
    read in the opposite order from the other bound, and reversed. With a query, it has the filters,
    except the times.

    Raises:
        InvalidArgument: A number or time of the address is malformed.
    """
    after, until = parse_number(page, "after"), parse_number(page, "until")
    back = page.params.get("back") == "1"
    times = parse_window(filters)
    window = await find_window(page, times, 0 if query else _MARGIN_US)
    if window["until"] == 0:
        return EventPage([])
    bounds = {
        "limit": PAGE_EVENTS,
        "newest_first": newest_first is not back,
        "after": _choose_bound(max, after, window["after"]),
        "until": _choose_bound(min, until, window["until"]),
    }
    moved = (until if newest_first else after) is not None
    if query is not None:
        search = await _search_page(page, query, bounds)
        # A clock that was set back has positions outside the window between its bounds.
        events = [event for event in search.records if times.contains(event)]
        return _link_search(events, search, order_newest=newest_first, back=back, moved=moved)
    response = await page.get("/v1/events", **bounds, **_format_times(filters, times))
    events, more = response["records"], response.get("cut", False)
    more = more or len(events) == PAGE_EVENTS
    if back:
        events.reverse()
    return _link_page(events, newest_first=newest_first, back=back, more=more, moved=moved)


def _format_times(filters: dict[str, Any], times: TimeWindow) -> dict[str, Any]:
    """Return the filters with the times in the form of the API."""
    since, until = times.since, times.until
    return filters | {
        "recorded_after": None if since is None else format_us(since),
        "recorded_until": None if until is None else format_us(until),
    }


async def _search_page(
    page: ConsolePage, query: dict[str, Any], bounds: dict[str, Any]
) -> SearchResult:
    """Search a page of the events that match a query, between two positions."""
    until = bounds["until"]
    head = (await page.get("/v1/log"))["head"]
    return await search_events(
        page,
        query,
        after=bounds["after"] or 0,
        until=head if until is None else min(head, until),
        newest_first=bounds["newest_first"],
        limit=PAGE_EVENTS,
    )


def _link_search(
    events: list[dict[str, Any]],
    search: SearchResult,
    *,
    order_newest: bool,
    back: bool,
    moved: bool,
) -> EventPage:
    """Return the page of a search, with links that go on where it ended."""
    first, last = search.first, search.last
    if back:
        events.reverse()
    has_previous, has_following = (
        (not search.complete, True) if back else (moved, not search.complete)
    )
    previous = {"after": last} if order_newest else {"until": first - 1}
    following = {"until": first - 1} if order_newest else {"after": last}
    page = EventPage(
        events,
        {**previous, "back": 1} if has_previous else None,
        following if has_following else None,
        at_start=not has_previous,
        search=search,
    )
    interrupted = not search.complete and len(search.records) < PAGE_EVENTS
    continued = (page.previous if back else page.following) if interrupted else None
    return msgspec.structs.replace(page, continued=continued)


def _choose_bound(choose: Any, *bounds: int | None) -> int | None:
    present = [bound for bound in bounds if bound is not None]
    return choose(present) if present else None


def _link_page(
    events: list[dict[str, Any]], *, newest_first: bool, back: bool, more: bool, moved: bool
) -> EventPage:
    """Return the page with its links; `more` says that the read reached its limit."""
    if not events:
        return EventPage(events, at_start=not moved)
    first, last = events[0]["position"], events[-1]["position"]
    has_previous, has_following = (more, True) if back else (moved, more)
    previous = {"after": first} if newest_first else {"until": first - 1}
    following = {"until": last - 1} if newest_first else {"after": last}
    return EventPage(
        events,
        {**previous, "back": 1} if has_previous else None,
        following if has_following else None,
        at_start=not has_previous,
    )

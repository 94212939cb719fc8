"""Pages of events by position: the newest or the oldest first, with links to both neighbours."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.console.page import ConsolePage
from seriatim.core.errors import InvalidArgument
from seriatim.core.times import format_us, parse_us

PAGE_EVENTS = 50
_DIGITS_MAX = 18
_MARGIN_US = 60_000_000  # of clocks: positions are in the order of recording, nearly


class EventPage(msgspec.Struct, frozen=True):
    """A page of events in the order of display.

    Attributes:
        events: The events, as the API returns them.
        previous: Parameters of the address of the page before, None if there is none.
        following: Parameters of the address of the next page, None if there is none.
        at_start: Whether the page is the first one, so that new events belong to its top.
    """

    events: list[dict[str, Any]]
    previous: dict[str, Any] | None = None
    following: dict[str, Any] | None = None
    at_start: bool = True


def parse_number(page: ConsolePage, name: str) -> int | None:
    """Return a whole number of the address, None if it is not given.

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
    """Return a time in microseconds since 1970, None if it is not given.

    The zone and the seconds may be left out, and a space may separate date and time: times without
    a zone are UTC.

    Raises:
        InvalidArgument: It is not a time.
    """
    given = text.strip().replace(" ", "T", 1)
    if not given:
        return None
    for suffix in ("", "Z", ":00Z", "T00:00:00Z"):
        if (moment := parse_us(given + suffix)) is not None:
            return moment
    msg = f"{name} must be a time such as 2026-05-01T12:30:00Z"
    raise InvalidArgument(msg, details={"argument": name})


async def find_position(page: ConsolePage, moment_us: int, **filters: Any) -> int:
    """Return the position of the last event that was recorded up to a time, 0 if there is none.

    It is a binary search over positions: each step reads one event.
    """
    moment = format_us(moment_us)
    low, high = 0, (await page.get("/v1/log"))["head"]
    while low < high:
        middle = (low + high + 1) // 2
        found = await page.get("/v1/events", after=middle - 1, until=high, limit=1, **filters)
        if found["records"] and found["records"][0]["recorded_at"] <= moment:
            low = found["records"][0]["position"]
        else:
            high = middle - 1
    return int(low)


async def find_window(page: ConsolePage, filters: dict[str, Any]) -> dict[str, int | None]:
    """Return the bounds in positions of a window of recording times, so that an index answers.

    They are a little wider than the window, because clocks differ; the times still filter.
    """
    bounds: dict[str, int | None] = {"after": None, "until": None}
    since = parse_moment(filters.get("recorded_after") or "", "recorded_after")
    until = parse_moment(filters.get("recorded_until") or "", "recorded_until")
    if since is not None and until is not None and until < since:
        msg = "recorded_until must not be before recorded_after"
        raise InvalidArgument(msg, details={"argument": "recorded_until"})
    if since is not None:
        filters["recorded_after"] = format_us(since)
        bounds["after"] = await find_position(page, max(0, since - _MARGIN_US))
    if until is not None:
        filters["recorded_until"] = format_us(until)
        bounds["until"] = await find_position(page, until + _MARGIN_US)
    return bounds


async def read_event_page(
    page: ConsolePage, filters: dict[str, Any], *, newest_first: bool
) -> EventPage:
    """Read the page of events that the address names by `after`, `until` and `back`.

    A page further on starts after `after`, or at `until` if the newest come first. A page back is
    read in the opposite order from the other bound, and reversed.

    Raises:
        InvalidArgument: A number or time of the address is malformed.
    """
    after, until = parse_number(page, "after"), parse_number(page, "until")
    back = page.params.get("back") == "1"
    window = await find_window(page, filters)
    if window["until"] == 0:
        return EventPage([])
    found = await page.get(
        "/v1/events",
        limit=PAGE_EVENTS,
        newest_first=newest_first is not back,
        after=_tightest(max, after, window["after"]),
        until=_tightest(min, until, window["until"]),
        **filters,
    )
    events, more = found["records"], found.get("cut", False)
    more = more or len(events) == PAGE_EVENTS
    if back:
        events.reverse()
    moved = (until if newest_first else after) is not None
    return _link_page(events, newest_first=newest_first, back=back, more=more, moved=moved)


def _tightest(choose: Any, *bounds: int | None) -> int | None:
    given = [bound for bound in bounds if bound is not None]
    return choose(given) if given else None


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

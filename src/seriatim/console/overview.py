"""The overview: the log, its consumers, and what needs attention."""

from __future__ import annotations

from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute

_LATEST = 10


async def show_overview(page: ConsolePage) -> ConsoleResponse:
    """Show the identity and head of the log, and its latest events."""
    log = await page.get("/v1/log")
    latest = await page.get("/v1/events", newest_first=True, limit=_LATEST)
    return await page.render("overview.html", log=log, events=latest["records"])


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/", show=show_overview, title="Overview"),
)

"""The overview: the log, its consumers, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seriatim.console.consumers import (
    ConsumerRow,
    HandlerRow,
    read_handlers,
    read_optional,
    read_projections,
    read_subscriptions,
)
from seriatim.console.drawings import draw_line_chart, format_span
from seriatim.console.history import INTERVAL_S, History
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.renderer import format_bytes
from seriatim.core.tenants import ALL_TENANTS

_LATEST = 10
_RATE_SAMPLES = 12  # a minute


async def show_overview(page: ConsolePage) -> ConsoleResponse:
    """Show the identity and head of the log, its latest events, and its consumers."""
    page.history.watch(page.request.tenant_id)
    log = await page.get("/v1/log")
    latest = await page.get("/v1/events", newest_first=True, limit=_LATEST)
    projections = await read_projections(page)
    subscriptions: list[ConsumerRow] = []
    handlers: list[HandlerRow] | None = None
    findings = None
    if page.can("operate"):
        subscriptions = await read_subscriptions(page)
        handlers = await read_handlers(page)
        findings = await read_findings(page)
    consumers = [*projections, *subscriptions, *(handlers or ())]
    return await page.render(
        "overview.html",
        log=log,
        events=latest["records"],
        consumers=consumers,
        problems=list_problems(projections, subscriptions, handlers or ()),
        findings=findings,
        size=await read_size(page),
        charts=draw_log_charts(page.history, all_tenants=page.caller.tenant_id == ALL_TENANTS),
        rate=find_current_rate(page.history),
        refresh_s=int(INTERVAL_S),
    )


async def read_findings(page: ConsolePage) -> list[dict[str, Any]] | None:
    """Return the findings of `doctor`; None for callers that may not see them."""
    if page.caller.tenant_id != ALL_TENANTS:
        return None
    response = await read_optional(page, "/v1/doctor")
    return None if response is None else response["findings"]


async def read_size(page: ConsolePage) -> str:
    """Return the size of the log in words; empty for callers that may not see it."""
    if page.caller.tenant_id != ALL_TENANTS:
        return ""
    response = await read_optional(page, "/v1/log/size")
    return "" if response is None or response["bytes"] is None else format_bytes(response["bytes"])


def list_problems(
    projections: Sequence[ConsumerRow],
    subscriptions: Sequence[ConsumerRow],
    handlers: Sequence[HandlerRow],
) -> list[tuple[int, str, str]]:
    """Return the problems that need an operator: number, description, and path of the page."""
    consumers = (*projections, *subscriptions, *handlers)
    problems = [
        (sum(row.stalled for row in consumers), "stalled consumers", "/"),
        (sum(row.counts["dead"] for row in handlers), "dead letters", "/handlers"),
        (sum(row.counts["unknown"] for row in handlers), "unknown effects", "/handlers"),
        (sum(row.failures for row in projections), "projection failures", "/projections"),
        (sum(bool(row.failures) for row in subscriptions), "failing subscriptions", "/"),
        (sum(row.state == "stopped" for row in handlers), "stopped handlers", "/handlers"),
    ]
    return [problem for problem in problems if problem[0]]


def draw_log_charts(history: History, *, all_tenants: bool) -> list[tuple[str, str]]:
    """Return the title and drawing of each chart of the log.

    The latency of appends is that of all tenants: only callers for all tenants see it.
    """
    rates = [("events per second", history.append_rates())]
    charts = [("Events per second", draw_line_chart(rates, label="Events per second, by time"))]
    if all_tenants:
        samples = [sample for sample in history.log if sample.appends]
        lines = [
            ("99th percentile", [(sample.at, sample.p99_s * 1000) for sample in samples]),
            ("median", [(sample.at, sample.p50_s * 1000) for sample in samples]),
        ]
        label = "Duration of appends in this process, median and 99th percentile, by time"
        chart = draw_line_chart(lines, label=label, unit=" ms")
        charts.append(("Append latency: 99th percentile and median", chart))
    return charts


def find_current_rate(history: History) -> tuple[float, str] | None:
    """Return the events per second of the last minute, and the latest median latency in words."""
    rates = history.append_rates()[-_RATE_SAMPLES:]
    if not rates:
        return None
    latest = next((sample for sample in reversed(history.log) if sample.appends), None)
    mean = sum(rate for _, rate in rates) / len(rates)
    return round(mean, 1), "" if latest is None else format_span(latest.p50_s)


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/", show=show_overview, title="Overview"),
)

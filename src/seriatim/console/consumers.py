"""Consumers of the log as pages display them: lag in events and in time, trend, and state."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from seriatim.console.drawings import draw_line_chart, format_span
from seriatim.console.history import (
    ConsumerKind,
    ConsumerSample,
    count_waiting,
    describe_trend,
    is_stalled,
)
from seriatim.console.page import ConsolePage, Param
from seriatim.core.errors import Forbidden, InvalidArgument, NotFound
from seriatim.core.times import parse_us

_PAGE = 100
_TIMED_MAX = 20  # consumers whose lag in time is read: it takes one read of the log for each
HANDLER_STATUSES = ("failed", "blocked", "claimed", "expired", "dead", "unknown")

MarkColor = Literal["good", "warn", "bad", ""]


class ConsumerRow(msgspec.Struct, kw_only=True):
    """One consumer in a table.

    Attributes:
        kind: Projection, subscription or handler.
        name: Its name.
        path: The page that shows it; empty if there is none.
        state: Its state in a word or two.
        color: The colour of the state.
        position: Its cursor; for a handler the position of its first pending event, or None.
        lag: The number of its pending events.
        lag_time: The age of the oldest pending event, in words; empty if it is unknown.
        trend: Whether the lag grows or falls, in a word.
        failures: The number of events that need an operator.
        error: The last error.
    """

    kind: ConsumerKind
    name: str
    path: str = ""
    state: str
    color: MarkColor = ""
    position: int | None = None
    lag: int = 0
    lag_time: str = ""
    trend: str = ""
    failures: int = 0
    error: str = ""

    @property
    def stalled(self) -> bool:
        """Whether its cursor has not moved for a minute while events were pending."""
        return self.state == "stalled"


async def read_optional(page: ConsolePage, path: str, **params: Param) -> Any:
    """Call a route; return None if the caller lacks the right, or the log lacks the data.

    A log in memory has no read models, and most logs have no registry.
    """
    try:
        return await page.get(path, **params)
    except (Forbidden, NotFound, InvalidArgument):
        return None


async def read_projections(page: ConsolePage) -> list[ConsumerRow]:
    """Return the projections of the tenant, with their lag in time."""
    response = await read_optional(page, "/v1/projections")
    statuses = [] if response is None else response["projections"][:_PAGE]
    rows = [make_projection_row(page, status) for status in statuses]
    for row in [row for row in rows if row.lag][:_TIMED_MAX]:
        row.lag_time = await read_lag_time(page, row.position or 0)
    return rows


def make_projection_row(page: ConsolePage, standing: dict[str, Any]) -> ConsumerRow:
    """Return a projection as a row, without its lag in time."""
    samples = find_samples(page, "projection", standing["name"])
    state, color = _describe_projection(standing, samples)
    return ConsumerRow(
        kind="projection",
        name=standing["name"],
        path="/projection",
        state=state,
        color=color,
        position=standing["position"],
        lag=standing["lag"],
        trend=describe_trend(samples),
        failures=standing["failures"],
    )


def _describe_projection(
    standing: dict[str, Any], samples: list[ConsumerSample]
) -> tuple[str, MarkColor]:
    if standing["status"] == "failed":
        return "stopped by a failure", "bad"
    if standing["status"] == "paused":
        return "paused", "warn"
    if standing["held_until"]:
        return "held for a comparison", "warn"
    if is_stalled(samples):
        return "stalled", "bad"
    return ("running", "good") if standing["running"] else ("not running", "warn")


async def read_lag_time(page: ConsolePage, position: int) -> str:
    """Return the age of the first event of the tenant after a position, in words."""
    response = await read_optional(page, "/v1/events", after=position, limit=1)
    if not response or not response["records"]:
        return ""
    recorded_us = parse_us(response["records"][0]["recorded_at"]) or 0
    return format_span(max(0.0, time.time() - recorded_us / 1_000_000))


async def read_subscriptions(page: ConsolePage) -> list[ConsumerRow]:
    """Return the durable subscriptions of the tenant; none for callers who are no operators."""
    response = await read_optional(page, "/v1/subscriptions", limit=_PAGE)
    statuses = [] if response is None else response["subscriptions"]
    return [_make_subscription_row(page, status) for status in statuses]


def _make_subscription_row(page: ConsolePage, status: dict[str, Any]) -> ConsumerRow:
    samples = find_samples(page, "subscription", status["name"])
    state, color = _describe_subscription(status, samples)
    return ConsumerRow(
        kind="subscription",
        name=status["name"],
        state=state,
        color=color,
        position=status["position"],
        lag=status["lag_events"],
        lag_time=format_span(status["lag_seconds"]) if status["lag_events"] else "",
        trend=describe_trend(samples),
        failures=status["failures"],
        error=status["last_error"] or "" if status["failures"] else "",
    )


def _describe_subscription(
    status: dict[str, Any], samples: list[ConsumerSample]
) -> tuple[str, MarkColor]:
    if status["status"] == "parked":
        return f"parked after {_count_attempts(status)}", "bad"
    if status["failures"]:
        return f"failing, {_count_attempts(status)}", "bad"
    if is_stalled(samples):
        return "stalled", "bad"
    return ("running", "good") if status["owner"] else ("not running", "warn")


def _count_attempts(status: dict[str, Any]) -> str:
    attempt = status["attempt"]
    count = status["failures"] if attempt is None else attempt["attempts"]
    return "1 attempt" if count == 1 else f"{count} attempts"


class HandlerRow(ConsumerRow, kw_only=True):
    """One handler in a table, with the number of its events in each state."""

    counts: dict[str, int] = {}
    reason: str = ""
    declaration: dict[str, Any] = {}
    cursors: list[dict[str, Any]] = []


async def read_handlers(page: ConsolePage) -> list[HandlerRow] | None:
    """Return the handlers of the registry, for operators; None if there is no registry."""
    registry = await read_optional(page, "/v1/registry")
    if registry is None:
        return None
    waiting = count_waiting(registry["counts"])
    rows = []
    for handler in registry["handlers"][:_PAGE]:
        counts = {
            count["status"]: count["count"]
            for count in registry["counts"]
            if count["handler"] == handler["name"]
        }
        row = _make_handler_row(page, handler, counts, waiting.get(handler["name"]))
        row.cursors = [
            cursor | {"lag_time": _format_lag(cursor)}
            for cursor in registry["cursors"]
            if cursor["handler"] == row.name
        ]
        rows.append(row)
    for row in [row for row in rows if row.position][:_TIMED_MAX]:
        row.lag_time = await read_lag_time(page, (row.position or 1) - 1)
    return rows


def _format_lag(cursor: dict[str, Any]) -> str:
    return format_span(cursor["lag_seconds"]) if cursor["lag_events"] else ""


def _make_handler_row(
    page: ConsolePage,
    handler: dict[str, Any],
    counts: dict[str, int],
    waiting: tuple[int, int] | None,
) -> HandlerRow:
    samples = find_samples(page, "handler", handler["name"])
    state, color = _describe_handler(handler["status"], samples if waiting else [])
    return HandlerRow(
        kind="handler",
        name=handler["name"],
        path="/handler",
        state=state,
        color=color,
        position=None if waiting is None else waiting[0],
        lag=0 if waiting is None else waiting[1],
        trend=describe_trend(samples),
        failures=counts.get("dead", 0) + counts.get("unknown", 0),
        counts={status: counts.get(status, 0) for status in HANDLER_STATUSES},
        reason=handler["reason"],
        declaration=handler["declaration"],
    )


def _describe_handler(status: str, samples: list[ConsumerSample]) -> tuple[str, MarkColor]:
    if status == "ready":
        return ("stalled", "bad") if is_stalled(samples) else ("ready", "good")
    return status, "bad" if status == "stopped" else "warn"


def find_samples(page: ConsolePage, kind: ConsumerKind, name: str) -> list[ConsumerSample]:
    """Return the history of a consumer of the page's tenant."""
    return page.history.consumer(page.request.tenant_id, kind, name)


def draw_lag(page: ConsolePage, kind: ConsumerKind, name: str) -> str:
    """Draw the lag of a consumer in the last hour; empty before there are two samples."""
    points = [(sample.at, float(sample.lag)) for sample in find_samples(page, kind, name)]
    return draw_line_chart([("lag", points)], label=f"Lag of {name} in events, by time")

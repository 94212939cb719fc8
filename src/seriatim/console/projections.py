"""Projections: status, lag, failures, verification and rebuilds."""

from __future__ import annotations

from typing import Any

from seriatim.console.actions import finish_action, list_notices, read_count
from seriatim.console.consumers import (
    draw_lag,
    make_projection_row,
    read_lag_time,
    read_optional,
    read_projections,
)
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.core.errors import InvalidArgument, NotFound, SeriatimError

_FAILURES_MAX = 100


async def show_projections(page: ConsolePage) -> ConsoleResponse:
    """List the projections of the tenant."""
    page.history.watch(page.request.tenant_id)
    rows = await read_projections(page)
    return await page.render("projections.html", projections=rows)


async def show_projection(page: ConsolePage) -> ConsoleResponse:
    """Show one projection: its status, lag and failures, and the actions on it."""
    return await _render_projection(page, page.params.get("name", ""))


async def _render_projection(
    page: ConsolePage, name: str, error: SeriatimError | None = None
) -> ConsoleResponse:
    page.history.watch(page.request.tenant_id)
    found = (await page.get("/v1/projections", name=name))["projections"] if name else []
    if not found:
        raise NotFound("there is no such projection", details={"projection": name})
    [standing] = found
    row = make_projection_row(page, standing)
    if row.lag:
        row.lag_time = await read_lag_time(page, row.position or 0)
    failures: list[dict[str, Any]] = []
    jobs: list[dict[str, Any]] | None = None
    if page.can("operate"):
        listed = await read_optional(page, "/v1/projections/failures", name=name)
        failures = [] if listed is None else listed["failures"]
    return await page.render(
        "projection.html",
        status=200 if error is None else page.app.service.problem(error, "").status,
        standing=standing,
        row=row,
        chart=draw_lag(page, "projection", name),
        failures=failures[:_FAILURES_MAX],
        failure_count=len(failures),
        unresolved=sum(one["status"] != "passed" for one in failures),
        jobs=jobs,
        notices=list_notices(page),
        error="" if error is None else error.message,
    )


# -- actions


async def _act(page: ConsolePage, path: str, outcome: str, **fields: Any) -> ConsoleResponse:
    """Call a route for the projection of a form, and show its page again."""
    name = page.form.get("name", "")
    body = {"name": name, "reason": page.form.get("reason", "").strip(), **fields}
    try:
        result = await page.post(path, body)
    except InvalidArgument as error:  # a reason that is missing, too long, or holds a secret
        return await _render_projection(page, name, error)
    return finish_action(page, "/projection", outcome, result, name=name)


async def pause(page: ConsolePage) -> ConsoleResponse:
    """Stop a projection at its current position."""
    return await _act(page, "/v1/projections/pause", "paused")


async def resume(page: ConsolePage) -> ConsoleResponse:
    """Resume a paused projection."""
    return await _act(page, "/v1/projections/resume", "resumed")


async def retry(page: ConsolePage) -> ConsoleResponse:
    """Retry one failure."""
    return await _act(
        page, "/v1/projections/retry", "retried", position=read_count(page, "position")
    )


async def skip(page: ConsolePage) -> ConsoleResponse:
    """Skip one failed event."""
    return await _act(
        page, "/v1/projections/skip", "skipped", position=read_count(page, "position")
    )


async def confirm_retry(page: ConsolePage) -> ConsoleResponse:
    """Ask before all failures of a projection are retried, with their number (N4)."""
    name = page.params.get("name", "")
    failures = (await page.get("/v1/projections/failures", name=name))["failures"]
    count = sum(one["status"] != "passed" for one in failures)
    return await page.render("projection_retry.html", name=name, count=count)


async def retry_all(page: ConsolePage) -> ConsoleResponse:
    """Retry all failures, if there are as many as the confirmation named."""
    expected = read_count(page, "expected_count")
    return await _act(page, "/v1/projections/retry", "retried", expected_count=expected)


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/projections", show=show_projections, title="Projections"),
    PageRoute(method="GET", path="/projection", show=show_projection),
    PageRoute(method="GET", path="/projection/retry-all", show=confirm_retry),
    PageRoute(method="POST", path="/projection/pause", show=pause),
    PageRoute(method="POST", path="/projection/resume", show=resume),
    PageRoute(method="POST", path="/projection/retry", show=retry),
    PageRoute(method="POST", path="/projection/skip", show=skip),
    PageRoute(method="POST", path="/projection/retry-all", show=retry_all),
)

"""Projections: status, lag, failures, verification and rebuilds."""

from __future__ import annotations

from typing import Any, NamedTuple

from seriatim.console.actions import finish_action, list_notices, read_count
from seriatim.console.consumers import (
    MarkColor,
    draw_lag,
    make_projection_row,
    read_lag_time,
    read_optional,
    read_projections,
)
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute, quote_value
from seriatim.console.pager import parse_number
from seriatim.console.renderer import format_number, format_seconds, shorten
from seriatim.core.errors import (
    BackendFailure,
    Conflict,
    InvalidArgument,
    NotFound,
    SeriatimError,
)
from seriatim.core.tenants import ALL_TENANTS

_FAILURES_MAX = 100
_JOBS_READ = 100
_FAILURE_STATES: dict[str, tuple[MarkColor, str]] = {
    "stopped": ("bad", "stopped here"),
    "parked": ("bad", "key parked"),
    "skipped": ("", "skipped by policy"),
    "passed": ("", "skipped by an operator"),
}


class FailureRow(NamedTuple):
    """The texts and addresses of a failure; the table unpacks them in this order."""

    number: int
    address: str
    position: str
    event_type: str
    key: str
    color: str
    status: str
    failed_at: str
    reason: str
    open: bool


def _make_failure_rows(page: ConsolePage, failures: list[dict[str, Any]]) -> list[FailureRow]:
    """Return the rows of a table of failures, prepared here for speed as those of events are."""
    event_start = page.url_start("/event", "id")
    rows = []
    for listed in failures:
        failure, status = listed["failure"], listed["status"]
        color, words = _FAILURE_STATES[status]
        rows.append(
            FailureRow(
                failure["position"],
                event_start + quote_value(failure["event_id"]),
                format_number(failure["position"]),
                shorten(failure["event_type"], 48),
                shorten(failure["key"], 60),
                color,
                f"{words}, retried next" if listed["again"] else words,
                format_seconds(listed["failed_at"]),
                shorten(failure["reason"], 200),
                status != "passed",
            )
        )
    return rows


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
    statuses = (await page.get("/v1/projections", name=name))["projections"] if name else []
    if not statuses:
        raise NotFound("there is no such projection", details={"projection": name})
    [standing] = statuses
    row = make_projection_row(page, standing)
    if row.lag:
        row.lag_time = await read_lag_time(page, row.position or 0)
    listing = await _read_failures(page, name)
    return await page.render_form(
        "projection.html",
        error,
        standing=standing,
        row=row,
        has_steps=any(
            projection.name == name and not projection.is_frame for projection in page.projections
        ),
        chart=draw_lag(page, "projection", name),
        failures=_make_failure_rows(page, [] if listing is None else listing["failures"]),
        failures_after=page.params.get("after", ""),
        next_failure=_find_next_failure([] if listing is None else listing["failures"]),
        failure_count=0 if listing is None else listing["count"],
        unresolved=0 if listing is None else listing["unresolved"],
        jobs=await _read_jobs(page, name),
        notices=list_notices(page),
    )


async def _read_failures(page: ConsolePage, name: str) -> Any:
    """Return a page of the failures of a projection; None for callers that may not operate."""
    if not page.can("operate"):
        return None
    after = parse_number(page, "after")
    return await read_optional(
        page, "/v1/projections/failures", name=name, after=after, limit=_FAILURES_MAX
    )


def _find_next_failure(failures: list[dict[str, Any]]) -> int | None:
    """Return the position after which the next page begins, None if this one is not full."""
    full = len(failures) == _FAILURES_MAX
    return int(failures[-1]["failure"]["position"]) if full else None


async def _read_jobs(page: ConsolePage, name: str) -> list[dict[str, Any]] | None:
    """Return the newest jobs of a projection; None for callers that may not start one."""
    if page.caller.tenant_id != ALL_TENANTS or not page.can("operate"):
        return None
    response = await read_optional(page, "/v1/jobs", limit=_JOBS_READ)
    tenant_id = page.request.tenant_id
    return [
        job
        for job in (response or {"jobs": []})["jobs"]
        if (job["projection"], job["tenant_id"]) == (name, tenant_id)
    ]


async def show_job(page: ConsolePage) -> ConsoleResponse:
    """Show the state, progress and result of a job."""
    response = await page.get("/v1/jobs/one", id=page.params.get("id", ""))
    job = response["job"]
    active = job["status"] in ("queued", "running")
    found_difference = job["result"] is not None and job["result"].get("equal") is False
    return await page.render(
        "job.html",
        job=job,
        active=active,
        may_accept=found_difference or (job["kind"] == "rebuild" and job["status"] == "failed"),
        notices=list_notices(page),
    )


async def start_job(page: ConsolePage) -> ConsoleResponse:
    """Start a verification or rebuild of a projection, and show its page."""
    name = page.form.get("name", "")
    body = {
        "kind": page.form.get("kind", ""),
        "projection": name,
        "reason": page.reason,
    }
    try:
        response = await page.post("/v1/jobs", body)
    except (BackendFailure, Conflict, InvalidArgument, NotFound) as error:
        show = _render_accept if body["kind"] == "rebuild_accept" else _render_projection
        return await show(page, name, error)
    return finish_action(page, "/job", "started", response, id=response["job"]["job_id"])


async def confirm_accept(page: ConsolePage) -> ConsoleResponse:
    """Ask for a confirmation before a rebuild replaces tables that differ from its result."""
    return await _render_accept(page, page.params.get("name", ""))


async def _render_accept(
    page: ConsolePage, name: str, error: SeriatimError | None = None
) -> ConsoleResponse:
    """Show what the last job has found, so that an operator knows which rows are replaced."""
    page.require_operator_of_all()
    jobs = await _read_jobs(page, name) or []
    if not (await page.get("/v1/projections", name=name))["projections"]:
        raise NotFound("there is no such projection", details={"projection": name})
    finished = [job for job in jobs if job["finished_at"]]
    last = finished[0] if finished else None
    return await page.render_form("projection_accept.html", error, name=name, last=last)


# -- actions


async def _post_action(
    page: ConsolePage, path: str, outcome: str, **fields: int
) -> ConsoleResponse:
    """Call a route for the projection of a form, and show its page again."""
    name = page.form.get("name", "")
    body = {"name": name, "reason": page.reason, **fields}
    try:
        result = await page.post(path, body)
    except InvalidArgument as error:  # a reason that is missing, too long, or holds a secret
        return await _render_projection(page, name, error)
    return finish_action(page, "/projection", outcome, result, name=name)


async def pause(page: ConsolePage) -> ConsoleResponse:
    """Stop a projection at its current position."""
    return await _post_action(page, "/v1/projections/pause", "paused")


async def resume(page: ConsolePage) -> ConsoleResponse:
    """Resume a paused projection."""
    return await _post_action(page, "/v1/projections/resume", "resumed")


async def retry(page: ConsolePage) -> ConsoleResponse:
    """Retry one failed event of a projection."""
    return await _post_action(
        page, "/v1/projections/retry", "retried", position=read_count(page, "position")
    )


async def skip(page: ConsolePage) -> ConsoleResponse:
    """Skip one failed event of a projection."""
    return await _post_action(
        page, "/v1/projections/skip", "skipped", position=read_count(page, "position")
    )


async def confirm_retry(page: ConsolePage) -> ConsoleResponse:
    """Ask for a confirmation, with their number, before all failures are retried (N4)."""
    name = page.params.get("name", "")
    response = await page.get("/v1/projections/failures", name=name, limit=1)
    return await page.render("projection_retry.html", name=name, count=response["unresolved"])


async def retry_all(page: ConsolePage) -> ConsoleResponse:
    """Retry all failures of a projection, if their number is the confirmed one."""
    expected = read_count(page, "expected_count")
    return await _post_action(page, "/v1/projections/retry", "retried", expected_count=expected)


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/projections", show=show_projections, title="Projections"),
    PageRoute(method="GET", path="/projection", show=show_projection),
    PageRoute(method="GET", path="/projection/retry-all", show=confirm_retry),
    PageRoute(method="GET", path="/projection/accept", show=confirm_accept),
    PageRoute(method="GET", path="/job", show=show_job),
    PageRoute(method="POST", path="/projection/job", show=start_job),
    PageRoute(method="POST", path="/projection/pause", show=pause),
    PageRoute(method="POST", path="/projection/resume", show=resume),
    PageRoute(method="POST", path="/projection/retry", show=retry),
    PageRoute(method="POST", path="/projection/skip", show=skip),
    PageRoute(method="POST", path="/projection/retry-all", show=retry_all),
)

"""Handlers: entries by state, and actions on failed ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from seriatim.console.actions import finish_action, list_notices, parse_count, read_count
from seriatim.console.consumers import HANDLER_STATUSES, HandlerRow, draw_lag, read_handlers
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.core.errors import BackendFailure, Conflict, InvalidArgument, NotFound, SeriatimError
from seriatim.core.tenants import ALL_TENANTS
from seriatim.core.times import format_us

_PAGE = 50
_PRUNE_DEFAULT_US = 30 * 86_400_000_000  # a month
_FILTERS = ("status", "event_type", "stream_type", "stream_id", "event_id")
_ACTIONS = {"retry": "retried", "skip": "skipped"}


async def show_handlers(page: ConsolePage) -> ConsoleResponse:
    """List the handlers, and the number of their events in each state."""
    page.history.watch(page.request.tenant_id)
    rows = await read_handlers(page)
    return await page.render("handlers.html", handlers=rows, statuses=HANDLER_STATUSES)


async def show_handler(page: ConsolePage) -> ConsoleResponse:
    """Show one handler, and its unfinished events that match the filters."""
    page.history.watch(page.request.tenant_id)
    return await _render_handler(page, page.params.get("name", ""), read_filters(page.params))


async def _render_handler(
    page: ConsolePage, name: str, filters: dict[str, str], error: SeriatimError | None = None
) -> ConsoleResponse:
    row = await _find_handler(page, name)
    after = page.params.get("after", "-1")
    response = await page.get(
        "/v1/registry/entries", handler=name, after=after, limit=_PAGE + 1, **filters
    )
    entries = response["entries"]
    more = len(entries) > _PAGE
    following = ""
    if more:
        last = entries[_PAGE - 1]["position"]
        following = page.url("/handler", name=name, **filters, after=last)
    return await page.render_form(
        "handler.html",
        error,
        row=row,
        filters=filters,
        entries=entries[:_PAGE],
        following=following,
        first=page.url("/handler", name=name, **filters) if "after" in page.params else "",
        chart=draw_lag(page, "handler", name),
        may_pause=page.caller.tenant_id == ALL_TENANTS,
        statuses=HANDLER_STATUSES,
        notices=list_notices(page),
    )


async def _find_handler(page: ConsolePage, name: str) -> HandlerRow:
    rows = await read_handlers(page)
    row = next((candidate for candidate in rows or () if candidate.name == name), None)
    if row is None:
        raise NotFound("there is no such handler", details={"handler": name})
    return row


async def show_entry(page: ConsolePage) -> ConsoleResponse:
    """Show what the registry stores about the attempts of a handler to process one event."""
    name, event_id = page.params.get("name", ""), page.params.get("event_id", "")
    response = await page.get("/v1/registry/entries", handler=name, event_id=event_id, limit=1)
    if not response["entries"]:
        msg = "this event is finished, or the handler has not received it"
        raise NotFound(msg, details={"handler": name, "event_id": event_id})
    return await page.render("handler_entry.html", entry=response["entries"][0])


def read_filters(fields: Any) -> dict[str, str]:
    """Return the filters of an address or a form that are not empty."""
    return {name: value for name in _FILTERS if (value := fields.get(name, "").strip())}


# -- actions on one event


async def retry_one(page: ConsolePage) -> ConsoleResponse:
    """Retry one event at once."""
    return await _post_action(page, "retry")


async def skip_one(page: ConsolePage) -> ConsoleResponse:
    """Mark one event as done, with a reason."""
    return await _post_action(page, "skip")


async def _post_action(page: ConsolePage, action: str) -> ConsoleResponse:
    name = page.form.get("name", "")
    body = {
        "handler": name,
        "event_id": page.form.get("event_id", ""),
        "reason": page.reason,
    }
    try:
        result = await page.post(f"/v1/dead-letters/{action}", body)
    except InvalidArgument as error:
        return await _render_handler(page, name, {"event_id": body["event_id"]}, error)
    return finish_action(page, "/handler", _ACTIONS[action], result, name=name)


# -- actions on all events that match (N4)


async def confirm(page: ConsolePage) -> ConsoleResponse:
    """Ask for a confirmation, with the number of events, before all that match are acted on."""
    action, name = page.params.get("action", ""), page.params.get("name", "")
    return await _render_confirmation(page, action, name, read_filters(page.params))


async def _render_confirmation(
    page: ConsolePage,
    action: str,
    name: str,
    filters: dict[str, str],
    error: SeriatimError | None = None,
) -> ConsoleResponse:
    if action not in _ACTIONS:
        raise NotFound("there is no such action")
    response = await page.get("/v1/registry/count", handler=name, **filters)
    return await page.render_form(
        "handler_confirm.html",
        error,
        action=action,
        name=name,
        filters=filters,
        count=response["retryable" if action == "retry" else "count"],
        counts=response["counts"],
    )


async def act_on_all(page: ConsolePage) -> ConsoleResponse:
    """Retry or skip all events that match, if their number is the confirmed one."""
    action, name = page.form.get("action", ""), page.form.get("name", "")
    filters = read_filters(page.form)
    if action not in _ACTIONS:
        raise NotFound("there is no such action")
    body: dict[str, Any] = {
        "handler": name,
        "all": True,
        "expected_count": read_count(page, "expected_count"),
        "reason": page.reason,
        **filters,
    }
    if event_id := filters.get("event_id"):  # one event at most: no other filter is needed
        body = {"handler": name, "event_id": event_id, "reason": body["reason"]}
    try:
        result = await page.post(f"/v1/dead-letters/{action}", body)
    except (Conflict, InvalidArgument) as error:  # another number of events by now, or no reason
        return await _render_confirmation(page, action, name, filters, error)
    return finish_action(page, "/handler", _ACTIONS[action], result, name=name)


async def pause(page: ConsolePage) -> ConsoleResponse:
    """Stop a handler from claiming events, for all tenants."""
    return await _set_status(page, "pause", "paused")


async def resume(page: ConsolePage) -> ConsoleResponse:
    """Resume a handler that was paused or has stopped, for all tenants."""
    return await _set_status(page, "resume", "resumed")


async def _set_status(page: ConsolePage, action: str, outcome: str) -> ConsoleResponse:
    name = page.form.get("name", "")
    body = {"handler": name, "reason": page.reason}
    try:
        result = await page.post(f"/v1/handlers/{action}", body)
    except InvalidArgument as error:
        return await _render_handler(page, name, {}, error)
    return finish_action(page, "/handler", outcome, result, name=name)


# -- actions on all entries of a handler, for all tenants (N4)


async def plan_prune(page: ConsolePage) -> ConsoleResponse:
    """Ask for a confirmation, with their number, before finished entries are deleted."""
    return await _render_prune(page, page.params)


async def _render_prune(
    page: ConsolePage, fields: Mapping[str, str], error: SeriatimError | None = None
) -> ConsoleResponse:
    name, before = fields.get("name", ""), fields.get("before", "").strip()
    streamless = bool(fields.get("streamless"))
    count = None
    if before:
        try:
            count = (await page.get("/v1/handlers/prunable", **_make_prune_params(fields)))["count"]
        except InvalidArgument as problem:
            error = error or problem
    suggested = format_us(max(0, time.time_ns() // 1000 - _PRUNE_DEFAULT_US))
    return await page.render_form(
        "handler_prune.html",
        error,
        name=name,
        before=before or f"{suggested[:10]}T00:00:00Z",
        streamless=streamless,
        count=count,
    )


def _make_prune_params(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that select the entries to delete."""
    return {
        "handler": fields.get("name", ""),
        "finished_before": fields.get("before", "").strip(),
        "streamless": bool(fields.get("streamless")),
    }


async def prune(page: ConsolePage) -> ConsoleResponse:
    """Delete finished entries, if their number is the confirmed one."""
    expected = read_count(page, "expected_count")
    body = _make_prune_params(page.form) | {"expected_count": expected, "reason": page.reason}
    try:
        result = await page.post("/v1/handlers/prune", body)
    except (Conflict, InvalidArgument) as error:
        return await _render_prune(page, page.form, error)
    return finish_action(page, "/handler", "pruned", result, name=page.form.get("name", ""))


async def plan_reset(page: ConsolePage) -> ConsoleResponse:
    """Show what a reset of a handler would delete for each tenant, and ask for a confirmation."""
    page.require_operator_of_all()
    return await _render_reset(page, page.params)


async def _render_reset(
    page: ConsolePage, fields: Mapping[str, str], error: SeriatimError | None = None
) -> ConsoleResponse:
    plan = None
    try:
        # Only on request, or after a refusal: a plan reads every stream of the handler.
        if fields.get("plan") or error is not None:
            body = {**_make_reset_params(fields), "dry_run": True}
            plan = await page.post("/v1/handlers/reset", body)
    except (BackendFailure, InvalidArgument) as problem:  # such as a position that is required
        error = error or problem
    return await page.render_form(
        "handler_reset.html",
        error,
        name=fields.get("name", ""),
        affected=fields.get("affected", "").strip(),
        position=fields.get("position", "").strip(),
        plan=plan,
    )


def _make_reset_params(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of a reset."""
    position = fields.get("position", "").strip()
    return {
        "handler": fields.get("name", ""),
        "tenant_id": fields.get("affected", "").strip() or None,
        "position": parse_count(position, "position") if position else None,
    }


async def reset(page: ConsolePage) -> ConsoleResponse:
    """Reset a handler, if the number of entries to delete is the confirmed one."""
    expected = read_count(page, "expected_count")
    body = {**_make_reset_params(page.form), "expected_count": expected, "reason": page.reason}
    try:
        result = await page.post("/v1/handlers/reset", body)
    except (Conflict, InvalidArgument) as error:
        return await _render_reset(page, page.form, error)
    return finish_action(page, "/handler", "reset", result, name=page.form.get("name", ""))


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(
        method="GET", path="/handlers", show=show_handlers, title="Handlers", right="operate"
    ),
    PageRoute(method="GET", path="/handler", show=show_handler),
    PageRoute(method="GET", path="/handler/entry", show=show_entry),
    PageRoute(method="GET", path="/handler/confirm", show=confirm),
    PageRoute(method="POST", path="/handler/retry", show=retry_one),
    PageRoute(method="POST", path="/handler/skip", show=skip_one),
    PageRoute(method="POST", path="/handler/all", show=act_on_all),
    PageRoute(method="GET", path="/handler/prune", show=plan_prune),
    PageRoute(method="POST", path="/handler/prune", show=prune),
    PageRoute(method="GET", path="/handler/reset", show=plan_reset),
    PageRoute(method="POST", path="/handler/reset", show=reset),
    PageRoute(method="POST", path="/handler/pause", show=pause),
    PageRoute(method="POST", path="/handler/resume", show=resume),
)

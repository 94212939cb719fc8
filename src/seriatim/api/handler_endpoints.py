"""Endpoints for operators of all tenants: pause, resume, prune and reset a handler."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from seriatim.api.http import HttpRequest
from seriatim.api.operator_endpoints import record_request, run_in_registry
from seriatim.api.service import Service
from seriatim.core.operation import ActionName
from seriatim.core.tenants import ALL_TENANTS
from seriatim.delivery.registry import Registry
from seriatim.delivery.reset import ResetReport, count_forgotten
from seriatim.log.arguments import check_name, check_position, invalid_argument
from seriatim.log.operator_journal import check_expected_count, check_reason
from seriatim.wire.messages import CountResponse


class HandlerBody(msgspec.Struct, forbid_unknown_fields=True):
    """A handler to pause or resume, and the reason."""

    handler: str
    reason: str = ""


class PrunableParams(msgspec.Struct, frozen=True):
    """Entries of a handler that were finished before a time in RFC 3339.

    `streamless` includes events without a stream, whose effects are repeated if they are
    delivered again.
    """

    handler: str
    finished_before: str
    streamless: bool = False


class PruneBody(PrunableParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Entries to delete, their number as `GET /v1/handlers/prunable` returns it, and the reason."""

    expected_count: int
    reason: str


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A handler to reset to the log as it is now, and the reason.

    `tenant_id` is one tenant, null all of them. `position` is the head that the log had directly
    after its restore, null the highest position at which registry and log have the same event.
    Without `dry_run`, `expected_count` is required: the `count` that a dry run returns.
    """

    handler: str
    reason: str = ""
    tenant_id: str | None = None
    position: int | None = None
    dry_run: bool = False
    expected_count: int | None = None


class ResetResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a reset for each tenant, and the number of deleted entries of all.

    `recorded` is false if the action succeeded but could not be recorded in the journal.
    """

    reports: list[ResetReport]
    count: int
    recorded: bool = True


async def pause_handler(service: Service, request: HttpRequest, body: HandlerBody) -> CountResponse:
    """Stop a handler from claiming events until it is resumed, for all tenants."""
    return await _set_status(service, request, body, "paused")


async def resume_handler(
    service: Service, request: HttpRequest, body: HandlerBody
) -> CountResponse:
    """Resume a handler that was paused or has stopped, for all tenants."""
    return await _set_status(service, request, body, "ready")


async def _set_status(
    service: Service, request: HttpRequest, body: HandlerBody, status: Literal["paused", "ready"]
) -> CountResponse:
    name = check_name("handler", body.handler)
    reason = check_reason(body.reason)
    action: ActionName = "handler_paused" if status == "paused" else "handler_resumed"

    def run(registry: Registry) -> CountResponse:
        registry.set_status(name, status, reason if status == "paused" else "")
        target = {"handler": name}
        return CountResponse(
            1,
            record_request(service, request, action, target, reason=reason, tenant_id=ALL_TENANTS),
        )

    return await run_in_registry(service, request, run)


async def count_prunable(
    service: Service, request: HttpRequest, params: PrunableParams
) -> CountResponse:
    """Count the finished entries of a handler that a prune would delete, for all tenants."""
    name = check_name("handler", params.handler)

    def run(registry: Registry) -> CountResponse:
        return CountResponse(
            registry.count_prunable(
                name, streamless=params.streamless, finished_before=params.finished_before
            )
        )

    return await run_in_registry(service, request, run)


async def prune_handler(service: Service, request: HttpRequest, body: PruneBody) -> CountResponse:
    """Delete the entries of events that were finished before a time, for all tenants.

    The sequence numbers of their streams still identify them as processed. The request is refused
    with `conflict` if their number is not `expected_count`.
    """
    name, reason = check_name("handler", body.handler), check_reason(body.reason, required=True)
    selection: dict[str, Any] = {
        "streamless": body.streamless,
        "finished_before": body.finished_before,
    }

    def run(registry: Registry) -> CountResponse:
        check_expected_count(body.expected_count, registry.count_prunable(name, **selection))
        count = registry.prune(name, **selection)
        target = {"handler": name, **selection}
        recorded = not count or record_request(
            service,
            request,
            "handler_pruned",
            target,
            count=count,
            reason=reason,
            tenant_id=ALL_TENANTS,
        )
        return CountResponse(count, recorded)

    return await run_in_registry(service, request, run)


async def reset_handler(service: Service, request: HttpRequest, body: ResetBody) -> ResetResponse:
    """Let a handler continue with a log that was restored or replaced.

    Entries of events that the log no longer contains are deleted. Stop the consumers of the
    handler first. With `dry_run` nothing is changed. The request is refused with `conflict` if the
    number of entries is not `expected_count`.
    """
    name, reason = check_name("handler", body.handler), check_reason(body.reason)
    if body.position is not None:
        check_position("position", body.position)
    if not body.dry_run and body.expected_count is None:
        msg = "is required without dry_run: the count that a dry run returns"
        raise invalid_argument("expected_count", msg)

    def run(registry: Registry) -> ResetResponse:
        options: dict[str, Any] = {"tenant_id": body.tenant_id, "position": body.position}
        log = service.log
        plan = registry.reset(name, log, reason=reason or "dry run", dry_run=True, **options)
        if body.expected_count is not None:
            check_expected_count(body.expected_count, count_forgotten(plan))
        if body.dry_run:
            return ResetResponse(plan, count_forgotten(plan))
        reports = registry.reset(name, log, reason=reason, **options)
        recorded = not reports or record_request(
            service,
            request,
            "handler_reset",
            {"handler": name, "position": body.position},
            count=len(reports),
            reason=reason,
            tenant_id=body.tenant_id or ALL_TENANTS,
        )
        return ResetResponse(reports, count_forgotten(reports), recorded)

    return await run_in_registry(service, request, run)

"""Actions of operators: who did what, to what, and why."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ActionName = Literal[
    "projection_paused",
    "projection_resumed",
    "projection_failures_retried",
    "projection_failure_skipped",
    "projection_rebuilt",
    "projection_job_started",
    "handler_paused",
    "handler_resumed",
    "handler_reset",
    "handler_pruned",
    "events_retried",
    "events_skipped",
    "subscription_retried",
    "subscription_batch_skipped",
    "subscription_reset",
    "token_created",
    "token_revoked",
    "quota_set",
    "quota_removed",
]
Interface = Literal["cli", "http", "python"]


class Operator(msgspec.Struct, frozen=True):
    """The person or service that performs an action, and the interface it is performed through.

    `confined` means that the operator may act for one tenant only.
    """

    actor_id: str
    interface: Interface
    actor_type: str = "service"
    confined: bool = False


class OperatorAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action to record: what was done, to what, by whom and why.

    Attributes:
        action: The name of the action.
        operator: The operator.
        tenant_id: The tenant that is affected, `*` for all tenants.
        target: What the action applied to: names, ids or the filter that selected events.
        count: The number of affected events, entries or other targets.
        reason: Why, in the operator's words.
    """

    action: ActionName
    operator: Operator
    tenant_id: str
    target: dict[str, Any]
    count: int = 1
    reason: str = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the journal: who did what to what, why and when."""

    position: int
    recorded_at: str
    action: str
    actor_type: str
    actor_id: str
    interface: str
    tenant_id: str
    target: dict[str, Any]
    count: int
    reason: str

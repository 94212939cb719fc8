"""Factories for envelopes of traces, with a valid payload for each type."""

from typing import Any

import seriatim
from seriatim.profiles.traces import StoredEvent

_ENTITY = {"entity_type": "deal", "entity_id": "d-1"}
_POLICY = {"policy_id": "discount", "policy_version": "3"}
_FACT = {"key": "amount", "value": {"type": "int", "value": "12"}}

PAYLOADS: dict[str, dict[str, Any]] = {
    "TraceStarted": {"workflow": "orders", "title": "Deal", "primary_entity": _ENTITY},
    "InputObserved": {
        "input_id": "i-1",
        "source": {"system": "crm", "object_type": "deal", "object_id": "d-1"},
        "facts": [_FACT],
    },
    "EntityObserved": {"entity": _ENTITY, "role": "primary", "facts": []},
    "PolicyEvaluated": {"policy": _POLICY, "inputs": [], "decision": "require_exception"},
    "ExceptionRequested": {"exception_id": "e-1", "policy": _POLICY, "reason": "strategic"},
    "ApprovalRecorded": {
        "approval_id": "a-1",
        "subject": {"subject_type": "exception", "subject_id": "e-1"},
        "approver": {"actor_type": "person", "actor_id": "p-1"},
        "decision": "approved",
    },
    "PrecedentCited": {"cited_trace_id": "t-0", "reason": "alike"},
    "ActionProposed": {
        "action_id": "x-1",
        "action_type": "update",
        "target_entity": _ENTITY,
        "target_system": "crm",
        "changes": [{"path": "/discount", "old_value": None, "new_value": "20"}],
    },
    "ActionCommitted": {"action_id": "x-1", "status": "success"},
    "TraceFinished": {"outcome": "success"},
}


def envelope(
    event_type: str = "TraceStarted", trace_seq: int = 0, trace_id: str = "t-1", **changes: object
) -> dict[str, Any]:
    """Return a valid envelope whose ids are derived from the trace and the number."""
    return {
        "event_id": f"{trace_id}-{trace_seq}",
        "trace_id": trace_id,
        "trace_seq": trace_seq,
        "event_type": event_type,
        "occurred_at": f"2026-03-01T10:00:{trace_seq % 60:02d}+01:00",
        "producer_id": "deal-agent",
        "source": {"system": "orders", "subsystem": "rules"},
        "actor": {"actor_type": "agent", "actor_id": "agent-7"},
        "idempotency_key": f"{trace_id}/{trace_seq}",
        "payload": PAYLOADS.get(event_type, {}),
        **changes,
    }


def append_trace(
    log: seriatim.Log, *types: str, trace_id: str = "t-1", **changes: object
) -> list[StoredEvent]:
    """Append the first events of a trace, one of each given type."""
    return [
        log.traces.append_event(envelope(event_type, number, trace_id, **changes))
        for number, event_type in enumerate(types)
    ]

"""Decision traces for a log: ten events each, a hundred interleaved traces."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.workload import new_id
from seriatim import NewEvent
from seriatim.core.decision_graph import TRACE_STREAM_TYPE

STEPS = (
    "TraceStarted",
    "InputObserved",
    "EntityObserved",
    "PolicyEvaluated",
    "ExceptionRequested",
    "ApprovalRecorded",
    "PrecedentCited",
    "ActionProposed",
    "ActionCommitted",
    "TraceFinished",
)
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
OPEN = 100
BLOCK = OPEN * len(STEPS)
ACCOUNTS = 20_000
POLICIES = 40
PEOPLE = 200


def make_trace_event(index: int) -> NewEvent:
    """Return the event at an index of a log of traces."""
    block, within = divmod(index, BLOCK)
    step, nth = divmod(within, OPEN)
    trace = block * OPEN + nth
    return NewEvent(
        STEPS[step],
        make_step_payload(STEPS[step], trace),
        stream=(TRACE_STREAM_TYPE, f"t-{trace:08d}"),
        stream_seq=step,
        event_id=new_id(),
        occurred_at=(BEGIN + timedelta(seconds=index)).isoformat(),
        idempotency_key=f"{trace}/{step}",
        producer_id="deal-desk",
        source_system="crm",
        actor_type="agent",
        actor_id=f"agent-{trace % 17}",
    )


def make_trace_batches(start: int, total: int, size: int) -> Iterator[list[NewEvent]]:
    """Yield the events from `start` to `total` in batches of whole, interleaved traces.

    All arguments must be multiples of 1,000, the events of a hundred interleaved traces.
    """
    assert start % BLOCK == total % BLOCK == size % BLOCK == 0
    for first in range(start, total, size):
        yield [make_trace_event(index) for index in range(first, min(first + size, total))]


def make_step_payload(step: str, trace: int) -> dict[str, Any]:
    """Return the payload of one step; traces share entities, policies and people."""
    deal = {"entity_type": "deal", "entity_id": f"d-{trace:08d}", "system": "crm"}
    account = {"entity_type": "account", "entity_id": f"a-{trace * 7919 % ACCOUNTS:05d}"}
    policy = {"policy_id": f"discounts-{trace % POLICIES}", "policy_version": "2025.11"}
    facts = [
        {"key": "amount", "value": {"type": "int", "value": str(100 + trace % 90_000)}},
        {"key": "discount", "value": {"type": "decimal", "value": f"0.{trace % 50:02d}"}},
    ]
    payloads: dict[str, dict[str, Any]] = {
        "TraceStarted": {"workflow": "deal_desk", "title": "A discount", "primary_entity": deal},
        "InputObserved": {
            "input_id": f"i-{trace:08d}",
            "source": {"system": "crm", "object_type": "deal", "object_id": deal["entity_id"]},
            "facts": facts,
        },
        "EntityObserved": {"entity": account, "role": "related", "facts": facts},
        "PolicyEvaluated": {"policy": policy, "inputs": [], "decision": "require_exception"},
        "ExceptionRequested": {
            "exception_id": f"x-{trace:08d}",
            "policy": policy,
            "reason": "a long-standing customer who pays early",
        },
        "ApprovalRecorded": {
            "approval_id": f"ap-{trace:08d}",
            "subject": {"subject_type": "exception", "subject_id": f"x-{trace:08d}"},
            "approver": {"actor_type": "person", "actor_id": f"p-{trace % PEOPLE}"},
            "decision": "approved",
        },
        "PrecedentCited": {
            "cited_trace_id": f"t-{max(0, trace - 1 - trace % 50):08d}",
            "reason": "the same customer",
        },
        "ActionProposed": {
            "action_id": f"ac-{trace:08d}",
            "action_type": "update",
            "target_entity": deal,
            "target_system": "crm",
            "changes": [{"path": "discount", "old_value": None, "new_value": "10"}],
        },
        "ActionCommitted": {"action_id": f"ac-{trace:08d}", "status": "success"},
        "TraceFinished": {"outcome": "success"},
    }
    return payloads[step]

"""Demo step: the trace of a decision, from its first event to its end."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from seriatim import Conflict
from seriatim.examples.demo_report import DemoReport, make_demo_table

TRACE = "deal-789"
_POLICY = {"policy_id": "discount-limits", "policy_version": "2025.11"}
_DEAL = {"entity_type": "opportunity", "entity_id": "opp-789", "system": "salesforce"}
_AGENT = {"actor_type": "agent", "actor_id": "deal_agent"}
_PERSON = {"actor_type": "person", "actor_id": "vp_sales"}

_EVENTS: tuple[tuple[str, dict[str, Any], dict[str, str], str], ...] = (
    (
        "TraceStarted",
        {"workflow": "deal_approval", "title": "Discount for a clinic", "primary_entity": _DEAL},
        _AGENT,
        "discount for a clinic",
    ),
    (
        "InputObserved",
        {
            "input_id": "deal_size",
            "source": {
                "system": "salesforce",
                "object_type": "opportunity",
                "object_id": "opp-789",
            },
            "facts": [
                {"key": "deal_value", "value": {"type": "int", "value": "250000"}},
                {"key": "discount", "value": {"type": "decimal", "value": "0.28"}},
            ],
        },
        _AGENT,
        "250,000 at 28 % off, from salesforce",
    ),
    (
        "PolicyEvaluated",
        {"policy": _POLICY, "inputs": ["deal_size"], "decision": "require_exception"},
        _AGENT,
        "discount-limits 2025.11 says: require_exception",
    ),
    (
        "ExceptionRequested",
        {"exception_id": "exc-1", "policy": _POLICY, "reason": "over 20 % needs a person"},
        _AGENT,
        "over 20 % needs a person",
    ),
    (
        "PrecedentCited",
        {"cited_trace_id": "deal-512", "reason": "same segment, same size"},
        _AGENT,
        "deal-512: same segment, same size",
    ),
    (
        "ApprovalRecorded",
        {
            "approval_id": "apr-1",
            "subject": {"subject_type": "exception", "subject_id": "exc-1"},
            "approver": _PERSON,
            "decision": "approved",
        },
        _PERSON,
        "exc-1 approved",
    ),
    (
        "ActionCommitted",
        {"action_id": "act-1", "status": "success"},
        _AGENT,
        "quote sent",
    ),
    ("TraceFinished", {"outcome": "success"}, _AGENT, "success"),
)


def make_envelope(
    seq: int, type_: str, payload: dict[str, Any], actor: dict[str, str]
) -> dict[str, Any]:
    """Return one event of the trace as its producer sends it."""
    return {
        "event_id": f"{TRACE}-event-{seq}",
        "trace_id": TRACE,
        "trace_seq": seq,
        "event_type": type_,
        "occurred_at": f"2025-12-31T12:00:{seq:02d}Z",
        "producer_id": "deal_agent_service",
        "source": {"system": "deal-orchestrator"},
        "actor": actor,
        "idempotency_key": f"{TRACE}:{seq}",
        "payload": payload,
    }


def show_decision_trace(report: DemoReport) -> None:
    """Append the trace, read it back, and try to append after its end."""
    report.start_step(
        "traces: a decision, recorded step by step",
        "Proves: a trace opens once, its numbers have no gaps, and nothing is added after its end.",
    )
    traces = report.log.traces
    for seq, (type_, payload, actor, _) in enumerate(_EVENTS):
        traces.append_event(make_envelope(seq, type_, payload, actor))
    events = traces.get_trace_events(TRACE)
    table = make_demo_table(
        "log_seq", "trace_seq", "event", "actor", "summary", right=("log_seq", "trace_seq")
    )
    for event, (_, _, actor, summary) in zip(events, _EVENTS, strict=True):
        table.add_row(
            str(event.log_seq),
            str(event.trace_seq),
            Text(event.event_type, style="green"),
            actor["actor_id"],
            summary,
        )
    report.print(table)
    numbers = [event.trace_seq for event in events]
    report.check("the trace reads back completely, numbered 0 to 7", numbers == list(range(8)))
    _append_after_end(report)


def _append_after_end(report: DemoReport) -> None:
    late = make_envelope(8, "PrecedentCited", {"cited_trace_id": "x", "reason": "late"}, _AGENT)
    refusal = None
    try:
        report.log.traces.append_event(late)
    except Conflict as error:
        refusal = error
    report.show_refusal("a ninth event", refusal)
    finished = report.log.traces.is_trace_finished(TRACE)
    report.check("the finished trace is unchanged", finished and refusal is not None)

"""Traces for tests of the console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seriatim import Log

DEAL_DESK: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "deal_desk.json").read_text()
)["events"]
DEAL_ID: str = DEAL_DESK[0]["trace_id"]


def append_step(
    log: Log, trace_id: str, number: int, event_type: str, payload: dict[str, Any]
) -> None:
    """Append one event of a trace."""
    log.traces.append_event(
        {
            "event_id": f"{trace_id[:100]}/{number}",
            "trace_id": trace_id,
            "trace_seq": number,
            "event_type": event_type,
            "occurred_at": f"2026-03-01T09:{number // 60 % 60:02}:{number % 60:02}Z",
            "source": {"system": "pricing", "producer_id": "agent-7"},
            "actor": {"actor_type": "agent", "actor_id": "agent-7"},
            "idempotency_key": f"{trace_id[:100]}/{number}",
            "payload": payload,
        }
    )


def start_trace(log: Log, trace_id: str, workflow: str = "refund", title: str = "A title") -> None:
    """Start a trace."""
    primary = {"entity_type": "order", "entity_id": "o-1"}
    append_step(
        log,
        trace_id,
        0,
        "TraceStarted",
        {"workflow": workflow, "title": title, "primary_entity": primary},
    )


def observe_entity(log: Log, trace_id: str, number: int, entity_id: str) -> None:
    """Add an entity to a trace."""
    entity = {"entity_type": "item", "entity_id": entity_id}
    payload = {"entity": entity, "role": "related", "facts": []}
    append_step(log, trace_id, number, "EntityObserved", payload)


def finish_trace(log: Log, trace_id: str, number: int, outcome: str) -> None:
    """Finish a trace."""
    append_step(log, trace_id, number, "TraceFinished", {"outcome": outcome})

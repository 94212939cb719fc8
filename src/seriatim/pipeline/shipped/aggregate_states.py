"""The current state of every aggregate: what a control plane looks at."""

from __future__ import annotations

from typing import Any

from seriatim.core.event import EventRecord
from seriatim.core.kinds import TRACE_KIND
from seriatim.core.projection import projection

_ENDINGS = (".deleted", ".removed")


@projection(
    "aggregate_states",
    key="stream",
    columns={
        "aggregate_type": str,
        "aggregate_id": str,
        "seq": int,
        "last_event": str,
        "data": dict,
        "deleted": bool,
        "created_at": str,
        "updated_at": str,
        "updated_by": str,
    },
)
def aggregate_states(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
    """Lay the payloads of an aggregate over each other: the last word on each field stays."""
    if event.stream_type == TRACE_KIND:
        return None
    known = state["data"] if state else {}
    return {
        "aggregate_type": event.stream_type,
        "aggregate_id": event.stream_id,
        "seq": event.stream_seq,
        "last_event": event.event_type,
        "data": known | event.data,
        "deleted": event.event_type.endswith(_ENDINGS),
        "created_at": state["created_at"] if state else event.occurred_at,
        "updated_at": event.occurred_at,
        "updated_by": event.actor_id,
    }

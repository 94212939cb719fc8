"""Built-in projection `aggregate_states`: the current state of every aggregate."""

from __future__ import annotations

from typing import Any

from seriatim.core.event import EventRecord
from seriatim.core.kinds import TRACE_STREAM_TYPE
from seriatim.core.projection import projection

_DELETION_SUFFIXES = (".deleted", ".removed")


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
    """Merge the payloads of an aggregate's events; the latest value of each field wins.

    Events of traces are ignored. An aggregate is marked as deleted by an event whose type ends in
    `.deleted` or `.removed`.
    """
    if event.stream_type == TRACE_STREAM_TYPE:
        return None
    data = state["data"] if state else {}
    return {
        "aggregate_type": event.stream_type,
        "aggregate_id": event.stream_id,
        "seq": event.stream_seq,
        "last_event": event.event_type,
        "data": data | event.payload,
        "deleted": event.event_type.endswith(_DELETION_SUFFIXES),
        "created_at": state["created_at"] if state else event.occurred_at,
        "updated_at": event.occurred_at,
        "updated_by": event.actor_id,
    }

"""The shipped projections that are pure folds: aggregate_states and decision_graph."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.core import decision_graph as graph
from seriatim.core.decision_graph import TRACE_STREAM_TYPE, Trace
from seriatim.core.event import EventRecord
from seriatim.core.projection import Projection, Table, projection

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


_SUMMARY = {
    "workflow": str,
    "title": str,
    "primary_entity_type": str,
    "primary_entity_system": str,
    "primary_entity_id": str,
    "outcome": str,
    "started_at": str,
    "finished_at": str,
    "started_seq": int,
    "event_count": int,
    "last_log_seq": int,
}
# Traces share nodes. The first event that names a node creates it, in whatever order tasks write.
_TABLES = [
    Table(
        "nodes",
        {"node_id": str},
        {"node_type": str, "trace_id": str, "log_seq": int, "created_at": str},
        keep="first",
    ),
    Table(
        "edges",
        {"edge_id": str},
        {
            "edge_type": str,
            "from_node_id": str,
            "to_node_id": str,
            "trace_id": str,
            "log_seq": int,
            "created_at": str,
        },
        keep="first",
    ),
    Table("summaries", {"trace_id": str}, _SUMMARY),
    Table(
        "precedents",
        {"source_event_id": str},
        {
            "log_seq": int,
            "trace_id": str,
            "policy_id": str,
            "policy_version": str,
            "exception_id": str,
            "primary_entity_type": str,
            "primary_entity_system": str,
            "primary_entity_id": str,
        },
        keep="first",
    ),
]


@projection(
    "decision_graph",
    key="stream_id",
    version=2,
    stream_types=[TRACE_STREAM_TYPE],
    tables=_TABLES,
    state=Trace,
)
def decision_graph(
    state: Trace | None, event: EventRecord
) -> tuple[Trace, dict[str, list[dict[str, Any]]]]:
    """Return the nodes and edges that an event adds, and the summary of its trace.

    When a trace has an outcome, its precedents are added too.
    """
    nodes, edges = graph.build_graph(event)
    trace = graph.apply_to_trace(state, event)
    rows = {
        "nodes": [_to_row(node) for node in nodes],
        "edges": [_to_row(edge) for edge in edges],
        "summaries": [_to_summary(trace)],
    }
    if trace.outcome is not None:
        rows["precedents"] = [_to_row(precedent) for precedent in trace.precedents]
    return trace, rows


def _to_row(struct: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(struct)


def _to_summary(trace: Trace) -> dict[str, Any]:
    return {"trace_id": trace.trace_id, **{name: getattr(trace, name) for name in _SUMMARY}}


BUILTIN_FOLDS: tuple[Projection, ...] = (aggregate_states, decision_graph)

"""Built-in projection `decision_graph`: nodes, edges, summaries and precedents of traces (T3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from seriatim.core import decision_graph as graph
from seriatim.core.decision_graph import Edge, Node, Precedent, Recipe, Trace
from seriatim.core.event import EventRecord
from seriatim.core.kinds import TRACE_STREAM_TYPE
from seriatim.core.projection import Table, projection
from seriatim.store.readmodel.snapshot import ReadModelSnapshot

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


def compute_graph_digests(
    snapshot: ReadModelSnapshot, recipe: Recipe = "v2", *, shadow: bool = False
) -> dict[str, str]:
    """Return the four digests of the graph in a read model.

    Args:
        snapshot: A consistent view of the read model.
        recipe: The version of the digest's definition.
        shadow: Whether to read the tables of a rebuild before the switch.

    Returns:
        The digests by name; anyone can recompute them from the rows.
    """

    def rows(name: str, kind: Any) -> Iterator[Any]:
        table = decision_graph.table(name)
        for _, row, _ in snapshot.rows(decision_graph, table, shadow=shadow):
            yield kind(**row)

    return graph.digests(
        rows("nodes", Node),
        rows("edges", Edge),
        rows("summaries", Trace),
        rows("precedents", Precedent),
        recipe,
    )

"""The projections that Seriatim ships: activity, aggregate_states and decision_graph."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim.core import decision_graph as graph
from seriatim.core.builtin_folds import aggregate_states, decision_graph
from seriatim.core.decision_graph import Edge, Node, Precedent, Recipe, Trace
from seriatim.core.projection import Projection, frame_projection
from seriatim.store.readmodel.model import ReadModelSnapshot

__all__ = [
    "BUILTIN_PROJECTIONS",
    "activity",
    "aggregate_states",
    "compute_graph_digests",
    "decision_graph",
]


@frame_projection(
    "activity",
    key={"event_type": str, "hour": datetime},
    columns={"events": int, "payload_bytes": int, "first_position": int, "last_position": int},
    merge={
        "events": "sum",
        "payload_bytes": "sum",
        "first_position": "min",
        "last_position": "max",
    },
)
def activity(events: DataFrame) -> DataFrame:
    """Count events and payload bytes by tenant, type and hour of occurrence."""
    hour = f.date_trunc("hour", "occurred_at").alias("hour")
    return events.groupBy("tenant_id", "event_type", hour).agg(
        f.count("*").alias("events"),
        f.sum(f.octet_length("payload")).alias("payload_bytes"),
        f.min("position").alias("first_position"),
        f.max("position").alias("last_position"),
    )


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

    Example:
        with projector.model.snapshot() as snapshot:
            digests = compute_graph_digests(snapshot)
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


BUILTIN_PROJECTIONS: dict[str, Projection] = {
    projection.name: projection for projection in (activity, aggregate_states, decision_graph)
}

"""The read models that both sides build: the state of every order, and the decision graph."""

from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim import EventRecord, Table, frame_projection, projection
from seriatim.core.decision_graph import Edge, Node, Precedent, Trace, advance, graph_of
from seriatim.core.kinds import TRACE_KIND

ORDER_COLUMNS: dict[str, type] = {
    "customer": str,
    "status": str,
    "region": str,
    "amount_cents": int,
    "events": int,
}


def order_state(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Fold one event into what is known of its order."""
    said = event.data
    return {
        "customer": said["customer"],
        "status": event.event_type,
        "region": said["region"],
        "amount_cents": (state["amount_cents"] if state else 0) + said["amount_cents"],
        "events": (state["events"] if state else 0) + 1,
    }


ORDERS = projection("orders", key="stream_id", columns=ORDER_COLUMNS)(order_state)


@frame_projection(
    "regions",
    key={"event_type": str, "region": str},
    columns={"events": int, "amount_cents": int},
    merge={"events": "sum", "amount_cents": "sum"},
)
def regions(events: DataFrame) -> DataFrame:
    """Count events and money per type and region, from the payloads."""
    said = f.from_json("payload", "region string, amount_cents bigint")
    return (
        events.select("event_type", said.alias("said"))
        .groupBy("event_type", f.col("said.region").alias("region"))
        .agg(
            f.count(f.lit(1)).alias("events"),
            f.sum("said.amount_cents").alias("amount_cents"),
        )
    )


def _columns(struct: type[msgspec.Struct], key: str) -> dict[str, type]:
    return {
        name: int if name == "log_seq" else str for name in struct.__struct_fields__ if name != key
    }


@projection(
    "graph",
    key="stream_id",
    stream_types=[TRACE_KIND],
    state=Trace,
    tables=[
        Table("nodes", {"node_id": str}, _columns(Node, "node_id"), keep="first"),
        Table("edges", {"edge_id": str}, _columns(Edge, "edge_id"), keep="first"),
        Table("traces", {"trace_id": str}, {"state": str}),
        Table("precedents", {"source_event_id": str}, _columns(Precedent, "source_event_id")),
    ],
)
def graph(state: Trace | None, event: EventRecord) -> tuple[Trace, dict[str, list[dict[str, Any]]]]:
    """Fold one event of a trace into its part of the decision graph."""
    nodes, edges = graph_of(event)
    after = advance(state, event)
    finished = after.precedents if after.outcome is not None else ()
    asdict = msgspec.structs.asdict
    return after, {
        "nodes": [asdict(one) for one in nodes],
        "edges": [asdict(one) for one in edges],
        "traces": [{"trace_id": after.trace_id, "state": msgspec.json.encode(after).decode()}],
        "precedents": [asdict(one) for one in finished],
    }

"""The built-in folds without Spark: the decision graph and the states of aggregates."""

from typing import Any

import seriatim
from seriatim import NewEvent
from seriatim.core.builtin_folds import aggregate_states, decision_graph
from seriatim.core.decision_graph import Graph, Node
from seriatim.core.fold import Fold
from tests.unit.core.test_decision_graph import DEAL_DESK, approval, start_of


def test_approvers_of_actions_have_a_row() -> None:
    """T3: the nodes table has the approver of an action; the edges table has no edge to it."""
    graph = Graph()
    state: Any = None
    nodes: dict[str, Node] = {}
    edges: set[str] = set()
    apply = decision_graph.apply
    assert apply is not None
    with seriatim.open("memory:") as log:
        for envelope in (start_of(), approval(1, "action", "p"), approval(2, "action", "p")):
            log.traces.append_event(envelope)
        for record in log.read():
            graph.add(record)
            state, rows = apply(state, record)
            for row in rows["nodes"]:
                nodes.setdefault(row["node_id"], Node(**row))
            edges |= {row["edge_id"] for row in rows["edges"]}

    assert nodes["actor:person:p"].log_seq == 2
    assert nodes == graph.nodes
    assert edges == graph.edges.keys()


def test_tables_equal_the_graph_in_memory() -> None:
    """T3: the tables of the projection equal the graph in memory, with its precedents."""
    graph, fold = Graph(), Fold(decision_graph)
    with seriatim.open("memory:") as log:
        for envelope in DEAL_DESK["events"]:
            log.traces.append_event(envelope)
        for record in log.read():
            graph.add(record)
            fold.add(record.stream_id or "", record)

    assert fold.failures == []
    assert len(fold.rows["nodes"]) == len(graph.nodes)
    assert len(fold.rows["edges"]) == len(graph.edges)
    precedents = {row.row["source_event_id"] for row in fold.rows["precedents"].values() if row.row}
    assert precedents == {precedent.source_event_id for precedent in graph.precedents()}


def test_states_of_aggregates() -> None:
    """I1: payloads are merged, deletions are marked, and events of traces have no row."""
    fold = Fold(aggregate_states)
    with seriatim.open("memory:") as log:
        log.append([NewEvent("order.placed", {"total": 12, "seat": "1A"}, stream=("order", "7"))])
        log.append([NewEvent("order.changed", {"total": 13}, stream=("order", "7"))])
        log.append([NewEvent("order.removed", {}, stream=("order", "8"))])
        log.traces.append_event(start_of())
        for record in log.read():
            fold.add(aggregate_states.extract_key(record) or "", record)

    assert fold.failures == []
    rows = {row["aggregate_id"]: row for row in fold.states.values() if row is not None}
    assert rows.keys() == {"7", "8"}
    assert rows["7"]["data"] == '{"seat":"1A","total":13}'
    assert (rows["7"]["deleted"], rows["8"]["deleted"]) == (False, True)
    assert (rows["7"]["seq"], rows["7"]["last_event"]) == (2, "order.changed")

"""The shipped projection of traces equals the graph in memory, without Spark."""

from typing import Any

import seriatim
from seriatim.core.decision_graph import Graph, Node
from seriatim.pipeline.builtin_projections import decision_graph
from tests.unit.core.test_decision_graph import approval, start


def test_approvers_of_actions_have_a_row() -> None:
    """T3: the nodes table has the approver of an action; the edges table has no edge to it."""
    graph = Graph()
    state: Any = None
    nodes: dict[str, Node] = {}
    edges: set[str] = set()
    apply = decision_graph.apply
    assert apply is not None
    with seriatim.open("memory:") as log:
        for envelope in (start(), approval(1, "action", "p"), approval(2, "action", "p")):
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

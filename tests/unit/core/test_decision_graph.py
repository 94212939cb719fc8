"""The decision graph: its published digests, placeholders, unfinished traces and recipes."""

import json
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim.core.decision_graph import Graph

DEAL_DESK = json.loads((Path(__file__).parents[2] / "vectors" / "deal_desk.json").read_text())


def graph_of(events: list[dict[str, Any]]) -> Graph:
    """Append envelopes to an empty log and build their graph."""
    graph = Graph()
    with seriatim.open("memory:") as log:
        for envelope in events:
            log.traces.append_event(envelope)
        for record in log.read():
            graph.add(record)
    return graph


def event(number: int, event_type: str, trace_id: str = "t", **payload: object) -> dict[str, Any]:
    """Make an envelope."""
    given = DEAL_DESK["events"][0]
    return {
        **given,
        "event_id": f"{trace_id}-{number}",
        "trace_id": trace_id,
        "trace_seq": number,
        "event_type": event_type,
        "idempotency_key": f"{trace_id}/{number}",
        "payload": payload,
    }


def start_of(trace_id: str = "t", **entity: object) -> dict[str, Any]:
    """Make the start of a trace."""
    primary = {"entity_type": "deal", "entity_id": "d-1", **entity}
    return event(0, "TraceStarted", trace_id, workflow="w", title="Ä", primary_entity=primary)


def test_shipped_trace_has_the_published_digests() -> None:
    """T3: the example trace has its four published digests."""
    graph = graph_of(DEAL_DESK["events"])

    assert graph.digests("dg-v1") == DEAL_DESK["digests"]
    assert (len(graph.nodes), len(graph.edges), len(graph.traces)) == (10, 8, 1)
    assert len(list(graph.precedents())) == 2


def test_the_first_event_creates_a_node() -> None:
    """T3: a node keeps the data of the first event that names it."""
    graph = graph_of([start_of("a"), start_of("b")])

    assert graph.nodes["entity:deal:d-1"].trace_id == "a"
    assert {edge.trace_id for edge in graph.edges.values()} == {"a", "b"}


def test_edges_create_placeholder_nodes() -> None:
    """T3: an edge creates nodes for its ends; a cited trace has its own id as trace id."""
    approver = {"actor_type": "person", "actor_id": "p"}
    target = {"entity_type": "deal", "entity_id": "d-2"}
    graph = graph_of(
        [
            start_of(),
            event(1, "PrecedentCited", cited_trace_id="old", reason="alike"),
            event(
                2,
                "ApprovalRecorded",
                approval_id="a",
                subject={"subject_type": "exception", "subject_id": "x"},
                approver=approver,
                decision="approved",
            ),
            event(
                3,
                "ApprovalRecorded",
                approval_id="b",
                subject={"subject_type": "action", "subject_id": "y"},
                approver=approver | {"actor_id": "q"},
                decision="approved",
            ),
            event(
                4,
                "ActionProposed",
                action_id="y",
                action_type="discount",
                target_entity=target,
                target_system="crm",
                changes=[],
            ),
        ]
    )

    assert graph.nodes["trace:old"].trace_id == "old"
    assert graph.nodes["exception:x"].trace_id == "t"
    assert "actor:person:p" in graph.nodes
    assert graph.nodes["actor:person:q"].trace_id == "t"
    assert not any("actor:person:q" in edge for edge in graph.edges)
    edge = graph.edges["action_targets_entity:action:y:entity:deal:d-2:t-4"]
    assert (edge.from_node_id, edge.to_node_id) == ("action:y", "entity:deal:d-2")


def approval(number: int, subject_type: str, approver_id: str) -> dict[str, Any]:
    """Make an approval of an exception or an action."""
    return event(
        number,
        "ApprovalRecorded",
        approval_id=f"a-{number}",
        subject={"subject_type": subject_type, "subject_id": "s"},
        approver={"actor_type": "person", "actor_id": approver_id},
        decision="approved",
    )


def test_approvers_of_actions_have_a_node() -> None:
    """T3: every approval creates its approver's node; one of an exception also an edge."""
    before = graph_of([start_of()])
    graph = graph_of([start_of(), approval(1, "action", "p"), approval(2, "exception", "p")])

    node = graph.nodes["actor:person:p"]
    assert (node.node_type, node.trace_id, node.log_seq) == ("actor", "t", 2)
    added = graph.nodes.keys() - before.nodes.keys()
    assert added == {"actor:person:p", "exception:s"}
    edges = [graph.edges[name] for name in graph.edges.keys() - before.edges.keys()]
    assert [edge.edge_type for edge in edges] == ["exception_approved_by"]


@pytest.mark.parametrize(("recipe", "count", "last"), [("dg-v1", 1, 1), ("v2", 2, 2)])
def test_an_unfinished_trace(recipe: Any, count: int, last: int) -> None:
    """T3: an unfinished trace has no outcome and no precedents; `dg-v1` counts its start alone."""
    policy = {"policy_id": "p", "policy_version": "1"}
    graph = graph_of(
        [start_of(), event(1, "PolicyEvaluated", policy=policy, inputs=[], decision="deny")]
    )

    row = graph.traces["t"].summary(recipe)
    assert (row["event_count"], row["last_log_seq"]) == (count, last)
    assert (row["outcome"], row["finished_at"]) == (None, None)
    assert list(graph.precedents()) == []


def test_digest_recipes() -> None:
    """T3: `v2` counts all events of a trace and does not escape."""
    policy = {"policy_id": "p", "policy_version": "1"}
    graph = graph_of(
        [
            start_of(),
            event(1, "ExceptionRequested", exception_id="x", policy=policy, reason="r"),
            event(2, "TraceFinished", outcome="success"),
        ]
    )

    assert graph.traces["t"].summary("v2")["event_count"] == 3
    [precedent] = graph.precedents()
    assert (precedent.exception_id, precedent.primary_entity_system) == ("x", None)
    old, new = graph.digests("dg-v1"), graph.digests()
    assert old["graph"] == new["graph"]
    assert old["summary"] != new["summary"]
    assert old["precedent"] == new["precedent"]

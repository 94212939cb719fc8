"""The report of one trace: the text of its steps, states of nodes, and its tree."""

import json
from pathlib import Path
from typing import Any

import msgspec

import seriatim
from seriatim.core.decision_graph import Graph
from seriatim.core.event import EventRecord
from seriatim.core.trace_report import (
    EDGE_VERBS,
    TraceReport,
    TreeItem,
    build_report,
    build_tree,
    label_of,
)
from seriatim.profiles.trace_rules import TRACE_TYPES

DEAL_DESK = json.loads((Path(__file__).parents[2] / "vectors" / "deal_desk.json").read_text())
ENTITY = {"entity_type": "deal", "entity_id": "d-1"}
POLICY = {"policy_id": "cap", "policy_version": "2"}
ADA = {"actor_type": "person", "actor_id": "ada"}
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("TraceStarted", {"workflow": "discount", "title": "Ten percent", "primary_entity": ENTITY}),
    (
        "InputObserved",
        {
            "input_id": "i-1",
            "source": {"system": "crm", "object_type": "deal", "object_id": "7"},
            "facts": [],
        },
    ),
    ("EntityObserved", {"entity": ENTITY, "role": "related", "facts": []}),
    ("PolicyEvaluated", {"policy": POLICY, "inputs": [], "decision": "require_exception"}),
    ("ExceptionRequested", {"exception_id": "x", "policy": POLICY, "reason": "loyal"}),
    (
        "ApprovalRecorded",
        {
            "approval_id": "p-1",
            "subject": {"subject_type": "exception", "subject_id": "x"},
            "approver": ADA,
            "decision": "rejected",
        },
    ),
    ("PrecedentCited", {"cited_trace_id": "t", "reason": "itself"}),
    (
        "ActionProposed",
        {
            "action_id": "a",
            "action_type": "set_price",
            "target_entity": ENTITY,
            "target_system": "crm",
            "changes": [{"path": "price", "old_value": None, "new_value": "9"}],
        },
    ),
    (
        "ApprovalRecorded",
        {
            "approval_id": "p-2",
            "subject": {"subject_type": "action", "subject_id": "a"},
            "approver": ADA,
            "decision": "approved",
        },
    ),
    ("ActionCommitted", {"action_id": "a", "status": "partial"}),
    ("TraceFinished", {"outcome": "success"}),
]
TEXTS = [
    "Ten percent (discount), about deal d-1",
    "input i-1 from crm: deal 7, 0 facts",
    "related deal d-1, 0 facts",
    "policy cap 2: require_exception",
    "exception x from cap 2: loyal",
    "rejected exception x, by person ada",
    "trace t: itself",
    "action a: set_price on deal d-1 in crm, 1 change",
    "approved action a, by person ada",
    "action a: partial",
    "outcome success",
]


def records_of(steps: list[tuple[str, dict[str, Any]]]) -> list[EventRecord]:
    """Append the steps as one trace, and return its records."""
    given = DEAL_DESK["events"][0]
    with seriatim.open("memory:") as log:
        for number, (event_type, payload) in enumerate(steps):
            log.traces.append_event(
                given
                | {
                    "event_id": f"e-{number}",
                    "trace_id": "t",
                    "trace_seq": number,
                    "event_type": event_type,
                    "idempotency_key": f"k-{number}",
                    "payload": payload,
                }
            )
        return list(log.read())


def report_of(steps: list[tuple[str, dict[str, Any]]]) -> TraceReport:
    """Return the report of the steps as one trace."""
    return build_report("t", records_of(steps))


def shape_of(item: TreeItem) -> Any:
    """Return a tree as nested lists; a star marks a repeated node."""
    name = " ".join([*item.verbs, item.node_id]) + "*" * item.repeated
    return [name, *map(shape_of, item.children)] if item.children else name


def test_texts_of_steps() -> None:
    """T1: each type of event has its own text."""
    report = report_of(STEPS)

    assert [step.text for step in report.steps] == TEXTS
    assert [step.seq for step in report.steps] == list(range(len(STEPS)))
    assert {step.actor for step in report.steps} == {"agent dealdesk_agent_v1"}
    assert {step.event_type for step in report.steps} == set(TRACE_TYPES)


def test_a_step_without_an_actor() -> None:
    """T1: a step without an actor has an empty one."""
    [record] = records_of(STEPS[:1])
    [step] = build_report("t", [msgspec.structs.replace(record, actor_id=None)]).steps

    assert step.actor == ""


def test_states_of_nodes() -> None:
    """T3: the last event about a node determines its state."""
    half = report_of(STEPS[:5])

    assert report_of(STEPS).states == {
        "trace:t": "success",
        "entity:deal:d-1": "related",
        "policy:cap:2": "require_exception",
        "exception:x": "rejected",
        "actor:person:ada": "approver",
        "action:a": "partial",
    }
    assert half.states["trace:t"] == "open"
    assert half.states["exception:x"] == "requested"


def test_the_report_equals_the_decision_graph() -> None:
    """T3: the report has the nodes, edges and summary of the decision graph."""
    records = records_of(STEPS)
    graph = Graph()
    for record in records:
        graph.add(record)
    report = build_report("t", records)

    assert {node.node_id: node for node in report.nodes} == graph.nodes
    assert {edge.edge_id: edge for edge in report.edges} == graph.edges
    assert report.summary == graph.traces["t"]
    assert set(report.sources) == set(graph.nodes)
    assert report.sources["exception:x"] == "e-4"
    assert {edge.edge_type for edge in report.edges} == set(EDGE_VERBS)
    assert [label_of(node) for node in report.nodes][:2] == ["t", "deal:d-1"]


def test_the_tree_of_a_trace() -> None:
    """T3: the tree has each node below its origins and expands it once."""
    assert shape_of(build_tree(report_of(STEPS))) == [
        "trace:t",
        "involves entity:deal:d-1",
        "observed input:i-1",
        "evaluated policy:cap:2",
        ["requested exception:x", "decided by actor:person:ada"],
        "cited trace:t*",
        ["proposed committed action:a", "targets entity:deal:d-1*"],
        "actor:agent:dealdesk_agent_v1",
    ]


def test_the_report_of_a_partial_trace() -> None:
    """K4: a trace without its first event has no summary; known nodes are in the tree."""
    records = records_of(STEPS)
    report = build_report("t", [records[8], records[5], records[10]])

    assert report.summary is None
    assert report.states == {
        "action:a": "approved",
        "actor:person:ada": "approver",
        "exception:x": "rejected",
    }
    assert shape_of(build_tree(report)) == [
        "trace:t",
        ["exception:x", "decided by actor:person:ada"],
    ]

"""One decision trace for a reader: its steps in words, its graph, and the graph as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from seriatim.core.decision_graph import (
    Edge,
    Node,
    Trace,
    actor_node_id,
    apply_to_trace,
    build_graph,
    entity_node_id,
    policy_node_id,
)
from seriatim.core.event import EventRecord

# The relation that an edge states, as a verb between the labels of its nodes.
EDGE_VERBS = {
    "trace_involves_entity": "involves",
    "trace_observed_input": "observed",
    "trace_evaluated_policy": "evaluated",
    "trace_requested_exception": "requested",
    "trace_cited_precedent": "cited",
    "trace_proposed_action": "proposed",
    "trace_committed_action": "committed",
    "action_targets_entity": "targets",
    "exception_approved_by": "decided by",
}
_OPEN_STATE = "open"

_NodeStates = list[tuple[str, str]]


class TraceStep(msgspec.Struct, frozen=True):
    """An event of a trace, described in words."""

    position: int
    seq: int
    event_id: str
    event_type: str
    occurred_at: str
    actor: str
    text: str


class TraceReport(msgspec.Struct, frozen=True):
    """A trace: its summary, steps and decision graph.

    Attributes:
        trace_id: The trace.
        summary: Its state; None if its first event is not among the given ones.
        steps: Its events in order.
        nodes: The nodes of its graph, each with the first event that names it.
        edges: The edges of its graph.
        states: The last known state of nodes, in words, by node id.
        sources: The id of the event that created a node, by node id.
    """

    trace_id: str
    summary: Trace | None
    steps: tuple[TraceStep, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    states: dict[str, str]
    sources: dict[str, str]

    @property
    def root_id(self) -> str:
        """The node id of the trace itself."""
        return f"trace:{self.trace_id}"


class TreeItem(msgspec.Struct, frozen=True):
    """A node of the graph as part of a tree; a repeated node is not expanded again."""

    node_id: str
    verbs: tuple[str, ...]
    repeated: bool
    children: tuple[TreeItem, ...]


def build_report(trace_id: str, records: Iterable[EventRecord]) -> TraceReport:
    """Build the report of a trace from its events, in order; some may be left out."""
    summary: Trace | None = None
    steps: list[TraceStep] = []
    nodes: dict[str, Node] = {}
    edges: dict[str, Edge] = {}
    states: dict[str, str] = {}
    sources: dict[str, str] = {}
    for record in records:
        if summary is not None or record.event_type == "TraceStarted":
            summary = apply_to_trace(summary, record)
        steps.append(_make_step(record))
        event_nodes, event_edges = build_graph(record)
        for node in event_nodes:
            nodes.setdefault(node.node_id, node)
            sources.setdefault(node.node_id, record.event_id)
        edges |= {edge.edge_id: edge for edge in event_edges}
        states |= _DESCRIPTIONS[record.event_type][1](record.payload)
    if summary is not None:
        states[f"trace:{trace_id}"] = summary.outcome or _OPEN_STATE
    return TraceReport(
        trace_id,
        summary,
        tuple(steps),
        tuple(nodes.values()),
        tuple(edges.values()),
        states,
        sources,
    )


def label_of(node: Node) -> str:
    """Return the name of a node, without its type."""
    return node.node_id.partition(":")[2]


def build_tree(report: TraceReport) -> TreeItem:
    """Return the graph as a tree below the trace; nodes without an edge are its last children."""
    targets: dict[str, dict[str, list[str]]] = {}
    for edge in report.edges:
        verbs = targets.setdefault(edge.from_node_id, {}).setdefault(edge.to_node_id, [])
        verb = EDGE_VERBS[edge.edge_type]
        if verb not in verbs:
            verbs.append(verb)
    expanded: set[str] = set()

    def build_item(node_id: str, verbs: Iterable[str]) -> TreeItem:
        repeated = node_id in expanded
        expanded.add(node_id)
        targets_below = {} if repeated else targets.get(node_id, {})
        children = tuple(
            build_item(target, target_verbs) for target, target_verbs in targets_below.items()
        )
        return TreeItem(node_id, tuple(verbs), repeated, children)

    root = build_item(report.root_id, ())
    # Without the first event, an exception or action may be an origin that the trace never names.
    unreached = sorted(
        (node.node_id for node in report.nodes if node.node_id not in expanded),
        key=lambda node_id: node_id not in targets,
    )
    other_roots = tuple(build_item(node_id, ()) for node_id in unreached if node_id not in expanded)
    return msgspec.structs.replace(root, children=(*root.children, *other_roots))


def _make_step(record: EventRecord) -> TraceStep:
    return TraceStep(
        record.position,
        record.stream_seq or 0,
        record.event_id,
        record.event_type,
        record.occurred_at,
        f"{record.actor_type} {record.actor_id}" if record.actor_id else "",
        _DESCRIPTIONS[record.event_type][0](record.payload),
    )


def _format_entity(reference: dict[str, Any]) -> str:
    return f"{reference['entity_type']} {reference['entity_id']}"


def _format_policy(payload: dict[str, Any]) -> str:
    return "{policy_id} {policy_version}".format(**payload["policy"])


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe_input(payload: dict[str, Any]) -> str:
    source = "{system}: {object_type} {object_id}".format(**payload["source"])
    return (
        f"input {payload['input_id']} from {source}, {_format_count(len(payload['facts']), 'fact')}"
    )


def _describe_approval(payload: dict[str, Any]) -> str:
    subject = "{subject_type} {subject_id}".format(**payload["subject"])
    approver = "{actor_type} {actor_id}".format(**payload["approver"])
    return f"{payload['decision']} {subject}, by {approver}"


def _find_approval_states(payload: dict[str, Any]) -> _NodeStates:
    subject = "{subject_type}:{subject_id}".format(**payload["subject"])
    approver = payload["approver"]
    return [
        (subject, payload["decision"]),
        (actor_node_id(approver["actor_type"], approver["actor_id"]), "approver"),
    ]


def _describe_proposal(payload: dict[str, Any]) -> str:
    changes = _format_count(len(payload["changes"]), "change")
    target = f"{_format_entity(payload['target_entity'])} in {payload['target_system']}"
    return f"action {payload['action_id']}: {payload['action_type']} on {target}, {changes}"


# For each event type: its description, and the states of nodes that it sets.
_DESCRIPTIONS: dict[
    str, tuple[Callable[[dict[str, Any]], str], Callable[[dict[str, Any]], _NodeStates]]
] = {
    "TraceStarted": (
        lambda payload: (
            f"{payload['title']} ({payload['workflow']}), about "
            f"{_format_entity(payload['primary_entity'])}"
        ),
        lambda payload: [(entity_node_id(payload["primary_entity"]), "primary")],
    ),
    "InputObserved": (_describe_input, lambda _: []),
    "EntityObserved": (
        lambda payload: (
            f"{payload['role']} {_format_entity(payload['entity'])}, "
            f"{_format_count(len(payload['facts']), 'fact')}"
        ),
        lambda payload: [(entity_node_id(payload["entity"]), payload["role"])],
    ),
    "PolicyEvaluated": (
        lambda payload: f"policy {_format_policy(payload)}: {payload['decision']}",
        lambda payload: [(policy_node_id(payload["policy"]), payload["decision"])],
    ),
    "ExceptionRequested": (
        lambda payload: (
            f"exception {payload['exception_id']} from {_format_policy(payload)}: "
            f"{payload['reason']}"
        ),
        lambda payload: [(f"exception:{payload['exception_id']}", "requested")],
    ),
    "ApprovalRecorded": (_describe_approval, _find_approval_states),
    "PrecedentCited": (
        lambda payload: f"trace {payload['cited_trace_id']}: {payload['reason']}",
        lambda payload: [(f"trace:{payload['cited_trace_id']}", "precedent")],
    ),
    "ActionProposed": (
        _describe_proposal,
        lambda payload: [(f"action:{payload['action_id']}", "proposed")],
    ),
    "ActionCommitted": (
        lambda payload: f"action {payload['action_id']}: {payload['status']}",
        lambda payload: [(f"action:{payload['action_id']}", payload["status"])],
    ),
    "TraceFinished": (lambda payload: f"outcome {payload['outcome']}", lambda _: []),
}

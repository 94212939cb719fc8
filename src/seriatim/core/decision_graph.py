"""The decision graph of traces: nodes, edges, summaries, precedents and their digests (T3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.event import EventRecord

TRACE_STREAM_TYPE = "trace"  # one stream per trace
Recipe = Literal["dg-v1", "v2"]

_EdgeEnds = tuple[str, str | None, str]


class Node(msgspec.Struct, frozen=True):
    """An entity, policy, actor or other object of a trace, created by the first event naming it."""

    node_id: str
    node_type: str
    trace_id: str
    log_seq: int
    created_at: str


class Edge(msgspec.Struct, frozen=True):
    """A relation between two nodes that an event states."""

    edge_id: str
    edge_type: str
    from_node_id: str
    to_node_id: str
    trace_id: str
    log_seq: int
    created_at: str


class Precedent(msgspec.Struct, frozen=True):
    """A policy decision or an exception of a finished trace, which later traces can cite."""

    source_event_id: str
    log_seq: int
    trace_id: str
    policy_id: str
    policy_version: str
    exception_id: str | None
    primary_entity_type: str
    primary_entity_system: str | None
    primary_entity_id: str


class Trace(msgspec.Struct, frozen=True):
    """The state of one trace; its precedents count once it has finished."""

    trace_id: str
    workflow: str
    title: str
    primary_entity_type: str
    primary_entity_system: str | None
    primary_entity_id: str
    started_at: str
    started_seq: int
    event_count: int
    last_log_seq: int
    outcome: str | None = None
    finished_at: str | None = None
    precedents: tuple[Precedent, ...] = ()

    def summary(self, recipe: Recipe) -> dict[str, Any]:
        """Return the summary row of the trace; `dg-v1` counts only its first and last event."""
        count, last = self.event_count, self.last_log_seq
        if recipe == "dg-v1":
            finished = self.outcome is not None
            count, last = (2, last) if finished else (1, self.started_seq)
        return {
            "trace_id": self.trace_id,
            "workflow": self.workflow,
            "title": self.title,
            "primary_entity_type": self.primary_entity_type,
            "primary_entity_id": self.primary_entity_id,
            "outcome": self.outcome,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "event_count": count,
            "last_log_seq": last,
        }


def entity_node_id(reference: dict[str, Any]) -> str:
    """Return the node id of an entity."""
    return f"entity:{reference['entity_type']}:{reference['entity_id']}"


def policy_node_id(reference: dict[str, Any]) -> str:
    """Return the node id of one version of a policy."""
    return f"policy:{reference['policy_id']}:{reference['policy_version']}"


def actor_node_id(actor_type: str | None, actor_id: str | None) -> str:
    """Return the node id of an actor."""
    return f"actor:{actor_type}:{actor_id}"


def _approval_edges(payload: dict[str, Any]) -> list[_EdgeEnds]:
    subject = payload["subject"]
    if subject["subject_type"] != "exception":
        return []
    return [
        ("exception_approved_by", f"exception:{subject['subject_id']}", _approver_node_id(payload))
    ]


def _approver_node_id(payload: dict[str, Any]) -> str:
    return actor_node_id(payload["approver"]["actor_type"], payload["approver"]["actor_id"])


def _proposal_edges(payload: dict[str, Any]) -> list[_EdgeEnds]:
    action = f"action:{payload['action_id']}"
    return [
        ("trace_proposed_action", None, action),
        ("action_targets_entity", action, entity_node_id(payload["target_entity"])),
    ]


# The edges of each event type: edge type, origin node (None for the trace) and target node.
_EDGES: dict[str, Callable[[dict[str, Any]], list[_EdgeEnds]]] = {
    "TraceStarted": lambda payload: [
        ("trace_involves_entity", None, entity_node_id(payload["primary_entity"])),
    ],
    "EntityObserved": lambda payload: [
        ("trace_involves_entity", None, entity_node_id(payload["entity"]))
    ],
    "InputObserved": lambda payload: [
        ("trace_observed_input", None, f"input:{payload['input_id']}")
    ],
    "PolicyEvaluated": lambda payload: [
        ("trace_evaluated_policy", None, policy_node_id(payload["policy"]))
    ],
    "ExceptionRequested": lambda payload: [
        ("trace_requested_exception", None, f"exception:{payload['exception_id']}"),
    ],
    "PrecedentCited": lambda payload: [
        ("trace_cited_precedent", None, f"trace:{payload['cited_trace_id']}"),
    ],
    "ActionProposed": _proposal_edges,
    "ActionCommitted": lambda payload: [
        ("trace_committed_action", None, f"action:{payload['action_id']}"),
    ],
    "ApprovalRecorded": _approval_edges,
    "TraceFinished": lambda _: [],
}


def build_graph(record: EventRecord) -> tuple[list[Node], list[Edge]]:
    """Return the nodes and edges of one event; a node that exists already is not replaced."""
    trace_id = _get_trace_id(record)
    payload = record.payload
    ends = [
        (edge_type, origin or f"trace:{trace_id}", target)
        for edge_type, origin, target in _EDGES[record.event_type](payload)
    ]
    names = [name for _, origin, target in ends for name in (origin, target)]
    if record.event_type == "TraceStarted":
        names.append(actor_node_id(record.actor_type, record.actor_id))
    elif record.event_type == "ApprovalRecorded":
        # The approver of an action is a node too, although no edge leads to it.
        names.append(_approver_node_id(payload))
    nodes = [_make_node(name, trace_id, record) for name in dict.fromkeys(names)]
    return nodes, [_make_edge(*end, trace_id, record) for end in ends]


def _get_trace_id(record: EventRecord) -> str:
    assert record.stream_id is not None  # noqa: S101 - for the type checker: every trace is a stream
    return record.stream_id


def _make_node(node_id: str, trace_id: str, record: EventRecord) -> Node:
    node_type, _, name = node_id.partition(":")
    # A cited trace belongs to itself, not to the trace that cites it.
    owner = name if node_type == "trace" else trace_id
    return Node(node_id, node_type, owner, record.position, record.occurred_at)


def _make_edge(
    edge_type: str, origin: str, target: str, trace_id: str, record: EventRecord
) -> Edge:
    edge_id = f"{edge_type}:{origin}:{target}:{record.event_id}"
    return Edge(edge_id, edge_type, origin, target, trace_id, record.position, record.occurred_at)


def apply_to_trace(state: Trace | None, record: EventRecord) -> Trace:
    """Return the state of a trace after an event; `state` is None for its first event."""
    payload = record.payload
    if state is None:
        primary = payload["primary_entity"]
        return Trace(
            trace_id=_get_trace_id(record),
            workflow=payload["workflow"],
            title=payload["title"],
            primary_entity_type=primary["entity_type"],
            primary_entity_system=primary.get("system"),
            primary_entity_id=primary["entity_id"],
            started_at=record.occurred_at,
            started_seq=record.position,
            event_count=1,
            last_log_seq=record.position,
        )
    changes: dict[str, Any] = {
        "event_count": state.event_count + 1,
        "last_log_seq": record.position,
    }
    if record.event_type in ("PolicyEvaluated", "ExceptionRequested"):
        changes["precedents"] = (*state.precedents, _make_precedent(state, record, payload))
    elif record.event_type == "TraceFinished":
        changes |= {"outcome": payload["outcome"], "finished_at": record.occurred_at}
    return msgspec.structs.replace(state, **changes)


def _make_precedent(state: Trace, record: EventRecord, payload: dict[str, Any]) -> Precedent:
    return Precedent(
        record.event_id,
        record.position,
        state.trace_id,
        payload["policy"]["policy_id"],
        payload["policy"]["policy_version"],
        payload.get("exception_id"),
        state.primary_entity_type,
        state.primary_entity_system,
        state.primary_entity_id,
    )


class Graph:
    """The whole read model in memory, the reference for every other implementation."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[str, Edge] = {}
        self.traces: dict[str, Trace] = {}

    def add(self, record: EventRecord) -> None:
        """Add the next event of the log."""
        nodes, edges = build_graph(record)
        for node in nodes:
            self.nodes.setdefault(node.node_id, node)
        for edge in edges:
            self.edges.setdefault(edge.edge_id, edge)
        trace_id = _get_trace_id(record)
        self.traces[trace_id] = apply_to_trace(self.traces.get(trace_id), record)

    def precedents(self) -> Iterator[Precedent]:
        """Yield the precedents of finished traces."""
        for trace in self.traces.values():
            if trace.outcome is not None:
                yield from trace.precedents

    def digests(self, recipe: Recipe = "v2") -> dict[str, str]:
        """Return the digests of the graph, summary and precedents, and their combination."""
        return digests(
            self.nodes.values(),
            self.edges.values(),
            self.traces.values(),
            self.precedents(),
            recipe,
        )


def digests(
    nodes: Iterable[Node],
    edges: Iterable[Edge],
    traces: Iterable[Trace],
    precedents: Iterable[Precedent],
    recipe: Recipe,
) -> dict[str, str]:
    """Return the digests of the graph, summary and precedents, and their combination.

    Recipe `dg-v1` escapes non-ASCII characters, `v2` does not.
    """
    graph = {
        "nodes": _make_sorted_rows(nodes, "node_id", attrs=True),
        "edges": _make_sorted_rows(edges, "edge_id", attrs=True),
    }
    summary = sorted((trace.summary(recipe) for trace in traces), key=lambda row: row["trace_id"])
    parts = {
        "graph": _compute_digest(graph, recipe),
        "summary": _compute_digest(summary, recipe),
        "precedent": _compute_digest(_make_sorted_rows(precedents, "source_event_id"), recipe),
    }
    combined = "{graph}:{summary}:{precedent}".format(**parts)
    return {**parts, "full": HASH_PREFIX + sha256(combined.encode()).hexdigest()}


def _make_sorted_rows(
    structs: Iterable[Any], key: str, *, attrs: bool = False
) -> list[dict[str, Any]]:
    # Both recipes hash an empty `attrs` in every node and edge, so it cannot be left out.
    rows = [msgspec.structs.asdict(struct) | ({"attrs": {}} if attrs else {}) for struct in structs]
    return sorted(rows, key=lambda row: str(row[key]))


def _compute_digest(value: Any, recipe: Recipe) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=recipe == "dg-v1")
    return HASH_PREFIX + sha256(text.encode()).hexdigest()

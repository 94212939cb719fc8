"""The decision graph of traces: nodes, edges, summaries, precedents, and their digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.event import EventRecord

Recipe = Literal["dg-v1", "v2"]

_End = tuple[str, str | None, str]


class Node(msgspec.Struct, frozen=True):
    """Something a trace speaks of; the first event that names it makes it."""

    node_id: str
    node_type: str
    trace_id: str
    log_seq: int
    created_at: str


class Edge(msgspec.Struct, frozen=True):
    """What an event says of two nodes."""

    edge_id: str
    edge_type: str
    from_node_id: str
    to_node_id: str
    trace_id: str
    log_seq: int
    created_at: str


class Precedent(msgspec.Struct, frozen=True):
    """A policy decision or an exception of a finished trace, to be found by later ones."""

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
    """What is known of one trace so far; its precedents count when it has finished."""

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
        """Return the trace's row; `dg-v1` counts the start and the end of a trace alone."""
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


def entity(named: dict[str, Any]) -> str:
    """Return the node id of an entity."""
    return f"entity:{named['entity_type']}:{named['entity_id']}"


def policy(named: dict[str, Any]) -> str:
    """Return the node id of a policy in one version."""
    return f"policy:{named['policy_id']}:{named['policy_version']}"


def actor(actor_type: str | None, actor_id: str | None) -> str:
    """Return the node id of an actor."""
    return f"actor:{actor_type}:{actor_id}"


def _approval(said: dict[str, Any]) -> list[_End]:
    subject = said["subject"]
    if subject["subject_type"] != "exception":
        return []
    return [("exception_approved_by", f"exception:{subject['subject_id']}", _approver(said))]


def _approver(said: dict[str, Any]) -> str:
    return actor(said["approver"]["actor_type"], said["approver"]["actor_id"])


def _proposal(said: dict[str, Any]) -> list[_End]:
    action = f"action:{said['action_id']}"
    return [
        ("trace_proposed_action", None, action),
        ("action_targets_entity", action, entity(said["target_entity"])),
    ]


# What each type of event says: type, origin (None: the trace) and goal of its edges.
_SAYS: dict[str, Callable[[dict[str, Any]], list[_End]]] = {
    "TraceStarted": lambda said: [
        ("trace_involves_entity", None, entity(said["primary_entity"])),
    ],
    "EntityObserved": lambda said: [("trace_involves_entity", None, entity(said["entity"]))],
    "InputObserved": lambda said: [("trace_observed_input", None, f"input:{said['input_id']}")],
    "PolicyEvaluated": lambda said: [("trace_evaluated_policy", None, policy(said["policy"]))],
    "ExceptionRequested": lambda said: [
        ("trace_requested_exception", None, f"exception:{said['exception_id']}"),
    ],
    "PrecedentCited": lambda said: [
        ("trace_cited_precedent", None, f"trace:{said['cited_trace_id']}"),
    ],
    "ActionProposed": _proposal,
    "ActionCommitted": lambda said: [
        ("trace_committed_action", None, f"action:{said['action_id']}"),
    ],
    "ApprovalRecorded": _approval,
    "TraceFinished": lambda _: [],
}


def graph_of(record: EventRecord) -> tuple[list[Node], list[Edge]]:
    """Return what one event adds to the graph, were nothing there: the first naming wins."""
    trace_id = _trace_of(record)
    payload = record.data
    said = _SAYS[record.event_type](payload)
    ends = [(kind, origin or f"trace:{trace_id}", goal) for kind, origin, goal in said]
    names = [name for _, origin, goal in ends for name in (origin, goal)]
    if record.event_type == "TraceStarted":
        names.append(actor(record.actor_type, record.actor_id))
    elif record.event_type == "ApprovalRecorded":
        names.append(_approver(payload))  # of an action too, to which no edge leads
    nodes = [_node(name, trace_id, record) for name in dict.fromkeys(names)]
    return nodes, [_edge(*end, trace_id, record) for end in ends]


def _trace_of(record: EventRecord) -> str:
    assert record.stream_id is not None  # noqa: S101 - a trace is a stream; for the type checker
    return record.stream_id


def _node(node_id: str, trace_id: str, record: EventRecord) -> Node:
    node_type, _, rest = node_id.partition(":")
    owner = rest if node_type == "trace" else trace_id
    return Node(node_id, node_type, owner, record.position, record.occurred_at)


def _edge(kind: str, origin: str, goal: str, trace_id: str, record: EventRecord) -> Edge:
    edge_id = f"{kind}:{origin}:{goal}:{record.event_id}"
    return Edge(edge_id, kind, origin, goal, trace_id, record.position, record.occurred_at)


def advance(state: Trace | None, record: EventRecord) -> Trace:
    """Fold one event into what is known of its trace, which begins with its start."""
    said = record.data
    if state is None:
        primary = said["primary_entity"]
        return Trace(
            trace_id=_trace_of(record),
            workflow=said["workflow"],
            title=said["title"],
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
        changes["precedents"] = (*state.precedents, _precedent(state, record, said))
    elif record.event_type == "TraceFinished":
        changes |= {"outcome": said["outcome"], "finished_at": record.occurred_at}
    return msgspec.structs.replace(state, **changes)


def _precedent(state: Trace, record: EventRecord, said: dict[str, Any]) -> Precedent:
    return Precedent(
        record.event_id,
        record.position,
        state.trace_id,
        said["policy"]["policy_id"],
        said["policy"]["policy_version"],
        said.get("exception_id"),
        state.primary_entity_type,
        state.primary_entity_system,
        state.primary_entity_id,
    )


class Graph:
    """The whole read model in memory: what every other way to make it is compared with."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[str, Edge] = {}
        self.traces: dict[str, Trace] = {}

    def add(self, record: EventRecord) -> None:
        """Take in the next event of the log."""
        nodes, edges = graph_of(record)
        for node in nodes:
            self.nodes.setdefault(node.node_id, node)
        for edge in edges:
            self.edges.setdefault(edge.edge_id, edge)
        trace_id = _trace_of(record)
        self.traces[trace_id] = advance(self.traces.get(trace_id), record)

    def precedents(self) -> Iterator[Precedent]:
        """Yield the precedents of finished traces."""
        for trace in self.traces.values():
            if trace.outcome is not None:
                yield from trace.precedents

    def digests(self, recipe: Recipe = "v2") -> dict[str, str]:
        """Return the four digests."""
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
    """Return the digests of graph, summary and precedents, and the one over all three."""
    graph = {
        "nodes": _rows(nodes, "node_id", attrs=True),
        "edges": _rows(edges, "edge_id", attrs=True),
    }
    summary = sorted((one.summary(recipe) for one in traces), key=lambda row: row["trace_id"])
    parts = {
        "graph": _digest(graph, recipe),
        "summary": _digest(summary, recipe),
        "precedent": _digest(_rows(precedents, "source_event_id"), recipe),
    }
    whole = "{graph}:{summary}:{precedent}".format(**parts)
    return {**parts, "full": HASH_PREFIX + sha256(whole.encode()).hexdigest()}


def _rows(structs: Iterable[Any], key: str, *, attrs: bool = False) -> list[dict[str, Any]]:
    rows = [msgspec.structs.asdict(one) | ({"attrs": {}} if attrs else {}) for one in structs]
    return sorted(rows, key=lambda row: str(row[key]))


def _digest(value: Any, recipe: Recipe) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=recipe == "dg-v1")
    return HASH_PREFIX + sha256(text.encode()).hexdigest()

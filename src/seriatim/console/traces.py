"""Decision traces: the list, and the timeline and graph of one trace."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.console.actions import parse_count
from seriatim.console.graph_layout import EDGES_MAX, NODES_MAX, GraphLayout, lay_out
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.errors import Forbidden, InvalidArgument, NotFound
from seriatim.core.event import EventRecord
from seriatim.core.trace_report import EDGE_VERBS, TraceReport, build_report, label_of

OUTCOMES = ("open", "success", "failure", "abandoned")
_ROWS = 50
_SCAN_TRACES = 100  # traces of one read; as many streams as a request for last events may name
_READS_MAX = 5  # of one page of the list, if few traces match
_EVENTS_MAX = 1000  # of one trace
_EVENT_READS_MAX = 3  # responses of one trace, each bounded in bytes
_PART_ROWS = 100  # rows of the timeline and of the table


class ListedTrace(msgspec.Struct, frozen=True):
    """A row of the list; `outcome` is empty if the caller may not see how a trace ended."""

    trace_id: str
    title: str
    workflow: str
    entity: str
    outcome: str
    started_at: str
    last_at: str
    position: int


async def show_traces(page: ConsolePage) -> ConsoleResponse:
    """List traces, newest first, with filters by workflow, outcome and text."""
    until = _parse_position(page, "until")
    rows: list[ListedTrace] = []
    next_until = None
    for _ in range(_READS_MAX):
        response = await page.get(
            "/v1/events",
            types=["TraceStarted"],
            scope="traces",
            newest_first=True,
            until=until,
            limit=_SCAN_TRACES,
        )
        next_until = _fill_rows(page, rows, await _list_traces(page, response["records"]))
        if next_until is not None or not response["records"]:
            break
        until = next_until = response["last_scanned"] - 1
        if until < 1:
            next_until = None
            break
    return await page.render("traces.html", traces=rows, outcomes=OUTCOMES, next_until=next_until)


def _fill_rows(
    page: ConsolePage, rows: list[ListedTrace], candidates: list[ListedTrace]
) -> int | None:
    """Add matching traces; return the position at which to continue if the page is full."""
    for trace in candidates:
        if len(rows) == _ROWS:
            return trace.position
        if _matches(page, trace):
            rows.append(trace)
    return None


def _parse_position(page: ConsolePage, name: str) -> int | None:
    text = page.params.get(name, "")
    return parse_count(text, name) if text else None


async def _list_traces(page: ConsolePage, started: list[dict[str, Any]]) -> list[ListedTrace]:
    """Join the first events of traces with their last ones."""
    if not started:
        return []
    streams = [[TRACE_STREAM_TYPE, event["stream_id"]] for event in started]
    last_events: list[dict[str, Any] | None]
    try:
        last_events = (await page.post("/v1/streams/last", {"streams": streams}))["records"]
    except Forbidden:  # a token for some event types may not see how a trace ended
        last_events = [None] * len(streams)
    return [_list_trace(*pair) for pair in zip(started, last_events, strict=True)]


def _list_trace(first: dict[str, Any], last: dict[str, Any] | None) -> ListedTrace:
    payload = first["payload"]
    outcome = ""
    if last is not None:
        finished = last["event_type"] == "TraceFinished"
        outcome = last["payload"]["outcome"] if finished else "open"
    return ListedTrace(
        first["stream_id"],
        payload["title"],
        payload["workflow"],
        "{entity_type} {entity_id}".format(**payload["primary_entity"]),
        outcome,
        first["occurred_at"],
        "" if last is None else last["occurred_at"],
        first["position"],
    )


def _matches(page: ConsolePage, trace: ListedTrace) -> bool:
    param = page.params.get
    text = param("text", "").casefold()
    return (
        param("workflow", "") in ("", trace.workflow)
        and param("outcome", "") in ("", trace.outcome)
        and any(text in part.casefold() for part in (trace.title, trace.entity, trace.trace_id))
    )


# -- one trace


class DrawnNode(msgspec.Struct, frozen=True):
    """A node of the graph for the drawing and the table."""

    node_id: str
    kind: str
    label: str
    state: str
    address: str
    relations: tuple[tuple[str, str], ...]  # verb and label of each origin


class Drawing(msgspec.Struct, frozen=True):
    """The report of a trace with its drawing; `left_out` nodes did not fit."""

    report: TraceReport
    nodes: dict[str, DrawnNode]
    layout: GraphLayout
    verbs: dict[tuple[str, str], str]
    left_out: int


async def show_trace(page: ConsolePage) -> ConsoleResponse:
    """Show a trace as a timeline and as a drawing of its decision graph."""
    trace_id = page.params.get("id", "")
    if not trace_id:
        raise InvalidArgument("name a trace", details={"argument": "id"})
    events, complete = await _read_trace(page, trace_id)
    if not events:
        raise NotFound("there is no such trace, or this token may not read it")
    tenant_id = page.request.tenant_id
    # In a thread of the tenant: the layout of 500 nodes would delay other requests.
    drawing = await page.app.service.run_for_tenant(
        tenant_id, lambda: _draw(page, trace_id, events)
    )
    step_at = _parse_position(page, "step") or 0
    node_at = _parse_position(page, "node") or 0
    return await page.render(
        "trace.html",
        drawing=drawing,
        report=drawing.report,
        complete=complete,
        steps=drawing.report.steps[step_at : step_at + _PART_ROWS],
        rows=list(drawing.nodes.values())[node_at : node_at + _PART_ROWS],
        step_at=step_at,
        node_at=node_at,
        part=_PART_ROWS,
    )


async def _read_trace(page: ConsolePage, trace_id: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the first events of a trace, and whether these are all."""
    events: list[dict[str, Any]] = []
    since = None
    for _ in range(_EVENT_READS_MAX):
        response = await page.get(
            "/v1/events",
            stream_type=TRACE_STREAM_TYPE,
            stream_id=trace_id,
            since_seq=since,
            limit=_EVENTS_MAX - len(events),
        )
        events += response["records"]
        if not response["records"] or events[-1]["event_type"] == "TraceFinished":
            return events, True
        if len(events) == _EVENTS_MAX:
            break
        since = events[-1]["stream_seq"]
    return events, False


def _draw(page: ConsolePage, trace_id: str, events: list[dict[str, Any]]) -> Drawing:
    report = build_report(trace_id, map(_to_record, events))
    verbs: dict[tuple[str, str], list[str]] = {}
    for edge in report.edges:
        edge_verbs = verbs.setdefault((edge.from_node_id, edge.to_node_id), [])
        if EDGE_VERBS[edge.edge_type] not in edge_verbs:
            edge_verbs.append(EDGE_VERBS[edge.edge_type])
    names = {node.node_id: f"{node.node_type} {label_of(node)}" for node in report.nodes}
    relations: dict[str, list[tuple[str, str]]] = {}
    for (origin, target), edge_verbs in verbs.items():
        relations.setdefault(target, []).append((", ".join(edge_verbs), names[origin]))
    nodes = {
        node.node_id: DrawnNode(
            node.node_id,
            node.node_type,
            label_of(node),
            report.states.get(node.node_id, ""),
            _find_address(page, report, node.node_id),
            tuple(relations.get(node.node_id, ())),
        )
        for node in report.nodes
    }
    drawn_ids = list(nodes)[:NODES_MAX]
    visible = set(drawn_ids)
    pairs = [pair for pair in verbs if visible.issuperset(pair)][:EDGES_MAX]
    return Drawing(
        report,
        nodes,
        lay_out(drawn_ids, pairs),
        {pair: ", ".join(edge_verbs) for pair, edge_verbs in verbs.items()},
        len(nodes) - len(drawn_ids),
    )


def _find_address(page: ConsolePage, report: TraceReport, node_id: str) -> str:
    """Return the address of a cited trace, or of the event that first named a node."""
    kind, _, name = node_id.partition(":")
    if kind == "trace" and node_id != report.root_id:
        return page.url("/trace", id=name)
    return page.url("/event", id=report.sources[node_id])


def _to_record(event: dict[str, Any]) -> EventRecord:
    payload = msgspec.json.encode(event["payload"]).decode()
    return msgspec.convert(event | {"payload": payload}, EventRecord)


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/traces", show=show_traces, title="Traces"),
    PageRoute(method="GET", path="/trace", show=show_trace),
)

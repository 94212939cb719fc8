"""Decision traces: the list, and the timeline and graph of one trace."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from seriatim.console.actions import parse_count
from seriatim.console.graph_layout import EDGES_MAX, NODES_MAX, Box, lay_out
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.renderer import format_seconds, shorten
from seriatim.core.decision_graph import TRACE_STREAM_TYPE, Node
from seriatim.core.errors import Forbidden, InvalidArgument, NotFound
from seriatim.core.event import EventRecord
from seriatim.core.limits import KIB
from seriatim.core.trace_report import (
    EDGE_VERBS,
    TraceReport,
    TraceStep,
    build_report,
    label_of,
)
from seriatim.wire.messages import PageResponse
from seriatim.wire.records import WireRecord, from_wire_records

OUTCOMES = ("open", "success", "failure", "abandoned")
_ROWS = 50
_SCAN_TRACES = 100  # traces of one read; as many streams as a request for last events may name
_READS_MAX = 5  # of one page of the list, if few traces match
_EVENTS_MAX = 1000  # of one trace
_EVENT_READS_MAX = 3  # responses of one trace, each bounded in bytes
_PART_ROWS = 100  # rows of the timeline and of the table
_RELATIONS_MAX = 20  # of one node in the table
_DRAWING_WEIGHT = 4  # bytes of memory for each byte of the events

# Tenant of the caller, tenant, trace, digest and size of its events.
_Key = tuple[str, str, str, str, tuple[bytes, int]]

_decode_page = msgspec.json.Decoder(PageResponse).decode


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

# The rows of these are unpacked by the template in the order of their fields.


class StepRow(NamedTuple):
    """An event of the timeline."""

    address: str
    seq: int
    occurred_at: str
    time: str
    event_type: str
    text: str
    actor: str


class NodeRow(NamedTuple):
    """A node in the table, with the verb and the label of each of its origins."""

    kind: str
    address: str
    label: str
    state: str
    relations: list[tuple[str, str]]
    left_out: int


class DrawnBox(NamedTuple):
    """A node of the drawing."""

    address: str
    title: str
    kind: str
    x: int
    y: int
    caption: str
    label: str


class DrawnCurve(NamedTuple):
    """A relation of the drawing."""

    line: str
    arrow: str
    x: int
    y: int
    verb: str


class Drawing(msgspec.Struct, frozen=True):
    """The report of a trace with its rows and drawing; `left_out` nodes did not fit."""

    report: TraceReport
    steps: list[StepRow]
    rows: list[NodeRow]
    width: int
    height: int
    boxes: list[DrawnBox]
    curves: list[DrawnCurve]
    left_out: int


async def show_trace(page: ConsolePage) -> ConsoleResponse:
    """Show a trace as a timeline and as a drawing of its decision graph."""
    trace_id = page.params.get("id", "")
    if not trace_id:
        raise InvalidArgument("name a trace", details={"argument": "id"})
    records, digest, complete = await _read_trace(page, trace_id)
    if not records:
        raise NotFound("there is no such trace, or this token may not read it")
    # The form of its addresses depends on the caller.
    key = "trace", page.caller.tenant_id, page.request.tenant_id, trace_id, digest
    drawing = await _find_drawing(page, key, records)
    body = await _find_body(page, key, drawing)
    return await page.render("trace.html", report=drawing.report, complete=complete, body=body)


async def _find_body(page: ConsolePage, key: _Key, drawing: Drawing) -> Markup:
    """Return the rendered drawing and tables, from the rows that the address names."""
    step_at = _parse_position(page, "step") or 0
    node_at = _parse_position(page, "node") or 0
    body: Markup | None = page.cache.get((*key, step_at, node_at))
    if body is None:
        body = await page.render_part(
            "trace_body.html",
            drawing=drawing,
            report=drawing.report,
            steps=drawing.steps[step_at : step_at + _PART_ROWS],
            rows=drawing.rows[node_at : node_at + _PART_ROWS],
            step_at=step_at,
            node_at=node_at,
            part=_PART_ROWS,
        )
        page.cache.put((*key, step_at, node_at), body, len(body))
    return body


async def _read_trace(
    page: ConsolePage, trace_id: str
) -> tuple[list[WireRecord], tuple[bytes, int], bool]:
    """Return the first events of a trace, their digest and size, and whether these are all."""
    records: list[WireRecord] = []
    digest, size, since = sha256(), 0, None
    for _ in range(_EVENT_READS_MAX):
        body = await page.get_body(
            "/v1/events",
            stream_type=TRACE_STREAM_TYPE,
            stream_id=trace_id,
            since_seq=since,
            limit=_EVENTS_MAX - len(records),
        )
        digest.update(body)
        size += len(body)
        response = await page.app.service.run_sized(
            page.request.tenant_id, len(body), partial(_decode_page, body)
        )
        records += response.records
        if not response.records or records[-1].event_type == "TraceFinished":
            return records, (digest.digest(), size), True
        if len(records) == _EVENTS_MAX:
            break
        since = records[-1].stream_seq
    return records, (digest.digest(), size), False


async def _find_drawing(page: ConsolePage, key: _Key, records: list[WireRecord]) -> Drawing:
    """Return the drawing of these events, which another page may have made."""
    tenant_id, trace_id, (_, size) = key[2:]
    drawing: Drawing | None = page.cache.get(key)
    if drawing is None:
        # In a thread of the tenant: the layout of 500 nodes would delay other requests.
        drawing = await page.app.service.run_for_tenant(
            tenant_id, lambda: _draw(page, trace_id, from_wire_records(records))
        )
        page.cache.put(key, drawing, _DRAWING_WEIGHT * (size + KIB))
    return drawing


def _draw(page: ConsolePage, trace_id: str, records: list[EventRecord]) -> Drawing:
    report = build_report(trace_id, records)
    verbs: dict[tuple[str, str], list[str]] = {}
    for edge in report.edges:
        edge_verbs = verbs.setdefault((edge.from_node_id, edge.to_node_id), [])
        if EDGE_VERBS[edge.edge_type] not in edge_verbs:
            edge_verbs.append(EDGE_VERBS[edge.edge_type])
    relations: dict[str, list[tuple[str, str]]] = {}
    names = {node.node_id: f"{node.node_type} {label_of(node)}" for node in report.nodes}
    for (origin, target), edge_verbs in verbs.items():
        relation = ", ".join(edge_verbs), shorten(names[origin], 60)
        relations.setdefault(target, []).append(relation)
    rows = {node.node_id: _make_node_row(page, report, node, relations) for node in report.nodes}
    drawn_ids = list(rows)[:NODES_MAX]
    visible = set(drawn_ids)
    pairs = [pair for pair in verbs if visible.issuperset(pair)][:EDGES_MAX]
    layout = lay_out(drawn_ids, pairs)
    return Drawing(
        report,
        [_make_step_row(page, step) for step in report.steps],
        list(rows.values()),
        layout.width,
        layout.height,
        [_make_box(box, rows[box.node_id]) for box in layout.boxes],
        [
            DrawnCurve(
                curve.line,
                curve.arrow,
                *curve.label_at,
                ", ".join(verbs[curve.origin, curve.target]),
            )
            for curve in layout.curves
        ],
        len(rows) - len(drawn_ids),
    )


def _make_step_row(page: ConsolePage, step: TraceStep) -> StepRow:
    return StepRow(
        page.url("/event", id=step.event_id),
        step.seq,
        step.occurred_at,
        format_seconds(step.occurred_at),
        step.event_type,
        shorten(step.text, 300),
        shorten(step.actor, 40),
    )


def _make_node_row(
    page: ConsolePage,
    report: TraceReport,
    node: Node,
    relations: dict[str, list[tuple[str, str]]],
) -> NodeRow:
    found = relations.get(node.node_id, [])
    return NodeRow(
        node.node_type,
        _find_address(page, report, node.node_id),
        shorten(label_of(node), 300),
        report.states.get(node.node_id, "").replace("_", " "),
        found[:_RELATIONS_MAX],
        max(0, len(found) - _RELATIONS_MAX),
    )


def _make_box(box: Box, row: NodeRow) -> DrawnBox:
    title, caption = f"{row.kind} {row.label}", row.kind
    if row.state:
        title, caption = f"{title}: {row.state}", f"{caption} · {row.state}"
    return DrawnBox(row.address, title, row.kind, box.x, box.y, caption, shorten(row.label, 26))


def _find_address(page: ConsolePage, report: TraceReport, node_id: str) -> str:
    """Return the address of a cited trace, or of the event that first named a node."""
    kind, _, name = node_id.partition(":")
    if kind == "trace" and node_id != report.root_id:
        return page.url("/trace", id=name)
    return page.url("/event", id=report.sources[node_id])


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/traces", show=show_traces, title="Traces"),
    PageRoute(method="GET", path="/trace", show=show_trace),
)

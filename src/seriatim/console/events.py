"""Events: the list with filters, its live tail, and one event."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec

from seriatim.console.calls import CallContext, make_event_calls
from seriatim.console.causes import lay_out_swimlanes, read_cause_tree
from seriatim.console.consumers import HANDLER_STATUSES, read_optional
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.pager import (
    EventPage,
    TimeWindow,
    find_position,
    parse_moment,
    parse_number,
    parse_window,
    read_event_page,
)
from seriatim.console.queries import parse_json_field
from seriatim.console.renderer import format_number
from seriatim.core.canonical import canonical_text, hash_text
from seriatim.core.errors import (
    Forbidden,
    InvalidArgument,
    InvalidQuery,
    LimitExceeded,
    NotFound,
    SeriatimError,
    TimedOut,
)
from seriatim.core.patterns import escape_name
from seriatim.core.query import ID_FIELDS

ROWS_MAX = 200  # a page that follows the log removes older rows
_FILTERS = (
    "types",
    "stream_type",
    "stream_id",
    "correlation_id",
    "causation_id",
    "actor_id",
    "tag",
    "payload",
    "recorded_after",
    "recorded_until",
)
_QUERY_FILTERS = ("tag", "payload")  # filters that only a query has
_TYPES_MAX = 50  # offered to complete the filter by type
_RELATED_MAX = 100  # events of one append, or of one correlation
_SMALL_FRAME_BYTES = 16 * 1024  # bytes; a larger message of a tail is formatted in a thread
_ENVELOPE = (
    "event_version",
    "occurred_at",
    "recorded_at",
    "producer_id",
    "source_system",
    "source_subsystem",
    "actor_type",
    "request_id",
    "idempotency_key",
    "app_id",
    "env_id",
)


async def show_events(page: ConsolePage) -> ConsoleResponse:
    """Show a page of events that match the filters of the address."""
    filters = {name: page.params.get(name, "").strip() for name in _FILTERS}
    newest_first = page.params.get("order") != "oldest"
    error, status, event_page = "", 200, EventPage([])
    head = (await page.get("/v1/log"))["head"]
    try:
        if (target := await _find_jump(page, newest_first=newest_first)) is not None:
            return page.redirect("/events", **_read_list_params(page), **target)
        query = build_query(filters) if _needs_search(filters) else None
        indexed_filters = {name: filters[name] for name in _FILTERS if name not in _QUERY_FILTERS}
        event_page = await read_event_page(
            page, indexed_filters, newest_first=newest_first, query=query
        )
    except (InvalidArgument, InvalidQuery, LimitExceeded, NotFound, TimedOut) as problem:
        error, status = problem.message, _find_status(page, problem)
    types = [] if error else await list_types(page, filters["types"])
    followable = newest_first and not error and not _has_passed(filters)
    live = followable and event_page.at_start and page.params.get("live") == "1"
    return await page.render(
        "events.html",
        status=status,
        error=error,
        filters=filters,
        types=types,
        link_params=_read_list_params(page),
        newest_first=newest_first,
        event_page=event_page,
        head=head,
        followable=followable,
        live=live,
        rows_max=ROWS_MAX,
        tail=filters,
    )


def _needs_search(filters: Mapping[str, str]) -> bool:
    """Return whether no index answers the filters, or only a query has them."""
    if filters["actor_id"] and filters["types"]:  # an actor may have few events of a type
        return True
    return any(filters[name] for name in _QUERY_FILTERS)


def build_query(filters: Mapping[str, str]) -> dict[str, Any]:
    """Return the query with the filters of the form, except the times; empty if there are none.

    Raises:
        InvalidArgument: A filter is malformed.
    """
    event_filter: dict[str, Any] = {name: filters[name] for name in ID_FIELDS if filters.get(name)}
    if filters.get("types"):
        event_filter["types"] = [filters["types"]]
    if filters.get("tag"):
        event_filter["tags"] = [filters["tag"]]
    if filters.get("payload"):
        event_filter["payload"] = [parse_json_field(filters["payload"], "payload")]
    stream = [filters.get("stream_type") or "", filters.get("stream_id") or ""]
    if any(stream) and not all(stream):
        msg = "stream_id and stream_type must be given together"
        raise InvalidArgument(msg, details={"argument": "stream_id"})
    if any(stream):
        event_filter["streams"] = [stream]
    return {"filters": [event_filter]} if event_filter else {}


def _has_passed(filters: Mapping[str, str]) -> bool:
    """Return whether the time window of the filters is over, so that no new event matches."""
    until = parse_window(filters).until
    return until is not None and until < time.time_ns() // 1000


async def list_types(page: ConsolePage, pattern: str) -> list[tuple[str, str]]:
    """Return patterns to complete the filter by type, each with its number of events in words.

    A token that is restricted to event types gets none: the counts are of all types.
    """
    prefix = pattern[:-1] if pattern.endswith(".*") else ""
    response = await read_optional(page, "/v1/event-types", prefix=prefix, limit=_TYPES_MAX)
    return [
        (
            escape_name(entry["event_type"]),
            f"events: {format_number(entry['counted'])}{'' if entry['exact'] else ' or more'}",
        )
        for entry in (response or {"types": []})["types"]
    ]


def _read_list_params(page: ConsolePage) -> dict[str, str]:
    """Return the filters and the order that the address names, without the page of the list."""
    names = (*_FILTERS, "order")
    return {name: value for name in names if (value := page.params.get(name, "").strip())}


async def _find_jump(page: ConsolePage, *, newest_first: bool) -> dict[str, int] | None:
    """Return the page parameters for the position or time to jump to, None without a jump."""
    position = parse_number(page, "position")
    moment = parse_moment(page.params.get("time", ""), "time")
    if position is not None:
        return {"until": position} if newest_first else {"after": max(0, position - 1)}
    if moment is not None:
        last = await find_position(page, moment)
        return {"until": last} if newest_first else {"after": last}
    return None


def _find_status(page: ConsolePage, error: SeriatimError) -> int:
    return page.app.service.problem(error, page.request.request_id).status


# -- the live tail


async def follow_events(page: ConsolePage) -> ConsoleResponse:
    """Stream new events as rows, in the order of the log; `Last-Event-ID` continues a stream."""
    filters = {name: page.params.get(name, "").strip() for name in _FILTERS}
    names = ["after", "keep_alive_s"]
    params = {name: page.params[name] for name in names if page.params.get(name)}
    if query := build_query(filters):
        params["query"] = canonical_text(query)
    window = parse_window(filters)
    stream = await page.stream("/v1/tail", params)
    return msgspec.structs.replace(stream, chunks=_stream_rows(page, stream.chunks, window))


async def _stream_rows(
    page: ConsolePage, chunks: AsyncIterator[bytes], window: TimeWindow
) -> AsyncGenerator[bytes, None]:
    """Replace the events of a tail by the texts of their rows.

    The texts are formatted here because JavaScript rounds large integers.
    """
    buffer = bytearray()
    # aclosing ends the tail of the API at once when the browser disconnects.
    async with aclosing(cast("AsyncGenerator[bytes, None]", chunks)) as source:
        async for chunk in source:
            buffer += chunk
            while (end := buffer.find(b"\n\n")) >= 0:
                frame = bytes(buffer[:end])
                del buffer[: end + 2]
                if len(frame) <= _SMALL_FRAME_BYTES:
                    yield format_frame(page, frame, window)
                    continue
                yield await page.app.service.run_for_tenant(
                    page.request.tenant_id, partial(format_frame, page, frame, window)
                )


def format_frame(page: ConsolePage, frame: bytes, window: TimeWindow) -> bytes:
    """Return a message of a tail with rows instead of events; problems are unchanged.

    A comment with a position becomes a message of its own, so that a page that reconnects continues
    there even if no event has matched its filters.
    """
    start, event, data = frame.partition(b"\nevent: append\ndata: ")
    comment, _, position = frame.partition(b"\nid: ")
    if not event and comment.startswith(b":"):
        return b"id: %b\nevent: position\ndata: %b\n\n" % (position, position)
    if not event:
        return frame + b"\n\n"
    records = msgspec.json.decode(data)["records"]
    rows = page.event_rows(record for record in records if window.contains(record))
    encoded = msgspec.json.encode([row._asdict() for row in rows])
    return start + b"\nevent: rows\ndata: " + encoded + b"\n\n"


# -- one event


async def show_event(page: ConsolePage) -> ConsoleResponse:
    """Show one event: envelope, payload, append, stream, causes, correlation and consumers."""
    event = await _read_event(page)
    neighbours = await _read_neighbours(page, event)
    correlated = await _read_correlated(page, event)
    # In a thread of the tenant: a payload can have a megabyte.
    actual_hash = await page.app.service.run_for_tenant(
        page.request.tenant_id, lambda: hash_text(canonical_text(event["payload"]))
    )
    return await page.render(
        "event.html",
        event=event,
        envelope=[(name, event[name]) for name in _ENVELOPE if event[name] is not None],
        actual_hash=actual_hash,
        append=await _read_append(page, event),
        before=neighbours[0],
        after=neighbours[1],
        tree=await read_cause_tree(page, event),
        correlated=correlated,
        related_max=_RELATED_MAX,
        drawing=lay_out_swimlanes(correlated, event["event_id"]) if correlated else None,
        consumers=await read_consumers(page, event),
        calls=make_event_calls(CallContext.of(page), event["event_id"]),
    )


async def _read_event(page: ConsolePage) -> dict[str, Any]:
    """Return the event that the address names by id or by position."""
    event: dict[str, Any]
    position = parse_number(page, "position")
    if position is None:
        event = (await page.get("/v1/event", event_id=page.params.get("id", "")))["record"]
        return event
    response = await page.get("/v1/events", after=max(0, position - 1), until=position, limit=1)
    if not response["records"]:
        msg = f"there is no event at position {position} that you may read"
        raise NotFound(msg, details={"position": position})
    event = response["records"][0]
    return event


async def _read_append(page: ConsolePage, event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the same append, at most `_RELATED_MAX`."""
    first = event["append_position"]
    response = await page.get("/v1/events", after=first - 1, until=first + _RELATED_MAX - 1)
    return [record for record in response["records"] if record["append_position"] == first]


async def _read_neighbours(
    page: ConsolePage, event: dict[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the events before and after an event in its stream."""
    if event["stream_type"] is None:
        return None, None
    stream = {"stream_type": event["stream_type"], "stream_id": event["stream_id"]}
    position = event["position"]
    after = await page.get("/v1/events", **stream, after=position, limit=1)
    before = await page.get("/v1/events", **stream, until=position - 1, limit=1, newest_first=True)
    return next(iter(before["records"]), None), next(iter(after["records"]), None)


async def _read_correlated(page: ConsolePage, event: dict[str, Any]) -> list[dict[str, Any]]:
    correlation_id = event["correlation_id"]
    if correlation_id is None:
        return []
    response = await page.get("/v1/events", correlation_id=correlation_id, limit=_RELATED_MAX)
    records: list[dict[str, Any]] = response["records"]
    return records


class ConsumerState(msgspec.Struct, frozen=True):
    """A consumer, and whether it has passed an event; handlers have no position."""

    kind: str
    name: str
    passed: bool
    position: int | None
    note: str = ""


async def read_consumers(page: ConsolePage, event: dict[str, Any]) -> list[ConsumerState]:
    """Return the consumers that the caller may see, and whether they have passed an event."""
    position, states = event["position"], []
    try:
        for entry in (await page.get("/v1/projections"))["projections"]:
            cursor, note = entry["position"], entry["status"]
            states.append(
                ConsumerState("projection", entry["name"], cursor >= position, cursor, note)
            )
    except (Forbidden, NotFound):
        pass  # a token that is restricted to event types does not see projections
    if not page.can("operate"):
        return states
    for entry in (await page.get("/v1/subscriptions"))["subscriptions"]:
        cursor = entry["position"]
        states.append(ConsumerState("subscription", entry["name"], cursor >= position, cursor))
    registry = await read_optional(page, "/v1/registry/event", event_id=event["event_id"])
    return states + [
        _describe_entry(entry) for entry in ([] if registry is None else registry["entries"])
    ]


def _describe_entry(entry: dict[str, Any]) -> ConsumerState:
    """Return what a handler has done with an event."""
    status = {"dead": "dead letter"}.get(entry["status"], entry["status"])
    note = f"{status}: {entry['error']}" if entry["error"] else status
    return ConsumerState(
        "handler",
        entry["handler"],
        entry["status"] not in HANDLER_STATUSES,
        None,
        f"{note}, attempts: {entry['attempts']}",
    )


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/events", show=show_events, title="Events"),
    PageRoute(method="GET", path="/events/live", show=follow_events),
    PageRoute(method="GET", path="/event", show=show_event),
)

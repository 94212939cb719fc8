"""Causes and effects of an event, by causation ids: as a tree, and as lines of a drawing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seriatim.console.page import ConsolePage
from seriatim.core.errors import InvalidArgument, NotFound

CAUSES_MAX = 10
EFFECTS_MAX = 50  # events in the tree besides the causes
EFFECT_DEPTH = 5
_EFFECTS_OF_ONE = 20
_LOOKUPS_MAX = 30  # reads of effects for one page

LINES_MAX = 12
LABEL_WIDTH = 220
_STEP = 36
_LINE_HEIGHT = 40
_OTHERS = "other streams"
_NO_STREAM = "no stream"


class CauseNode(msgspec.Struct):
    """An event in the tree, with the events that it caused.

    Attributes:
        event_id: The causation id, which may name no event of the log.
        event: The event, None if the log has none with this id that the caller may read.
        here: Whether it is the event of the page.
        effects: The events that it caused.
        cut: Whether it may have more effects than the tree displays.
    """

    event_id: str
    event: dict[str, Any] | None
    here: bool = False
    effects: list[CauseNode] = msgspec.field(default_factory=list)
    cut: bool = False


async def read_cause_tree(page: ConsolePage, event: dict[str, Any]) -> CauseNode:
    """Return the tree from the first known cause of an event to its effects, bounded."""
    node = CauseNode(event["event_id"], event, here=True)
    # Callers choose causation ids, so events can cause each other in a circle.
    seen = {node.event_id}
    await _add_effects(page, node, seen)
    top = node
    for _ in range(CAUSES_MAX):
        cause_id = None if top.event is None else top.event["causation_id"]
        if cause_id is None or cause_id in seen:
            break
        seen.add(cause_id)
        top = CauseNode(cause_id, await _find_event(page, cause_id), effects=[top])
    return top


async def _find_event(page: ConsolePage, event_id: str) -> dict[str, Any] | None:
    """Return an event by its id, None if there is none: a causation id may be any text."""
    try:
        event: dict[str, Any] = (await page.get("/v1/event", event_id=event_id))["record"]
    except (NotFound, InvalidArgument):
        return None
    return event


async def _add_effects(page: ConsolePage, top: CauseNode, seen: set[str]) -> None:
    """Add the effects of an event level by level, until a bound is reached."""
    queue = deque([(top, 1)])
    lookups = 0
    while queue:
        node, depth = queue.popleft()
        if depth > EFFECT_DEPTH or lookups >= _LOOKUPS_MAX or len(seen) > EFFECTS_MAX:
            node.cut = True
            continue
        lookups += 1
        response = await page.get("/v1/events", causation_id=node.event_id, limit=_EFFECTS_OF_ONE)
        for event in response["records"]:
            if event["event_id"] in seen:
                continue
            seen.add(event["event_id"])
            effect = CauseNode(event["event_id"], event)
            node.effects.append(effect)
            queue.append((effect, depth + 1))
        node.cut = len(response["records"]) == _EFFECTS_OF_ONE


# -- swimlanes: a line for each stream, time from left to right


class StreamLine(msgspec.Struct, frozen=True):
    """The line of a stream: its label and its vertical position."""

    label: str
    y: int


class EventMark(msgspec.Struct, frozen=True):
    """An event in a line."""

    event: Mapping[str, Any]
    x: int
    y: int
    selected: bool


class CauseLink(msgspec.Struct, frozen=True):
    """A line from a cause to its effect."""

    x1: int
    y1: int
    x2: int
    y2: int


class Swimlanes(msgspec.Struct, frozen=True):
    """A drawing of lines, events and causes."""

    width: int
    height: int
    lines: list[StreamLine]
    marks: list[EventMark]
    links: list[CauseLink]


def lay_out_swimlanes(events: Sequence[Mapping[str, Any]], selected: str) -> Swimlanes:
    """Lay out events in ascending order of position.

    Streams beyond the first `LINES_MAX` - 1 share the last line.

    Args:
        events: The events, as the API returns them.
        selected: The id of the event to mark.
    """
    labels = list(dict.fromkeys(_find_label(event) for event in events))
    if len(labels) > LINES_MAX:
        labels = [*labels[: LINES_MAX - 1], _OTHERS]
    lines = [StreamLine(label, _LINE_HEIGHT * number + 24) for number, label in enumerate(labels)]
    heights = {line.label: line.y for line in lines}
    marks = [
        EventMark(
            event,
            LABEL_WIDTH + _STEP * number + _STEP // 2,
            heights.get(_find_label(event), lines[-1].y),
            event["event_id"] == selected,
        )
        for number, event in enumerate(events)
    ]
    places = {mark.event["event_id"]: mark for mark in marks}
    links = [
        CauseLink(cause.x, cause.y, mark.x, mark.y)
        for mark in marks
        if (cause := places.get(mark.event["causation_id"])) is not None and cause is not mark
    ]
    width = LABEL_WIDTH + _STEP * len(marks) + 12
    return Swimlanes(width, _LINE_HEIGHT * len(lines) + 8, lines, marks, links)


def _find_label(event: Mapping[str, Any]) -> str:
    if event["stream_type"] is None:
        return _NO_STREAM
    return f"{event['stream_type']} / {event['stream_id']}"

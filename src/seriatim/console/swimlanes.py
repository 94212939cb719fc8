"""The layout of events as swimlanes: a line for each stream, time from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

LINES_MAX = 12
LABEL_WIDTH = 220
_STEP = 36
_LINE_HEIGHT = 40
_OTHERS = "other streams"
_NO_STREAM = "no stream"


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

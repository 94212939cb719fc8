"""The layout of events as swimlanes: a lane for each stream, time from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

LANES_MAX = 12
LABEL_WIDTH = 220
_STEP = 36
_LANE_HEIGHT = 40
_OTHERS = "other streams"
_NO_STREAM = "no stream"


class Lane(msgspec.Struct, frozen=True):
    """A lane: its label, and the height of its line."""

    label: str
    y: int


class LaneMark(msgspec.Struct, frozen=True):
    """An event in a lane."""

    event: Mapping[str, Any]
    x: int
    y: int
    selected: bool


class LaneLink(msgspec.Struct, frozen=True):
    """A line from the event that caused another one to that event."""

    x1: int
    y1: int
    x2: int
    y2: int


class Swimlanes(msgspec.Struct, frozen=True):
    """A drawing of lanes, events and causes."""

    width: int
    height: int
    lanes: list[Lane]
    marks: list[LaneMark]
    links: list[LaneLink]


def lay_out_swimlanes(events: Sequence[Mapping[str, Any]], selected: str) -> Swimlanes:
    """Lay out events in ascending order of position.

    Streams beyond the first `LANES_MAX` - 1 share the last lane.

    Args:
        events: The events, as the API returns them.
        selected: The id of the event to mark.
    """
    labels = list(dict.fromkeys(_label(event) for event in events))
    if len(labels) > LANES_MAX:
        labels = [*labels[: LANES_MAX - 1], _OTHERS]
    lanes = [Lane(label, _LANE_HEIGHT * number + 24) for number, label in enumerate(labels)]
    heights = {lane.label: lane.y for lane in lanes}
    marks = [
        LaneMark(
            event,
            LABEL_WIDTH + _STEP * number + _STEP // 2,
            heights.get(_label(event), lanes[-1].y),
            event["event_id"] == selected,
        )
        for number, event in enumerate(events)
    ]
    places = {mark.event["event_id"]: mark for mark in marks}
    links = [
        LaneLink(cause.x, cause.y, mark.x, mark.y)
        for mark in marks
        if (cause := places.get(mark.event["causation_id"])) is not None and cause is not mark
    ]
    width = LABEL_WIDTH + _STEP * len(marks) + 12
    return Swimlanes(width, _LANE_HEIGHT * len(lanes) + 8, lanes, marks, links)


def _label(event: Mapping[str, Any]) -> str:
    if event["stream_type"] is None:
        return _NO_STREAM
    return f"{event['stream_type']} / {event['stream_id']}"

"""The layout of swimlanes: lines by stream, marks in order, links from causes to effects."""

from __future__ import annotations

from typing import Any

from seriatim.console.causes import LABEL_WIDTH, LINES_MAX, lay_out_swimlanes


def event(name: str, stream: str | None = None, cause: str | None = None) -> dict[str, Any]:
    """Return the fields that a layout reads."""
    stream_type = None if stream is None else "s"
    fields = {"event_id": name, "causation_id": cause, "stream_type": stream_type}
    return {**fields, "stream_id": stream}


def test_each_stream_has_a_line_and_causes_are_linked() -> None:
    """N1: each stream has a line, in the order of first events, and causes are linked."""
    drawing = lay_out_swimlanes(
        [event("a", "1"), event("b", "2", "a"), event("c", None, "b"), event("d", "1", "gone")], "b"
    )

    assert [line.label for line in drawing.lines] == ["s / 1", "s / 2", "no stream"]
    heights = [line.y for line in drawing.lines]
    assert [mark.y for mark in drawing.marks] == [heights[0], heights[1], heights[2], heights[0]]
    places = [mark.x for mark in drawing.marks]
    assert places == sorted(set(places))
    assert places[0] > LABEL_WIDTH
    assert places[-1] < drawing.width
    assert max(heights) < drawing.height
    assert [mark.selected for mark in drawing.marks] == [False, True, False, False]
    assert [(link.x1, link.y1, link.x2, link.y2) for link in drawing.links] == [
        (places[0], heights[0], places[1], heights[1]),
        (places[1], heights[1], places[2], heights[2]),
    ]


def test_many_streams_share_the_last_line() -> None:
    """N1: the number of lines is bounded, and an event that names itself has no link."""
    events = [event(str(n), str(n), str(n)) for n in range(LINES_MAX + 3)]
    drawing = lay_out_swimlanes(events, "0")

    assert len(drawing.lines) == LINES_MAX
    assert drawing.lines[-1].label == "other streams"
    assert [mark.y for mark in drawing.marks[LINES_MAX - 1 :]] == [drawing.lines[-1].y] * 4
    assert drawing.links == []

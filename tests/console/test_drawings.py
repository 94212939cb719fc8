"""Charts as SVG: every value inside the frame, every text escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.console.drawings import (
    choose_top,
    draw_line_chart,
    format_span,
    format_value,
    reduce_points,
)

_POINTS = st.lists(st.tuples(st.floats(0, 4e9), st.floats(0, 1e15)), min_size=2, max_size=800).map(
    sorted
)


class Elements(HTMLParser):
    """Collect the attributes of elements, and check that each one is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[dict[str, str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element."""
        self.attributes.append({name: value or "" for name, value in attrs})
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element without contents."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that the element was opened last."""
        assert self.open.pop() == tag


def parse(drawing: str) -> list[dict[str, str]]:
    """Return the attributes of all elements of a drawing."""
    elements = Elements()
    elements.feed(drawing)
    assert elements.open == []
    return elements.attributes


@given(_POINTS)
def test_a_chart_is_well_formed_and_stays_inside_its_frame(
    points: list[tuple[float, float]],
) -> None:
    """N1: for any values, the drawing is well-formed and inside its frame."""
    [svg, *parts] = parse(draw_line_chart([("lag", points)], label="lag"))

    [_, _, width, height] = map(float, svg["viewbox"].split())
    line = next(part for part in parts if part.get("class") == "line line-0")
    drawn = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", line["d"])]
    assert 2 <= len(drawn) <= 241
    assert all(0 <= x <= width and 0 <= y <= height for x, y in drawn)


def test_a_chart_of_less_than_two_points_is_empty() -> None:
    """N1: one point makes no line."""
    assert draw_line_chart([("lag", [(1.0, 2.0)])], label="lag") == ""
    assert draw_line_chart([], label="lag") == ""


def test_texts_of_a_chart_are_escaped() -> None:
    """N3: markup in a name is displayed as text."""
    points = [(0.0, 1.0), (5.0, 2.0)]
    drawn = draw_line_chart([("<script>", points)], label='"><script>', unit="<b>")

    assert "<script" not in drawn
    assert "<b>" not in drawn
    assert parse(drawn)[0]["aria-label"] == '"><script>'


def test_a_chart_has_no_inline_style_or_script() -> None:
    """N3: a chart needs neither inline styles nor scripts, which the policy forbids."""
    drawn = draw_line_chart([("a", [(0.0, 1.0), (5.0, 2.0)])], label="a")

    assert not re.search(r"style=|<style|<script|\son\w+=", drawn)


def test_reduced_points_keep_peaks_and_the_last_value() -> None:
    """N1: a peak remains visible when points are merged."""
    points = [(float(number), 0.0) for number in range(720)]
    points[333] = (333.0, 9.0)

    reduced = reduce_points(points)
    assert len(reduced) <= 240
    assert (333.0, 9.0) in reduced
    assert reduced[-1] == points[-1]


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1.0), (0.3, 0.5), (1, 1), (7, 10), (11, 20), (4999, 5000), (6e6, 1e7)]
)
def test_the_axis_ends_at_a_round_number(value: float, top: float) -> None:
    """N1: the axis ends at 1, 2 or 5 times a power of ten."""
    assert choose_top(value) == pytest.approx(top)


def test_numbers_and_durations_are_short() -> None:
    """N1: labels fit beside the chart and into a table."""
    assert [format_value(value) for value in (0, 0.25, 1500, 2e6)] == ["0", "0.25", "1.5k", "2M"]
    spans = [format_span(value) for value in (0, 0.012, 3, 119, 180, 7200, 2 * 86_400)]
    assert spans == ["0 s", "12 ms", "3 s", "119 s", "3 min", "2 h", "2 d"]

"""Charts as SVG, drawn on the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Point = tuple[float, float]  # a time in seconds since 1970, and a value

_WIDTH, _HEIGHT = 480, 140
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 8, 22
_POINTS_MAX = 240  # more are merged: a chart is a few hundred pixels wide
_MINUTE_S = 60.0
_SMALLEST = 1e-9  # a smaller value is drawn as 0


def draw_line_chart(
    lines: Sequence[tuple[str, Sequence[Point]]], *, label: str, unit: str = ""
) -> str:
    """Draw lines over time.

    Args:
        lines: The name and the points of each line, oldest first.
        label: Describes the chart to readers who do not see it.
        unit: Follows the numbers at the axis.

    Returns:
        An SVG element, or an empty text if no line has two points.
    """
    series = [(name, reduce_points(points)) for name, points in lines if len(points) > 1]
    if not series:
        return ""
    times = [at for _, points in series for at, _ in points]
    begin, end = min(times), max(times)
    top = choose_top(max(value for _, points in series for _, value in points))
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"',
        f' aria-label="{escape(label)}">',
        *_draw_axes(begin, end, top, unit),
    ]
    for number, (name, points) in enumerate(series):
        path = _format_path(points, begin, end, top)
        if number == 0:
            parts.append(_draw_area(path, points, begin, end))
        parts.append(
            f'<path class="line line-{number}" d="{path}"><title>{escape(name)}</title></path>'
        )
    parts.append("</svg>")
    return "".join(parts)


def reduce_points(points: Sequence[Point], limit: int = _POINTS_MAX) -> list[Point]:
    """Return at most `limit` points: the highest of each group of neighbours, and the last one."""
    size = math.ceil(len(points) / (limit - 1)) if len(points) > limit else 1
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    reduced = [max(group, key=lambda point: point[1]) for group in groups]
    if reduced and reduced[-1] != points[-1]:
        reduced.append(points[-1])
    return reduced[-limit:]


def choose_top(value: float) -> float:
    """Return a round number that is not below a value: 1, 2 or 5 times a power of ten."""
    if value < _SMALLEST or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((factor * power for factor in (1, 2, 5, 10) if factor * power >= value), 10 * power)


def format_value(value: float) -> str:
    """Return a number at an axis in a few characters, such as `1.5k`."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:.3g}"


def format_span(seconds: float) -> str:
    """Return a duration in words that fit into a table, such as `3 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds > 0 else "0 s"
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _draw_axes(begin: float, end: float, top: float, unit: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = round(bottom - share * (bottom - _TOP), 1)
        text = escape(f"{format_value(share * top)}{unit}")
        parts += [
            f'<line class="axis" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>',
        ]
    label_y = _HEIGHT - 6
    start_label = escape(f"{format_span(end - begin)} ago")
    parts += [
        f'<text x="{_LEFT}" y="{label_y}">{start_label}</text>',
        f'<text x="{right}" y="{label_y}" text-anchor="end">now</text>',
    ]
    return parts


def _format_path(points: Sequence[Point], begin: float, end: float, top: float) -> str:
    bottom = _HEIGHT - _BOTTOM
    steps = []
    for at, value in points:
        share = min(1.0, max(0.0, value / top))
        y = bottom - share * (bottom - _TOP)
        steps.append(f"{_find_x(at, begin, end):.1f} {y:.1f}")
    return "M" + "L".join(steps)


def _draw_area(path: str, points: Sequence[Point], begin: float, end: float) -> str:
    bottom = _HEIGHT - _BOTTOM
    first, last = (_find_x(points[index][0], begin, end) for index in (0, -1))
    return f'<path class="area" d="{path}L{last:.1f} {bottom}L{first:.1f} {bottom}Z"/>'


def _find_x(at: float, begin: float, end: float) -> float:
    span = end - begin or 1.0
    return _LEFT + (at - begin) / span * (_WIDTH - _RIGHT - _LEFT)

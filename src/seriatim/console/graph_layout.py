"""A layered drawing of a directed graph: boxes in columns, and curves between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import msgspec

BOX_WIDTH = 210
BOX_HEIGHT = 46
COLUMN_GAP = 130
ROW_GAP = 14
MARGIN = 12
NODES_MAX = 500
EDGES_MAX = 2000
_WAYPOINT_HEIGHT = 6
_WAYPOINTS_MAX = 10_000  # longer detours are drawn as direct curves
_SWEEPS = 4
_CENTER_MAX = 240  # pixels: a tall neighbour must not push a column out of view
_ARROW = 7


class Box(msgspec.Struct, frozen=True):
    """The place of a node."""

    node_id: str
    x: int
    y: int


class Curve(msgspec.Struct, frozen=True):
    """An edge as SVG paths: its line, and the arrowhead at its target.

    `points` are the ends and the waypoints in between, from left to right.
    """

    origin: str
    target: str
    line: str
    arrow: str
    points: tuple[tuple[int, int], ...]

    @property
    def label_at(self) -> tuple[int, int]:
        """The place of a label: above the line, near its right end."""
        (x1, y1), (x2, y2) = self.points[-2:]
        return x1 + (x2 - x1) // 2, y1 + (y2 - y1) // 2 - 4


class GraphLayout(msgspec.Struct, frozen=True):
    """A drawing: its size, boxes and curves."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]


class _Slot(NamedTuple):
    """A row of a column: a node, or the waypoint of an edge at a column that it passes."""

    node_id: str
    edge: tuple[str, str] | None = None
    layer: int = 0  # of a waypoint


def lay_out(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> GraphLayout:
    """Place nodes and edges; the same graph always has the same drawing.

    Edges lead from left to right, except those that close a cycle. Edges that pass a column have
    a row of their own there, so that no line crosses a box.

    Args:
        nodes: The ids of the nodes, each once.
        edges: Pairs of node ids, origin first; a repeated pair is drawn once.

    Raises:
        ValueError: An edge names an unknown node, or there are more than `NODES_MAX` nodes or
            `EDGES_MAX` different edges.
    """
    pairs = list(dict.fromkeys(edges))
    known = set(nodes)
    if len(nodes) > NODES_MAX or len(pairs) > EDGES_MAX:
        msg = f"a drawing has at most {NODES_MAX} nodes and {EDGES_MAX} edges"
        raise ValueError(msg)
    if any(end not in known for pair in pairs for end in pair):
        msg = "an edge names an unknown node"
        raise ValueError(msg)
    forward = _orient(nodes, pairs)
    layers = _assign_layers(nodes, forward.values())
    columns = _fill_columns(nodes, forward, layers)
    _reduce_crossings(columns, forward, layers)
    return _draw(columns, forward)


def _orient(
    nodes: Sequence[str], pairs: list[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return each edge with its direction from left to right; edges of cycles are reversed.

    Nodes without incoming edges are visited first, so that only edges of cycles are reversed.
    """
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    with_origins = {target for origin, target in pairs if origin != target}
    for origin, target in pairs:
        targets[origin].append(target)
    oriented: dict[tuple[str, str], tuple[str, str]] = {}
    active: set[str] = set()
    visited: set[str] = set()
    for start in sorted(nodes, key=with_origins.__contains__):
        if start in visited:
            continue
        path = [(start, iter(targets[start]))]
        active.add(start)
        visited.add(start)
        while path:
            node, remaining = path[-1]
            successor = next(remaining, None)
            if successor is None:
                active.discard(node)
                path.pop()
                continue
            backward = successor in active and successor != node
            oriented[node, successor] = (successor, node) if backward else (node, successor)
            if successor not in visited:
                visited.add(successor)
                active.add(successor)
                path.append((successor, iter(targets[successor])))
    return {pair: oriented[pair] for pair in pairs}


def _assign_layers(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each node: one after the last of its origins."""
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    open_origins = dict.fromkeys(nodes, 0)
    for origin, target in edges:
        if origin != target:
            targets[origin].append(target)
            open_origins[target] += 1
    layers = dict.fromkeys(nodes, 0)
    ready = deque(node for node in nodes if not open_origins[node])
    while ready:
        node = ready.popleft()
        for target in targets[node]:
            layers[target] = max(layers[target], layers[node] + 1)
            open_origins[target] -= 1
            if not open_origins[target]:
                ready.append(target)
    return layers


def _fill_columns(
    nodes: Sequence[str], forward: dict[tuple[str, str], tuple[str, str]], layers: dict[str, int]
) -> list[list[_Slot]]:
    columns: list[list[_Slot]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for node in nodes:
        columns[layers[node]].append(_Slot(node))
    spans = {
        edge: range(layers[left] + 1, layers[right]) for edge, (left, right) in forward.items()
    }
    if sum(map(len, spans.values())) <= _WAYPOINTS_MAX:
        for edge, passed in spans.items():
            for layer in passed:
                columns[layer].append(_Slot("", edge, layer))
    return columns


def _reduce_crossings(
    columns: list[list[_Slot]],
    forward: dict[tuple[str, str], tuple[str, str]],
    layers: dict[str, int],
) -> None:
    """Order each column by the mean row of its neighbours, alternately from left and right.

    A few sweeps remove most crossings; no fast method is known that finds the minimum.
    """
    before: dict[_Slot, list[_Slot]] = {}
    after: dict[_Slot, list[_Slot]] = {}
    placed_slots = {slot for column in columns for slot in column}
    for edge, (left, right) in forward.items():
        waypoints = (_Slot("", edge, layer) for layer in range(layers[left] + 1, layers[right]))
        chain = [_Slot(left), *(slot for slot in waypoints if slot in placed_slots), _Slot(right)]
        for first, second in pairwise(chain):
            after.setdefault(first, []).append(second)
            before.setdefault(second, []).append(first)
    connected = before.keys() | after.keys()  # all others are last in their column
    rows = {slot: row for column in columns for row, slot in enumerate(column)}
    for sweep in range(_SWEEPS):
        from_left = sweep % 2 == 0
        neighbours = before if from_left else after
        for column in columns if from_left else reversed(columns):
            means = {
                slot: _compute_mean_row(slot, neighbours, rows) if slot in connected else inf
                for slot in column
            }
            column.sort(key=means.__getitem__)
            rows |= {slot: row for row, slot in enumerate(column)}


def _compute_mean_row(
    slot: _Slot, neighbours: dict[_Slot, list[_Slot]], rows: dict[_Slot, int]
) -> float:
    adjacent = neighbours.get(slot)
    return (
        sum(rows[neighbour] for neighbour in adjacent) / len(adjacent) if adjacent else rows[slot]
    )


def _find_height(slot: _Slot) -> int:
    return BOX_HEIGHT if slot.edge is None else _WAYPOINT_HEIGHT


def _draw(
    columns: list[list[_Slot]], forward: dict[tuple[str, str], tuple[str, str]]
) -> GraphLayout:
    heights = [sum(_find_height(slot) + ROW_GAP for slot in column) - ROW_GAP for column in columns]
    tallest = max(heights, default=0)
    boxes: dict[str, Box] = {}
    waypoints: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for number, column in enumerate(columns):
        x = MARGIN + number * (BOX_WIDTH + COLUMN_GAP)
        y = MARGIN + min((tallest - heights[number]) // 2, _CENTER_MAX)
        for slot in column:
            if slot.edge is None:
                boxes[slot.node_id] = Box(slot.node_id, x, y)
            else:
                middle = y + _WAYPOINT_HEIGHT // 2
                waypoints.setdefault(slot.edge, []).extend([(x, middle), (x + BOX_WIDTH, middle)])
            y += _find_height(slot) + ROW_GAP
    curves = _draw_curves(boxes, waypoints, forward)
    width = 2 * MARGIN + len(columns) * (BOX_WIDTH + COLUMN_GAP)
    return GraphLayout(width, tallest + 2 * MARGIN, tuple(boxes.values()), curves)


def _draw_curves(
    boxes: dict[str, Box],
    waypoints: dict[tuple[str, str], list[tuple[int, int]]],
    forward: dict[tuple[str, str], tuple[str, str]],
) -> tuple[Curve, ...]:
    leaving = _spread_ends(boxes, forward, side=0)
    arriving = _spread_ends(boxes, forward, side=1)
    curves = []
    for edge, (left, right) in forward.items():
        start = boxes[left].x + BOX_WIDTH, leaving[edge]
        if left == right:
            curves.append(_draw_loop(edge, start))
            continue
        points = (start, *waypoints.get(edge, ()), (boxes[right].x, arriving[edge]))
        reversed_ = edge != (left, right)
        x, y = points[0] if reversed_ else points[-1]
        arrow_length = _ARROW if reversed_ else -_ARROW
        arrow = f"M{x} {y}l{arrow_length} -4v8z"
        curves.append(Curve(*edge, _draw_line(points), arrow, points))
    return tuple(curves)


def _spread_ends(
    boxes: dict[str, Box], forward: dict[tuple[str, str], tuple[str, str]], side: int
) -> dict[tuple[str, str], int]:
    """Return the height of one end of each edge, spread over the side of its box."""
    ends: dict[str, list[tuple[str, str]]] = {}
    for edge, direction in forward.items():
        ends.setdefault(direction[side], []).append(edge)
    heights = {}
    for node_id, attached in ends.items():
        attached.sort(key=lambda edge: boxes[forward[edge][1 - side]].y)
        for number, edge in enumerate(attached, 1):
            heights[edge] = boxes[node_id].y + BOX_HEIGHT * number // (len(attached) + 1)
    return heights


def _draw_line(points: Sequence[tuple[int, int]]) -> str:
    """Return a path of curves between columns, and straight lines through columns."""
    x, y = points[0]
    parts = [f"M{x} {y}"]
    for number, (x2, y2) in enumerate(points[1:]):
        if number % 2:
            parts.append(f"H{x2}")
        else:
            middle = (x + x2) // 2
            parts.append(f"C{middle} {y} {middle} {y2} {x2} {y2}")
        x, y = x2, y2
    return "".join(parts)


def _draw_loop(edge: tuple[str, str], start: tuple[int, int]) -> Curve:
    """Return the curve of an edge from a node to itself, at the right of its box."""
    x, y = start
    end = y + 10
    line = f"M{x} {y}C{x + 40} {y - 20} {x + 40} {end + 20} {x} {end}"
    return Curve(*edge, line, f"M{x} {end}l{_ARROW} -4v8z", ((x, y), (x + 40, y)))

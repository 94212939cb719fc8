"""The drawing of a graph: nothing overlaps, every edge is drawn, and always the same way."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.console.graph_layout import (
    BOX_HEIGHT,
    BOX_WIDTH,
    EDGES_MAX,
    NODES_MAX,
    Box,
    GraphLayout,
    lay_out,
)

Pairs = list[tuple[str, str]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], Pairs]:
    """Draw a graph with cycles, loops, repeated edges and separate parts."""
    nodes = [f"n{number}" for number in range(draw(st.integers(1, 12)))]
    ends = st.sampled_from(nodes)
    return nodes, draw(st.lists(st.tuples(ends, ends), max_size=30))


def overlap(first: Box, other: Box) -> bool:
    """Return whether two boxes touch."""
    apart_x = abs(first.x - other.x) > BOX_WIDTH
    apart_y = abs(first.y - other.y) > BOX_HEIGHT
    return not (apart_x or apart_y)


def check_drawing(layout: GraphLayout, nodes: list[str], pairs: Pairs) -> None:
    """Check that a drawing is complete, and that nothing covers a box."""
    boxes = {box.node_id: box for box in layout.boxes}
    assert sorted(boxes) == sorted(nodes)
    assert {(curve.origin, curve.target) for curve in layout.curves} == set(pairs)
    assert len(layout.curves) == len(set(pairs))
    for box in layout.boxes:
        assert 0 <= box.x <= layout.width - BOX_WIDTH
        assert 0 <= box.y <= layout.height - BOX_HEIGHT
    for curve in layout.curves:
        ends = [boxes[curve.origin], boxes[curve.target]]
        if curve.origin == curve.target:
            continue
        left, right = sorted(ends, key=lambda box: box.x)
        assert left.x < right.x
        (x1, y1), (x2, y2) = curve.points[0], curve.points[-1]
        assert (x1, x2) == (left.x + BOX_WIDTH, right.x)
        assert left.y <= y1 <= left.y + BOX_HEIGHT
        assert right.y <= y2 <= right.y + BOX_HEIGHT
        # The arrow is at the target.
        assert curve.arrow.startswith(
            f"M{x2} {y2}l-" if boxes[curve.target] == right else f"M{x1} {y1}l7"
        )


@given(graphs())
def test_drawings_are_complete_and_clear(graph: tuple[list[str], Pairs]) -> None:
    """N1: no boxes overlap, and every edge joins its own boxes and keeps a distance from others."""
    nodes, pairs = graph

    layout = lay_out(nodes, pairs)

    check_drawing(layout, nodes, pairs)
    assert not any(overlap(first, other) for first, other in combinations(layout.boxes, 2))
    for curve in layout.curves:
        inner = curve.points[1:-1]
        for (x1, y1), (x2, y2) in zip(inner[::2], inner[1::2], strict=True):
            assert y1 == y2
            for box in layout.boxes:
                inside = box.x < x2 and x1 < box.x + BOX_WIDTH
                assert not (inside and box.y <= y1 <= box.y + BOX_HEIGHT)
    assert lay_out(nodes, pairs) == layout


def test_edges_lead_to_the_right_without_cycles() -> None:
    """N1: causes are placed to the left of effects, for any order of the nodes."""
    layout = lay_out(["c", "b", "a"], [("b", "c"), ("a", "b"), ("a", "c")])
    at = {box.node_id: box.x for box in layout.boxes}

    assert at["a"] < at["b"] < at["c"]


def test_crossings_are_avoided() -> None:
    """N1: targets have the order of their origins, so that their edges do not cross."""
    pairs = [("a", "z"), ("b", "y"), ("c", "x")]
    layout = lay_out(["a", "b", "c", "x", "y", "z"], pairs)
    at = {box.node_id: box.y for box in layout.boxes}

    assert [at[origin] for origin, _ in pairs] == [at[target] for _, target in pairs]


def test_separate_nodes_are_last_in_their_column() -> None:
    """N1: a node without edges does not push connected ones away from each other."""
    pairs = [("a", target) for target in "xyz"]
    layout = lay_out(["alone", "a", "x", "y", "z"], pairs)
    at = {box.node_id: (box.x, box.y) for box in layout.boxes}

    assert at["alone"][0] == at["a"][0]
    assert at["alone"][1] > at["a"][1]


@pytest.mark.parametrize("shape", ["star", "chain", "tangle"])
def test_the_largest_graphs_are_drawn_quickly(shape: str) -> None:
    """N1: 500 nodes are drawn in a fraction of a second, for each shape of graph."""
    nodes = [f"n{number}" for number in range(NODES_MAX)]
    pairs = {
        "star": [(nodes[0], node) for node in nodes[1:]],
        "chain": [(nodes[n], nodes[(n + s) % NODES_MAX]) for n in range(NODES_MAX) for s in (1, 7)],
        "tangle": [
            (nodes[n], nodes[n * 7919 * s % NODES_MAX])
            for n in range(NODES_MAX)
            for s in (1, 2, 3, 5)
        ],
    }[shape][:EDGES_MAX]
    began = time.process_time()
    layout = lay_out(nodes, pairs)
    seconds = time.process_time() - began

    check_drawing(layout, nodes, pairs)
    assert seconds < 2


def test_an_empty_graph_is_an_empty_drawing() -> None:
    """N1: a graph without nodes is an empty drawing."""
    assert lay_out([], []).boxes == ()


@pytest.mark.parametrize(
    ("nodes", "pairs"),
    [
        (["a"], [("a", "b")]),
        ([str(number) for number in range(NODES_MAX + 1)], []),
        (
            [str(number) for number in range(100)],
            [(str(n // 100), str(n % 100)) for n in range(EDGES_MAX + 1)],
        ),
    ],
)
def test_other_graphs_are_refused(nodes: list[str], pairs: Pairs) -> None:
    """N1: graphs that are too large, or have edges to unknown nodes, are refused."""
    with pytest.raises(ValueError, match=r"at most|unknown node"):
        lay_out(nodes, pairs)

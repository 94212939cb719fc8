"""The index keys that find the matches of a query."""

from collections.abc import Sequence
from typing import Any

import pytest

from seriatim.core.ids import tag_key
from seriatim.core.indexes import StoredIndex, term_key
from seriatim.core.kinds import NO_RULES, Rules
from seriatim.core.query import Filter, Query
from seriatim.core.query_plan import MAX_ALTERNATIVES, MAX_TERMS, AccessPath, plan_query

INDEXES = (
    StoredIndex("a", "x"),
    StoredIndex("a", "y.z"),
    StoredIndex("a", "l[]"),
    StoredIndex("b", "x"),
    StoredIndex("late", "x", 10),
    StoredIndex("late", "y", 20),
)
RULES = Rules((), (), len(INDEXES), INDEXES)


def found(one: Filter, rules: Rules = RULES) -> list[AccessPath]:
    """The routes of one filter over a log of 100 events."""
    return plan_query("t", Query([one]), rules, 0, 100)


def alternatives(types: Any, *payload: Any, tags: Sequence[str] | None = None) -> Any:
    """The keys of the one route of a filter."""
    [route] = found(Filter(types=types, payload=payload, tags=tags))
    return route.key_alternatives


def proven(**sides: Any) -> bool:
    """Whether the keys of a filter say all that it does."""
    [route] = found(Filter(**sides))
    assert route.key_alternatives
    return route.exact


def term(event_type: str, path: str, scalar: Any) -> bytes:
    """A key as it stands in the index."""
    return term_key("t", event_type, path, scalar)


def test_a_term_of_each_alternative() -> None:
    """D2, D3: every type under every predicate, by all the paths that are declared."""
    assert alternatives(["a"], {"x": 1}) == ((term("a", "x", 1),),)
    assert alternatives(["a", "b", "a"], {"x": 1, "q": 2}, {"x": "s"}) == (
        (term("a", "x", 1),),
        (term("a", "x", "s"),),
        (term("b", "x", 1),),
        (term("b", "x", "s"),),
    )
    assert alternatives(["a"], {"y": {"z": None}, "l": ["p", "q"], "x": [1]}) == (
        (term("a", "y.z", None), term("a", "l[]", "p"), term("a", "l[]", "q")),
    )


@pytest.mark.parametrize(
    "one",
    [
        Filter(payload=[{"x": 1}]),
        Filter(types=["a"]),
        Filter(types=["c"], payload=[{"x": 1}]),
        Filter(types=["a", "c"], payload=[{"x": 1}]),
        Filter(types=["a"], payload=[{"x": 1}, {"q": 1}]),
        Filter(types=["a"], payload=[{"x": [1]}]),
        Filter(types=["a"], payload=[{"x": 1}], streams=[("s", "1")]),
        Filter(types=["a"], payload=[1, {}, [], {"x": {}}]),
        Filter(types=["a", "b"], payload=[{"x": n} for n in range(MAX_ALTERNATIVES)]),
    ],
)
def test_without_terms(one: Filter) -> None:
    """D3: where some alternative has no term, types, streams or tags must do."""
    assert found(one) == [AccessPath(one, 0, 100)]


def test_tags_go_with_terms() -> None:
    """D2: all tags are required in addition to other keys."""
    tags = tag_key("t", "p"), tag_key("t", "q")
    assert alternatives(["a"], {"x": 1}, tags=["p", "q", "p"]) == ((*tags, term("a", "x", 1)),)
    assert alternatives(["c"], {"x": 1}, tags=["p", "q"]) == (tags,)
    assert found(Filter(tags=["p"]), NO_RULES)[0].key_alternatives == (tags[:1],)


def test_exact_routes_need_no_matcher() -> None:
    """D3: where keys say all that a filter does, nothing else is looked at."""
    assert proven(tags=["p", "q"])
    assert not proven(tags=["p"], types=["a"])
    assert not proven(tags=["p"], payload=[{"x": 1}])
    assert not proven(tags=["p"], streams=[("s", "1")])
    whole: list[Any] = [{"x": 1}, {"y": {"z": 1}, "x": 1}, {"l": ["p", "q", "q"]}]
    for predicate in whole:
        assert proven(types=["a"], payload=[predicate])
        assert proven(types=["a"], payload=[predicate, {"x": 2}], tags=["p"])
        assert not proven(types=["a"], payload=[predicate, {"x": 2, "other": 1}])
    parts: list[Any] = [{"x": 1, "o": {}}, {"x": 1, "l": []}, {"l": list(range(MAX_TERMS + 1))}]
    for predicate in parts:
        assert not proven(types=["a"], payload=[predicate])


def test_many_scalars() -> None:
    """K3: a few keys select candidates, and the matcher tests the rest."""
    [keys] = alternatives(["a"], {"l": list(range(100))})
    assert keys == tuple(term("a", "l[]", number) for number in range(MAX_TERMS))


def test_empty_side_and_empty_query() -> None:
    """D2: an empty side matches nothing; no filters match everything."""
    for one in (Filter(types=[]), Filter(payload=[]), Filter(tags=[]), Filter(streams=[])):
        assert found(one) == []
    assert plan_query("t", Query(), RULES, 3, 9) == [AccessPath(Filter(), 3, 9)]


def test_index_covers_events_after_its_declaration() -> None:
    """A8: older events are found without the index."""
    filter_ = Filter(types=["late"], payload=[{"x": 1, "y": 2}])
    x, y = term("late", "x", 1), term("late", "y", 2)

    assert found(filter_) == [
        AccessPath(filter_, 20, 100, ((x, y),), exact=True),
        AccessPath(filter_, 10, 20, ((x,),)),
        AccessPath(filter_, 0, 10),
    ]
    assert plan_query("t", Query([filter_]), RULES, 10, 20) == [
        AccessPath(filter_, 10, 20, ((x,),))
    ]
    assert plan_query("t", Query([filter_]), RULES, 20, 30) == [
        AccessPath(filter_, 20, 30, ((x, y),), exact=True)
    ]
    assert plan_query("t", Query([filter_]), RULES, 0, 10) == [AccessPath(filter_, 0, 10)]
    mixed = Filter(types=["late", "a"], payload=[{"x": 1}])
    assert found(mixed) == [
        AccessPath(mixed, 10, 100, ((x,), (term("a", "x", 1),)), exact=True),
        AccessPath(mixed, 0, 10),
    ]


@pytest.mark.parametrize(
    ("sides", "index"),
    [
        ({"types": ["a"], "payload": [{"x": 1}]}, "payload"),
        ({"types": ["a"], "payload": [{"x": 1}], "tags": ["u"]}, "payload"),
        ({"types": ["a"], "tags": ["u", "u", "v"]}, "tag"),
        ({"types": ["a"], "payload": [{"q": 1}]}, "type"),
        ({"streams": [("order", "7")], "types": ["a"]}, "stream"),
        ({"types": ["*"], "payload": [{"x": 1}]}, "tenant"),
        ({}, "tenant"),
    ],
)
def test_the_index_of_an_access_path(sides: dict[str, Any], index: str) -> None:
    """D3: an access path names the index that finds its candidates."""
    [route] = found(Filter(**sides))
    assert route.index == index

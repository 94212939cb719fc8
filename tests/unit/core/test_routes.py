"""The index keys by which the matches of a query are found."""

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


def access_paths(one: Filter, rules: Rules = RULES) -> list[AccessPath]:
    """Return the access paths of one filter over a log of 100 events."""
    return plan_query("t", Query([one]), rules, 0, 100)


def key_alternatives(types: Any, *payload: Any, tags: Sequence[str] | None = None) -> Any:
    """Return the key alternatives of the only access path of a filter."""
    [route] = access_paths(Filter(types=types, payload=payload, tags=tags))
    return route.key_alternatives


def is_exact(**sides: Any) -> bool:
    """Return whether the keys of a filter imply that it matches."""
    [route] = access_paths(Filter(**sides))
    assert route.key_alternatives
    return route.exact


def term(event_type: str, path: str, scalar: Any) -> bytes:
    """Return the index key of a scalar at a path."""
    return term_key("t", event_type, path, scalar)


@pytest.mark.parametrize(
    ("query_filter", "index"),
    [
        (Filter(correlation_id="c", causation_id="d", actor_id="p"), "correlation"),
        (Filter(causation_id="", types=["a"], payload=[{"x": 1}]), "causation"),
        (Filter(actor_id="p", types=["q"]), "actor"),
        (Filter(actor_id="p", streams=[("s", "1")]), "stream"),
        (Filter(actor_id="p", tags=["t"]), "tag"),
    ],
)
def test_related_ids_choose_the_index(query_filter: Filter, index: str) -> None:
    """E7: a related id is found by its index; an actor by streams or tags, if there are any."""
    [route] = access_paths(query_filter)

    assert route.index == index
    assert not route.exact


def test_tags_are_conditions_beside_a_related_id() -> None:
    """E7: along the index of an id, the keys of tags are conditions and not the way."""
    [route] = access_paths(Filter(correlation_id="c", tags=["t", "u", "t"]))

    assert route.key_alternatives == ()
    assert route.tag_keys == (tag_key("t", "t"), tag_key("t", "u"))


def test_each_alternative_has_term_keys() -> None:
    """D2, D3: each type and predicate has the keys of all declared paths."""
    assert key_alternatives(["a"], {"x": 1}) == ((term("a", "x", 1),),)
    assert key_alternatives(["a", "b", "a"], {"x": 1, "q": 2}, {"x": "s"}) == (
        (term("a", "x", 1),),
        (term("a", "x", "s"),),
        (term("b", "x", 1),),
        (term("b", "x", "s"),),
    )
    assert key_alternatives(["a"], {"y": {"z": None}, "l": ["p", "q"], "x": [1]}) == (
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
def test_alternatives_without_terms(one: Filter) -> None:
    """D3: a filter with an alternative without a term uses no term keys."""
    assert access_paths(one) == [AccessPath(one, 0, 100)]


def test_tags_are_added_to_terms() -> None:
    """D2: all tags of a filter are required in addition to its terms."""
    tags = tag_key("t", "p"), tag_key("t", "q")
    assert key_alternatives(["a"], {"x": 1}, tags=["p", "q", "p"]) == ((*tags, term("a", "x", 1)),)
    assert key_alternatives(["c"], {"x": 1}, tags=["p", "q"]) == (tags,)
    assert access_paths(Filter(tags=["p"]), NO_RULES)[0].key_alternatives == (tags[:1],)


def test_exact_access_paths() -> None:
    """D3: an access path is exact if its keys imply the whole filter."""
    assert is_exact(tags=["p", "q"])
    assert not is_exact(tags=["p"], types=["a"])
    assert not is_exact(tags=["p"], payload=[{"x": 1}])
    assert not is_exact(tags=["p"], streams=[("s", "1")])
    whole: list[Any] = [{"x": 1}, {"y": {"z": 1}, "x": 1}, {"l": ["p", "q", "q"]}]
    for predicate in whole:
        assert is_exact(types=["a"], payload=[predicate])
        assert is_exact(types=["a"], payload=[predicate, {"x": 2}], tags=["p"])
        assert not is_exact(types=["a"], payload=[predicate, {"x": 2, "other": 1}])
    parts: list[Any] = [{"x": 1, "o": {}}, {"x": 1, "l": []}, {"l": list(range(MAX_TERMS + 1))}]
    for predicate in parts:
        assert not is_exact(types=["a"], payload=[predicate])


def test_term_keys_are_bounded() -> None:
    """K3: a predicate with many scalars uses a bounded number of keys."""
    [keys] = key_alternatives(["a"], {"l": list(range(100))})
    assert keys == tuple(term("a", "l[]", number) for number in range(MAX_TERMS))


def test_empty_parts_and_empty_queries() -> None:
    """D2: an empty part matches nothing; a query without filters matches everything."""
    for one in (Filter(types=[]), Filter(payload=[]), Filter(tags=[]), Filter(streams=[])):
        assert access_paths(one) == []
    assert plan_query("t", Query(), RULES, 3, 9) == [AccessPath(Filter(), 3, 9)]


def test_index_covers_events_after_its_declaration() -> None:
    """A8: events before the declaration of an index are found without it."""
    filter_ = Filter(types=["late"], payload=[{"x": 1, "y": 2}])
    x, y = term("late", "x", 1), term("late", "y", 2)

    assert access_paths(filter_) == [
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
    assert access_paths(mixed) == [
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
    [route] = access_paths(Filter(**sides))
    assert route.index == index

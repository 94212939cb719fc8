"""Paths into payloads, and the index keys of their values."""

from typing import Any

import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import InvalidArgument
from seriatim.core.ids import tag_key
from seriatim.core.indexes import (
    PathSteps,
    PayloadIndex,
    StoredIndex,
    check_payload_index,
    format_path,
    index_keys,
    is_scalar_only,
    parse_path,
    required_scalars,
    resolve_index,
    term_key,
    term_keys,
)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("seat", ("seat",)),
        ("order.customer.id", ("order", "customer", "id")),
        ("items[].sku", ("items", None, "sku")),
        ("[]", (None,)),
        ("[].a[][]", (None, "a", None, None)),
        ('["a.b"].c', ("a.b", "c")),
        ('a["[]"][""]', ("a", "[]", "")),
        ('a["\\"\\\\é"]', ("a", '"\\é')),
        ("two words.#@$*é", ("two words", "#@$*é")),
    ],
)
def test_paths_are_parsed_and_formatted(path: str, steps: PathSteps) -> None:
    """A8: a path has keys joined by dots, [] for any element, and quoted odd keys."""
    assert parse_path(path) == steps
    assert format_path(steps) == path
    check_payload_index(PayloadIndex("seat.reserved", path))


def test_quotes_are_optional() -> None:
    """A8: a key that needs no quotes may have them."""
    assert parse_path('["a"]["b"]') == parse_path("a.b")
    assert format_path(parse_path('a["b"]["\\u0063"]')) == "a.b.c"


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", ".a", "a.", "a..b", "a[0]", "a[", "a]", "a[]b", "a.[]", '["a', '["a"]b', 'a"b"'),
        *('["\\x"]', '["\\u0000"]', '["\\ud800"]', "[b]", "a\0", "\ud800", "x" * 600, 1, None),
    ],
)
def test_invalid_paths_are_refused(path: Any) -> None:
    """A8: invalid paths are refused."""
    with pytest.raises(InvalidArgument) as caught:
        check_payload_index(PayloadIndex("seat.reserved", path))
    assert caught.value.details == {"argument": "path"}


def test_invalid_event_types_are_refused() -> None:
    """A8: the event type of an index is an id."""
    with pytest.raises(InvalidArgument) as caught:
        check_payload_index(PayloadIndex("", "seat"))
    assert caught.value.details == {"argument": "event_type"}


def test_stored_index_has_its_declaration() -> None:
    """A8: a stored index has its declaration and the position after which it applies."""
    stored = StoredIndex("a", 'x["y"]', 7)

    assert stored.declaration == PayloadIndex("a", 'x["y"]')
    path = resolve_index(stored)
    assert (path.steps, path.text, path.since) == (("x", "y"), "x.y", 7)


class _Float(float):
    def __repr__(self) -> str:
        return "a library's own"


SCALARS: list[list[Any]] = [
    *([None], [True], [False], [""], ["1"], ["True"], ["None"], ["é"], ["e\u0301"], ["a" * 5000]),
    *([0, 0.0, -0.0], [1, 1.0, _Float(1.0)], [0.1, _Float(0.1)], [-1, -1.0], [1e-7], [5e-324]),
    *([2**53, float(2**53)], [2**53 + 1], [10**23, 1e23], [10**23 + 1], [2**63], [10**400]),
    *([int(float(10**23))], [10**308, 1e308], [123456789012345680, 123456789012345678.0]),
]


def test_scalars_have_one_key() -> None:
    """D3: scalars share a key if and only if they are equal by JSON type and value."""
    keys = [{term_key("t", "a", "p", scalar) for scalar in same} for same in SCALARS]

    assert all(len(key) == 1 for key in keys)
    assert len(set.union(*keys)) == len(SCALARS)


def test_term_keys_differ_by_tenant_type_and_path() -> None:
    """A8: tenant, event type and path are part of a term key, which differs from tag keys."""
    keys = {
        term_key("t", "a", "p", "x"),
        term_key("u", "a", "p", "x"),
        term_key("t", "b", "p", "x"),
        term_key("t", "a", "q", "x"),
        tag_key("t", "a"),
        tag_key("t", "x"),
    }
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("path", "payload", "scalars"),
    [
        ("a", {"a": 1, "b": 2}, [1]),
        ("a", {"b": 1}, []),
        ("a", {"a": {"b": 1}}, []),
        ("a", {"a": [1]}, []),
        ("a", [1], []),
        ("a", "a", []),
        ("a.b", {"a": {"b": None}}, [None]),
        ("a.b", {"a": [{"b": 1}]}, []),
        ("a[]", {"a": [1, "x", 1.0, [2], {}]}, [1, "x"]),
        ("a[]", {"a": 1}, []),
        ("a[].b", {"a": [{"b": 1}, {"c": 2}, {"b": True}, 3]}, [1, True]),
        ("[][]", [[1], [2, [3]], 4], [1, 2]),
    ],
)
def test_terms_of_a_payload(path: str, payload: Any, scalars: list[Any]) -> None:
    """A8: each scalar at a path has one key; containers have none."""
    paths = [resolve_index(StoredIndex("e", path))]
    expected = tuple(term_key("t", "e", path, scalar) for scalar in scalars)
    assert term_keys("t", "e", paths, canonical_text(payload)) == expected


def test_required_scalars_of_a_predicate() -> None:
    """D3: the required scalars of a predicate are in every matching payload."""
    predicate = {"a": {"b": 1}, "c": ["x", {"d": None}, []], "e": {}, "f": ()}
    assert list(required_scalars(predicate)) == [
        (("a", "b"), 1),
        (("c", None), "x"),
        (("c", None, "d"), None),
    ]
    assert list(required_scalars("x")) == [((), "x")]


def test_index_keys_of_an_event() -> None:
    """A8: the index keys of an event are its tags and terms, each once."""
    assert index_keys("t", ["a", "b", "a"], [b"x"]) == (tag_key("t", "a"), tag_key("t", "b"), b"x")


def test_predicates_of_separate_scalars() -> None:
    """D3: a predicate with two scalars in one element is not a set of separate scalars."""
    plain: list[Any] = [1, {"a": 1, "b": {"c": None}}, {"a": [1, 2, [3]]}, {"a": [{"b": [1]}, 2]}]
    for predicate in plain:
        assert is_scalar_only(predicate)
    more: list[Any] = [{}, [], {"a": {}}, {"a": []}, {"a": [{"b": 1, "c": 2}]}, {"a": [[1, 2]]}]
    for predicate in (*more, {"a": [{"b": [1, 2]}]}, {"a": [{}]}, {"a": 1, "b": [[]]}):
        assert not is_scalar_only(predicate)

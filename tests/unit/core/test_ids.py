"""Ids, keys and their index representation."""

import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core import ids

IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

REFUSED = {
    None: "must be a string",
    7: "must be a string",
    b"a": "must be a string",
    "": "must not be empty",
    " a": "must not start or end with white space",
    "a ": "must not start or end with white space",
    "\ta": "must not start or end with white space",
    "a\n": "must not start or end with white space",
    "a\r": "must not start or end with white space",
    "\x0ba": "must not start or end with white space",
    "\x0ca": "must not start or end with white space",
    "a\0b": "must not contain control characters",
    "a\nb": "must not contain control characters",
    "a\x1bb": "must not contain control characters",
    "a\x7f": "must not contain control characters",
    "é\x80": "must not contain control characters",
    "\x9fa": "must not contain control characters",
    "\ud800": "must not contain lone surrogates",
    "a\udfffb": "must not contain lone surrogates",
    "x" * 513: "must not be longer than 512 bytes",
    "é" * 257: "must not be longer than 512 bytes",
    "🦆" * 129: "must not be longer than 512 bytes",
}
KEPT = ["a", "Foo", "foo/", "fo:o", "ｆoo", "a b", "\u00a0a", "a\u2003", "x" * 512, "é" * 256, "🦆"]


def test_ids_are_validated() -> None:
    """A4: invalid ids are refused with a reason; others are unchanged."""
    assert {value: ids.id_problem(value) for value in REFUSED} == REFUSED
    assert [ids.id_problem(value) for value in KEPT] == [None] * len(KEPT)


def test_idempotency_keys_are_validated() -> None:
    """C1: idempotency keys have 1 to 200 UTF-8 bytes and no NUL."""
    for value in (" ", "\n", "\x7f", "x" * 200, "é" * 100):
        assert ids.key_problem(value) is None
    refused: dict[Any, str] = {
        7: "must be a string",
        "": "must have 1 to 200 bytes",
        "x" * 201: "must have 1 to 200 bytes",
        "é" * 101: "must have 1 to 200 bytes",
        "a\0": "must not contain U+0000",
        "\ud800": "must not contain lone surrogates",
    }
    assert {value: ids.key_problem(value) for value in refused} == refused


def test_free_texts_are_validated() -> None:
    """A1: free texts have at most 512 bytes, no NUL and no surrogates."""
    for value in ("", " ", "\n", "x" * 512, "é" * 256):
        assert ids.text_problem(value) is None
    refused: dict[Any, str] = {
        7: "must be a string",
        "a\0": "must not contain U+0000",
        "é\ud800": "must not contain lone surrogates",
        "x" * 513: "must not be longer than 512 bytes",
        "é" * 257: "must not be longer than 512 bytes",
    }
    assert {value: ids.text_problem(value) for value in refused} == refused


@given(st.lists(st.none() | IDS, max_size=4), st.lists(st.none() | IDS, max_size=4))
def test_hash_keys_are_unique(one: Any, other: Any) -> None:
    """A4: hashed keys are equal only for equal parts, including absent ones."""
    assert (ids.hash_key(*one) == ids.hash_key(*other)) == (one == other)
    assert len(ids.hash_key(*one)) == 16


def test_separators_in_parts_do_not_collide() -> None:
    """A4: parts with separators do not collide, because lengths are hashed first."""
    keys = {
        ids.hash_key("ab", "c"),
        ids.hash_key("a", "bc"),
        ids.hash_key("a", "b", "c"),
        ids.hash_key("abc"),
        ids.hash_key("a", None, "bc"),
        ids.hash_key("a", "", "bc"),
        ids.hash_key("2:ab", "c"),
        ids.hash_key("-", "abc"),
        ids.hash_key(None, "abc"),
    }
    assert len(keys) == 9


def test_event_keys() -> None:
    """A4: a canonical UUID is its own key; any other spelling is another id."""
    text = "0190b5e2-89ab-7cde-8f01-23456789abcd"
    assert ids.event_key(text) == uuid.UUID(text).bytes
    others = [text.upper(), text.replace("-", ""), f"{{{text}}}", "e-1", "e-2", text[:-1] + "g"]
    assert len({ids.event_key(one) for one in (text, *others)}) == 7
    assert [ids.is_uuid(one) for one in (text, *others)] == [True] + [False] * 6


def test_index_keys_contain_tenant_and_parts() -> None:
    """C1: index keys contain the tenant; no producer differs from an empty one."""
    assert ids.stream_key("t", "a", "b") == ids.hash_key("t", "a", "b")
    assert ids.stream_key("t", "a", "b") != ids.stream_key("u", "a", "b")
    assert ids.idempotency_index_key("t", None, "k") != ids.idempotency_index_key("t", "", "k")
    assert ids.idempotency_index_key("t", "p", "k") == ids.hash_key("t", "p", "k")
    assert ids.tag_key("t", "x") == ids.hash_key("t", "x")


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_uuid7_contains_its_time(milliseconds: Any, randomness: Any) -> None:
    """A1: generated ids are UUIDs of version 7 that contain their time."""
    text = ids.uuid7(milliseconds, randomness)

    assert re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", text
    )
    number = uuid.UUID(text).int
    assert number >> 80 == milliseconds
    assert (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1 == randomness


@given(st.integers(0, 2**73), st.integers(1, 2**72))
def test_uuid7s_sort_by_time_and_number(randomness: Any, more: Any) -> None:
    """A1: generated ids sort by time, and within a millisecond by number."""
    assert ids.uuid7(5, randomness) < ids.uuid7(5, randomness + more) < ids.uuid7(6, 0)


@given(st.lists(IDS, min_size=1, max_size=4), st.lists(IDS, min_size=1, max_size=4))
def test_composed_keys_do_not_collide(one: Any, other: Any) -> None:
    """A4: composed keys are equal only for equal parts, and can be split again."""
    assert ids.split_key(ids.compose_key(*one)) == tuple(one)
    assert (ids.compose_key(*one) == ids.compose_key(*other)) == (one == other)


@pytest.mark.parametrize(
    ("parts", "key"), [(("a:b", "c"), "a%3Ab:c"), (("a", "b%3Ac"), "a:b%253Ac"), (("",), "")]
)
def test_composed_keys_are_readable(parts: Any, key: Any) -> None:
    """A4: separators in composed keys are percent-encoded."""
    assert ids.compose_key(*parts) == key


def test_derived_uuids_are_deterministic() -> None:
    """I9: equal parts give equal UUIDs, other parts others."""
    one = ids.derive_uuid("backfill", "a", "b")
    assert one == ids.derive_uuid("backfill", "a", "b")
    assert (
        len({one, ids.derive_uuid("backfill", "ab"), ids.derive_uuid("backfill", "a", None)}) == 3
    )
    assert ids.is_uuid(one)
    assert (one[14], one[19] in "89ab") == ("8", True)

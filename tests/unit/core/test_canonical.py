"""Canonical JSON: one text for each value, and refusal of values outside JSON."""

import json
from collections import OrderedDict
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.canonical import (
    HASH_PREFIX,
    canonical_text,
    check_and_encode,
    check_json,
    decode_stored_json,
    hash_text,
    parse_strict_json,
)
from seriatim.core.errors import LimitExceeded, ValidationError
from seriatim.core.limits import Limits

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


class Real(float):
    """A float of a library's own."""


class Level(IntEnum):
    """An integer by another name."""

    HIGH = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": 2, "c": 3}}, '{"a":{"c":3,"d":2},"b":1}'),
        ({"é": 1, "z": 2, "𝒜": 3, "ﬁ": 4}, '{"z":2,"é":1,"ﬁ":4,"𝒜":3}'),
        ([1, 1.0, 1e16, -0.0, 1e-7, 10**25], "[1,1.0,1e16,-0.0,1e-7,10000000000000000000000000]"),
        ('é\u2028\n"\\/', '"é\u2028\\n\\"\\\\/"'),
        ((1, [None, True, False]), "[1,[null,true,false]]"),
        (OrderedDict(b=Real(1.5), a=Level.HIGH), '{"a":3,"b":1.5}'),
    ],
)
def test_each_value_has_one_text(value: Any, text: Any) -> None:
    """A2: keys are sorted by code point, the text is compact, integers have any size."""
    assert canonical_text(value) == text
    assert check_and_encode(value) == text
    check_json(value)


@given(JSON)
def test_decoding_the_text_returns_the_value(value: Any) -> None:
    """A2: decoding a canonical text returns its value, and encoding that the same text."""
    text = check_and_encode(value)

    assert decode_stored_json(text) == value
    assert json.loads(text) == value
    assert canonical_text(decode_stored_json(text)) == text
    check_json(value)


def test_other_python_types_are_not_converted() -> None:
    """A2: a Python value that JSON does not have is not converted."""
    with pytest.raises(TypeError):
        canonical_text(1j)


def test_the_hash_of_a_text() -> None:
    """A1: the hash of a text is `sha256:` and the hex digest of its UTF-8 bytes."""
    expected = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert hash_text("{}") == HASH_PREFIX + expected
    assert hash_text('"é"') != hash_text('"e"')


WRONG = [
    (float("nan"), "$"),
    ([1, float("inf")], "$[1]"),
    ({"a": [float("-inf")]}, "$.a[0]"),
    ({"a": "x\0"}, "$.a"),
    ({"a": "\ud800"}, "$.a"),
    ({"a": {"\0": 1}}, "$.a"),
    ({"\udc00": 1}, "$"),
    ({"a": {1: 1}}, "$.a"),
    ({"a": b"x"}, "$.a"),
    ({"a": {1}}, "$.a"),
    ({"a": Decimal(1)}, "$.a"),
    ({"odd key": [1j]}, '$["odd key"][0]'),
    (Real("nan"), "$"),
]


@pytest.mark.parametrize(("value", "path"), WRONG)
def test_values_without_json_form_are_refused(value: Any, path: Any) -> None:
    """A2: a value without a JSON form is refused with its JSON path."""
    for act in (check_json, check_and_encode, lambda v: check_json(v, floats=False)):
        with pytest.raises(ValidationError) as caught:
            act(value)
        assert (caught.value.part, caught.value.location) == ("json", path)


def test_floats_are_refused_on_request() -> None:
    """A2: with floats=False a float is an invalid shape; invalid JSON is reported first."""
    check_json({"a": [1, "1.5", True, None]}, floats=False)
    with pytest.raises(ValidationError) as caught:
        check_json({"a": [1, 1.5]}, floats=False)
    assert (caught.value.part, caught.value.location) == ("shape", "$.a[1]")
    with pytest.raises(ValidationError) as caught:
        check_and_encode({"a": 1.5, "b": float("nan")}, floats=False)
    assert (caught.value.part, caught.value.location) == ("json", "$.b")


def nest(depth: Any, leaf: Any) -> Any:
    """Return a value of that depth, arrays and objects in turn."""
    value = leaf
    for number in range(depth - 1):
        value = [value] if number % 2 else {"d": value}
    return value


@pytest.mark.parametrize("leaf", [{}, [], [1], {"a": 1}, ()])
def test_depth_is_bounded(leaf: Any) -> None:
    """K3: 64 levels of containers are accepted, 65 are refused."""
    for act in (check_json, check_and_encode):
        act(nest(64, leaf))
        with pytest.raises(LimitExceeded) as caught:
            act(nest(65, leaf))
        assert caught.value.details == {"limit": "payload_depth", "bound": 64, "actual": 65}


def test_width_and_brackets_in_text_are_not_depth() -> None:
    """K3: the width of a value and brackets in strings do not count as depth."""
    wide = {"a": [{} for _ in range(200)], "b": "[{" * 200}

    assert decode_stored_json(check_and_encode(wide)) == wide


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_are_bounded_in_digits(sign: Any) -> None:
    """K3: integers have a bound in digits, exact at its edge."""
    short = Limits(integer_digits=30)
    for act in (check_json, check_and_encode):
        act([sign * 10**4299], limits=Limits())
        with pytest.raises(LimitExceeded) as caught:
            act([sign * 10**4300], limits=Limits())
        assert caught.value.details["limit"] == "integer_digits"
    check_json(sign * (10**30 - 1), limits=short)
    check_json(sign * 2**63, limits=short)
    with pytest.raises(LimitExceeded):
        check_json(sign * 10**30, limits=short)


def test_parsing_is_strict() -> None:
    """A2: repeated keys, NaN, trailing text and invalid UTF-8 are refused; integers are exact."""
    assert parse_strict_json('{"a": [1, 1.0, 123456789012345678901234567890, "\\u00e9"]}') == {
        "a": [1, 1.0, 123456789012345678901234567890, "é"]
    }
    for text, message in (
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the same key twice"),
        ("[NaN]", "not valid JSON"),
        ("-Infinity", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1] 2", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("1" * 5000, "not valid JSON"),
    ):
        with pytest.raises(ValidationError) as caught:
            parse_strict_json(text)
        assert (caught.value.part, caught.value.location) == ("json", "$")
        assert message in caught.value.message


def test_stored_text_is_decoded_exactly() -> None:
    """A2: long integers and large floats of stored text are decoded exactly."""
    long = 10**4000
    assert decode_stored_json(str(long)) == long
    assert decode_stored_json('{"a":1e400}') == {"a": float("inf")}

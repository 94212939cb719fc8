"""Predicates: their cost, and the equivalence of the fast and the reference matcher."""

from typing import Any

import pytest

from seriatim.core.errors import LimitExceeded
from seriatim.core.predicate import (
    MAX_MATCH_STEPS,
    PayloadDocument,
    compile_predicate,
    count_elements,
    count_values,
    matches_json,
    scalar_key,
    weaken_predicate,
)

MERSENNE = (1 << 61) - 1  # multiples of it share Python's hash


class Counter:
    """A `check` that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        """Count a call."""
        self.calls += 1


class CountingDocument(PayloadDocument):
    """A document that exposes the number of comparisons."""

    @property
    def steps(self) -> int:
        """Return the comparisons so far."""
        return self._steps


def count_comparisons(want: Any, have: Any) -> int:
    """Return the comparisons that a match takes."""
    document = CountingDocument.of(have)
    compile_predicate(want).matches(have, document)
    assert isinstance(document, CountingDocument)
    return document.steps


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (0, -0.0, True),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        (None, "null", False),
        (2**53, float(2**53), True),
        (2**60, float(2**60), False),
        (1152921504606847000, float(2**60), True),
        (10**23, 1e23, True),
        (int(1e23), 1e23, False),
        (0.1, 0.1, True),
        (0.1, 0.2, False),
        (-(10**40), -1e40, True),
    ],
)
def test_scalar_keys(one: Any, other: Any, same: Any) -> None:
    """D3: scalars share a key if and only if they are equal by JSON type and value."""
    assert (scalar_key(one) == scalar_key(other)) is same
    assert matches_json([one], [other, {}]) is same


@pytest.mark.parametrize(
    ("element", "wanted"),
    [
        (lambda n: f"text-{n}", lambda n: f"text-{n}"),
        (lambda n: n, float),
        (lambda n: n * MERSENNE, lambda n: n * MERSENNE),
        (lambda n: 10**400 + n, lambda n: 10**400 + n),
        (lambda n: {"k": n}, lambda n: {"k": n}),
        (lambda n: {"k": {"l": [n, "x"]}, "m": 1}, lambda n: {"m": 1, "k": {"l": [n]}}),
        (lambda n: [[n], "x"], lambda n: ["x", [n]]),
    ],
    ids=["texts", "numbers", "hashes", "digits", "members", "paths", "arrays"],
)
def test_comparisons_grow_linearly(element: Any, wanted: Any) -> None:
    """K3, D3: 32 times as many elements on both sides take about 32 times the comparisons."""
    small = count_comparisons([wanted(n) for n in range(10)], [element(n) for n in range(100)])
    large = count_comparisons([wanted(n) for n in range(320)], [element(n) for n in range(3200)])

    assert large <= 40 * small
    assert matches_json([wanted(n) for n in range(320)], [element(n) for n in range(3200)])
    assert not matches_json([wanted(n) for n in range(-3, 20)], [element(n) for n in range(3200)])


def test_predicates_share_the_index_of_an_array() -> None:
    """K3: predicates on the same payload share the index of an array."""
    have = {"a": [{"k": n} for n in range(1000)], "b": list(range(1000))}
    document = CountingDocument.of(have)
    for number in range(500):
        assert compile_predicate({"a": [{"k": number}], "b": [number]}).matches(have, document)

    assert isinstance(document, CountingDocument)
    assert document.steps < 20 * 1500


def test_comparisons_are_bounded() -> None:
    """K3: a comparison above the limit is refused, and the error names the limit."""
    terms = {"x": [{"p": 1, "q": 2}, {"p": 2, "q": 1}], "z": list(range(800))}
    have = [{**terms, "n": n} for n in range(300)] + [{**terms, "x": [{"p": 1, "q": 1}]}]
    want = [{"x": [{"p": 1, "q": 1}], "z": [n]} for n in range(800)]
    with pytest.raises(LimitExceeded, match="match_steps") as caught:
        matches_json(want, have)

    assert caught.value.details == {"limit": "match_steps", "bound": MAX_MATCH_STEPS}


def test_each_query_counts_from_zero() -> None:
    """K3: a document that serves several queries counts comparisons from zero for each."""
    document = PayloadDocument.of([])
    document.count_steps(MAX_MATCH_STEPS)
    document.reset_steps()
    document.count_steps(MAX_MATCH_STEPS)

    with pytest.raises(LimitExceeded):
        document.count_steps(1)


def test_cancellation_check_is_called_regularly() -> None:
    """K3: the cancellation check is called while parsing and while matching."""
    check = Counter()
    document = PayloadDocument("[" + ",".join(["[1]"] * 50_000) + "]", check)
    compile_predicate([[2], [3], [4], [5]]).matches(document.data, document)

    assert check.calls > 10

    quiet = PayloadDocument('{"a":1}', check)
    before = check.calls
    assert compile_predicate({"a": 1}).matches(quiet.data, quiet)
    assert check.calls == before + 1


def test_large_match_without_a_cancellation_check() -> None:
    """D3: a large match succeeds without a cancellation check."""
    assert matches_json([[n] for n in range(3000)], [[n] for n in range(3000)])


def test_values_are_counted() -> None:
    """K3: scalars and containers are counted, and counting stops soon after the bound."""
    assert count_values({"a": [1, {"b": None}], "c": ()}, 100) == 6
    assert count_values(1, 100) == 1
    assert count_values([0] * 1000, 10) == 11
    endless: list[Any] = []
    endless.append(endless)
    assert count_values(endless, 50) == 51
    assert count_elements({"a": [1, [2, 3]], "b": 4}) == 4
    assert count_elements("x") == 0


def test_weaker_predicates() -> None:
    """D3: a weakened predicate has at most the given number of elements."""
    want = {"a": [1, [2, 3], 4], "b": {"c": (5, 6)}, "d": 7}

    assert weaken_predicate(want, 4) == {"a": [1, [2], 4], "b": {"c": []}, "d": 7}
    assert weaken_predicate(want, 0) == {"a": [], "b": {"c": []}, "d": 7}
    assert count_elements(weaken_predicate(want, 3)) == 3
    assert weaken_predicate(want, 99) == {"a": [1, [2, 3], 4], "b": {"c": [5, 6]}, "d": 7}

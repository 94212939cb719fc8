"""Event type patterns: exact, prefix, or all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.errors import InvalidArgument
from seriatim.core.indexes import PayloadIndex, check_payload_index
from seriatim.core.patterns import NameFilter, escape_name, is_pattern, pattern_problem
from seriatim.core.query import Filter
from seriatim.core.query_plan import AccessPath


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        ("seat.held", ["seat.held"], ["seat.held.x", "seat", "Seat.held"]),
        ("seat.*", ["seat.held", "seat.", "seat.a.b", "seat.*"], ["seat", "seats.x", "a.seat.x"]),
        ("*", ["", "a", "*", "seat.held"], []),
        (r"seat.\*", ["seat.*"], ["seat.held", r"seat.\*"]),
        (r"\*", ["*"], ["a", r"\*"]),
        (r"a\\*", [r"a\*"], ["a*", r"a\\*", "a"]),
        (r"a\b", [r"a\b"], ["ab"]),
        (r"a\*.*", ["a*.x"], ["a.x", r"a\*.x"]),
    ],
)
def test_pattern_matching(text: str, allowed: list[str], refused: list[str]) -> None:
    """E7: a pattern matches exact names, a prefix or everything; a backslash escapes the star."""
    assert pattern_problem(text) is None
    names = NameFilter.parse([text])

    assert all(names.allows(one) for one in allowed)
    assert not any(names.allows(one) for one in refused)


@pytest.mark.parametrize("text", ["a*", "*.a", "a.*.b", "**", ".*", "a.**", r"a\*b*", r"\**"])
def test_a_misplaced_star_is_refused(text: str) -> None:
    """E7: a star elsewhere than at the end is refused."""
    assert not is_pattern(text)
    assert "only at its end" in (pattern_problem(text) or "")


@given(st.text(alphabet="a.*\\", min_size=1))
def test_every_name_has_a_pattern(name: str) -> None:
    """E7, A4: every name has a pattern that matches it alone."""
    written = escape_name(name)

    assert pattern_problem(written) is None
    assert NameFilter.parse([written]) == NameFilter((name,))
    assert NameFilter((name,)).to_patterns() == (written,)


@given(st.text(alphabet="a.*/\\\U0010ffff"), st.sampled_from(["a.", "a.a.", "\U0010ffff.", "."]))
def test_prefix_ranges_equal_prefixes(name: str, prefix: str) -> None:
    """E7: a name is in the range of a prefix if and only if it starts with it."""
    [(first, end)] = NameFilter((), (prefix,)).prefix_ranges()

    assert (first <= name < end) == name.startswith(prefix)


def test_a_payload_index_needs_one_type() -> None:
    """E7: a payload index on a pattern of types is refused."""
    with pytest.raises(InvalidArgument, match="without"):
        check_payload_index(PayloadIndex("seat.*", "n"))


def test_a_star_matches_everything() -> None:
    """E7: a star together with other names matches everything."""
    names = NameFilter.parse(["a", "*", "b.*"])

    assert names.matches_all
    assert names.to_patterns() == ("a", "*", "b.*")
    assert not NameFilter.parse(["a", "b.*"]).matches_all
    assert not is_pattern("")
    assert AccessPath(Filter(types=["*"]), 0, 1).types is None
    assert AccessPath(Filter(types=["a.*"]), 0, 1).types == NameFilter((), ("a.",))

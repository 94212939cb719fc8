"""The quick look for many literals finds exactly what plain searches find."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.needles import Cue, finder

LETTERS = "aks=-@x. "


@given(
    st.lists(st.builds(Cue, st.text(LETTERS, max_size=4), st.sampled_from(["", "[a-k]", "=?k"]))),
    st.text(LETTERS, max_size=30),
)
def test_finder_agrees_with_plain_searches(cues: list[Cue], text: str) -> None:
    """K1: the glance that spares clean events a walk misses nothing and invents nothing."""
    expected = any(re.search(re.escape(cue.literal) + cue.tail, text) for cue in cues)

    assert expected == finder(cues)(text)


@pytest.mark.parametrize(
    ("cue", "text", "found"),
    [
        (Cue("sk-"), "task-42", True),
        (Cue("sk-", "[a-z]{4}"), "task-42", False),
        (Cue("asia"), "in asia", True),
        (Cue("asia"), "in Asia", False),
        (Cue("is", "[0-9]"), "this is1", True),
        (Cue("is", "[0-9]"), "this is", False),
        (Cue("="), "a=b", True),
        (Cue(""), "", True),
    ],
)
def test_one_cue(cue: Cue, text: str, found: bool) -> None:
    """K1: a cue is a literal, by a rare character or plainly, and what must follow it."""
    assert found == finder([cue])(text)


def test_nothing_to_find() -> None:
    """K1: without cues nothing is found."""
    assert not finder([])("anything")

"""JSON paths: plain for simple keys, quoted for others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.json_path import ROOT, child, item


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("facts", "$.facts"),
        ("_private2", "$._private2"),
        ("odd key", '$["odd key"]'),
        ("", '$[""]'),
        ("2nd", '$["2nd"]'),
        ("a.b", '$["a.b"]'),
        ('say "hi"\n', r'$["say \"hi\"\n"]'),
        ("clé", r'$["cl\u00e9"]'),
        ("plain\n", r'$["plain\n"]'),
    ],
)
def test_odd_keys_are_quoted(key: str, path: str) -> None:
    """A2: keys that are no identifiers are quoted as JSON strings."""
    assert path == child(ROOT, key)


def test_items_have_their_index() -> None:
    """A2: items of a list have their index, from 0."""
    assert child(item(child(ROOT, "facts"), 0), "key") == "$.facts[0].key"


@given(st.lists(st.text() | st.integers(0, 9), max_size=4), st.lists(st.text(), max_size=4))
def test_paths_are_unique(one: list[str | int], other: list[str | int]) -> None:
    """A2: a path is ASCII and identifies one place, for any keys."""

    def path(steps: list[str | int]) -> str:
        path = ROOT
        for step in steps:
            path = item(path, step) if isinstance(step, int) else child(path, step)
        return path

    assert path(one).isascii()
    assert (path(one) == path(other)) == (one == other)

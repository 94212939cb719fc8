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
def test_keys_are_written_plainly_or_quoted(key: str, path: str) -> None:
    """A2: a refusal names its JSON path; an odd key is quoted as JSON quotes it."""
    assert path == child(ROOT, key)


def test_items_are_numbered() -> None:
    """A2: items of a list are named by their index, from 0."""
    assert child(item(child(ROOT, "facts"), 0), "key") == "$.facts[0].key"


@given(st.lists(st.text() | st.integers(0, 9), max_size=4), st.lists(st.text(), max_size=4))
def test_two_ways_never_share_a_path(one: list[str | int], other: list[str | int]) -> None:
    """A2: a path in ASCII identifies exactly one place, for any keys."""

    def path(steps: list[str | int]) -> str:
        path = ROOT
        for step in steps:
            path = item(path, step) if isinstance(step, int) else child(path, step)
        return path

    assert path(one).isascii()
    assert (path(one) == path(other)) == (one == other)

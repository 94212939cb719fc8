"""Tell quickly which rules cannot hit a text: what lets a guard scan every event.

To search a few hundred characters for a literal costs some 300 ns, for one character 30 ns. So a
literal is looked for at its rarest character, and all that have the same one share one look.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from seriatim.core.literal_tree import tree_pattern

T = TypeVar("T")
_Look = Callable[[str], object]
_BEGINNING = 2  # characters
_FEW = 2  # beginnings: with more of them one look at their anchor is cheaper than one at each

# Rarest first in lower-case JSON of programs and prose; others are searched plainly.
_RARE = "~|@+=qzjxkwvbg/"


class Literal(msgspec.Struct, frozen=True):
    """A literal in lower case that must stand in a text, and a pattern that must follow it."""

    text: str
    tail: str = ""


class Prefilter(Generic[T]):
    """Finds those of many rules of whose literals one stands in a text."""

    def __init__(self, rules: Iterable[tuple[T, Iterable[Literal]]]) -> None:
        shared: dict[str, dict[Literal, list[T]]] = {}
        for rule, literals in rules:
            for literal in literals:
                shared.setdefault(_anchor(literal.text), {}).setdefault(literal, []).append(rule)
        self._looks = tuple(
            (anchor, _look_at(anchor, held), _own_looks(held)) for anchor, held in shared.items()
        )

    def __call__(self, lower: str) -> list[T]:
        """Return the rules whose literals a text in lower case has."""
        suspected: list[T] = []
        for anchor, look, rules in self._looks:
            if anchor in lower and look(lower):
                suspected += [rule for rule, own in rules if own(lower) and rule not in suspected]
        return suspected


def _own_looks(held: dict[Literal, list[T]]) -> tuple[tuple[T, _Look], ...]:
    """Return a look for each rule's own literals: a rule tried in vain reads the whole text."""
    rules = dict.fromkeys(chain.from_iterable(held.values()))
    return tuple(
        (rule, _look_for([literal for literal in held if rule in held[literal]])) for rule in rules
    )


def _anchor(literal: str) -> str:
    """Return a literal's rarest character, or the word that it begins with."""
    word = re.match("[a-z]*", literal)
    first = literal if word is None else word.group() or literal
    rare = [c for c in literal if c in _RARE]
    # A last letter says nothing about what follows it: another one is looked at with less work.
    return min(
        rare, key=lambda c: (c.isalpha() and c not in literal[:-1], _RARE.index(c)), default=first
    )


def _look_at(anchor: str, literals: Collection[Literal]) -> _Look:
    """Return one look at an anchor: first what follows it, then what stood before."""
    beginnings = {literal.text[:_BEGINNING] for literal in literals}
    if len(beginnings) <= _FEW or all(literal.text.endswith(anchor) for literal in literals):
        return _look_for(literals)
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for literal in literals:
        before, _, after = literal.text.partition(anchor)
        behind = f"(?<={re.escape(literal.text)})" if before else ""
        shared[after, literal.tail].append(behind)
    entries = ((after, f"(?:{'|'.join(held)}){tail}") for (after, tail), held in shared.items())
    return re.compile(re.escape(anchor) + tree_pattern(entries)).search


def _look_for(literals: Iterable[Literal]) -> _Look:
    """Return a look for literals that searches for their common beginnings: `re` does it fast."""
    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for literal in literals:
        alike[literal.text[:_BEGINNING]].append((literal.text, literal.tail))
    searches = tuple(re.compile(tree_pattern(entries)).search for entries in alike.values())
    return searches[0] if len(searches) == 1 else lambda lower: any(s(lower) for s in searches)

"""Exclude quickly the rules that cannot match a text, so that a guard can scan every event.

Searching a few hundred characters for a literal costs about 300 ns, for one character 30 ns. So a
literal is searched by its rarest character, its anchor, and literals with the same anchor share one
search.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Generic, TypeVar

import msgspec


def tree_pattern(entries: Iterable[tuple[str, str]]) -> str:
    """Return a pattern that matches one of the literals, each followed by its own pattern.

    Args:
        entries: Pairs of a literal and the pattern that must follow it.
    """
    tails: list[str] = []
    by_first: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for literal, tail in entries:
        if literal:
            by_first[literal[0]].append((literal[1:], tail))
        else:
            tails.append(tail)
    same: dict[str, list[str]] = defaultdict(list)
    for first, rest in sorted(by_first.items()):
        same[tree_pattern(rest)].append(first)
    branches = [_one_of(firsts) + rest for rest, firsts in same.items()]
    branches += dict.fromkeys(tails)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _one_of(characters: list[str]) -> str:
    escaped = "".join(map(re.escape, characters))
    return escaped if len(characters) == 1 else f"[{escaped}]"


T = TypeVar("T")
_Search = Callable[[str], object]
_BEGINNING = 2  # characters
_FEW = 2  # beginnings: with more, one search for the anchor is cheaper than one for each

# Rarest first in lower-case JSON of programs and prose; other characters are not anchors.
_RARE = "~|@+=qzjxkwvbg/"


class Literal(msgspec.Struct, frozen=True):
    """A lower-case literal that a text must contain, and a pattern that must follow it."""

    text: str
    tail: str = ""


class Prefilter(Generic[T]):
    """Find the rules that have a literal in a text."""

    def __init__(self, rules: Iterable[tuple[T, Iterable[Literal]]]) -> None:
        shared: dict[str, dict[Literal, list[T]]] = {}
        for rule, literals in rules:
            for literal in literals:
                shared.setdefault(_anchor(literal.text), {}).setdefault(literal, []).append(rule)
        self._searches = tuple(
            (anchor, _search_by_anchor(anchor, by_literal), _own_searches(by_literal))
            for anchor, by_literal in shared.items()
        )

    def __call__(self, lower: str) -> list[T]:
        """Return the rules that have a literal in a lower-case text."""
        suspected: list[T] = []
        for anchor, search, rules in self._searches:
            if anchor in lower and search(lower):
                suspected += [
                    rule for rule, has_own in rules if has_own(lower) and rule not in suspected
                ]
        return suspected


def _own_searches(by_literal: dict[Literal, list[T]]) -> tuple[tuple[T, _Search], ...]:
    """Return a search for each rule's own literals; running the rule itself would cost more."""
    rules = dict.fromkeys(chain.from_iterable(by_literal.values()))
    return tuple(
        (rule, _search_for_any([literal for literal in by_literal if rule in by_literal[literal]]))
        for rule in rules
    )


def _anchor(literal: str) -> str:
    """Return a literal's rarest character, or the word that it begins with."""
    word = re.match("[a-z]*", literal)
    first = literal if word is None else word.group() or literal
    rare = [c for c in literal if c in _RARE]
    # Prefer a letter that is not the last one: what follows it excludes most occurrences.
    return min(
        rare, key=lambda c: (c.isalpha() and c not in literal[:-1], _RARE.index(c)), default=first
    )


def _search_by_anchor(anchor: str, literals: Collection[Literal]) -> _Search:
    """Return one search by an anchor: it checks what follows the anchor, then what precedes it."""
    beginnings = {literal.text[:_BEGINNING] for literal in literals}
    if len(beginnings) <= _FEW or all(literal.text.endswith(anchor) for literal in literals):
        return _search_for_any(literals)
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for literal in literals:
        before, _, after = literal.text.partition(anchor)
        lookbehind = f"(?<={re.escape(literal.text)})" if before else ""
        shared[after, literal.tail].append(lookbehind)
    entries = (
        (after, f"(?:{'|'.join(lookbehinds)}){tail}")
        for (after, tail), lookbehinds in shared.items()
    )
    return re.compile(re.escape(anchor) + tree_pattern(entries)).search


def _search_for_any(literals: Iterable[Literal]) -> _Search:
    """Return a search for literals by their common beginnings, which `re` finds quickly."""
    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for literal in literals:
        alike[literal.text[:_BEGINNING]].append((literal.text, literal.tail))
    searches = tuple(re.compile(tree_pattern(entries)).search for entries in alike.values())
    return searches[0] if len(searches) == 1 else lambda lower: any(s(lower) for s in searches)

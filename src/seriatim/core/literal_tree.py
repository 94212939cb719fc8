"""Patterns for many literals that read each character of a text once.

Python's `re` tries the branches of an alternation one after another. In a tree, literals with the
same beginning share its branches, so an occurrence of that beginning costs few steps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable


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

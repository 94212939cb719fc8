"""Find tokens of many families in one pass: the guard's fast path for prefixed credentials.

A token is a long run of letters, digits and `_.~-`, and ordinary events hardly have such a run. So
the text is reduced to its runs by calls that cost about a nanosecond for a character, and only the
words of long runs are compared with the prefixes. UUIDs are the usual long run and are skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from seriatim.core.guard_tokens import Family
from seriatim.core.literal_tree import tree_pattern

SHORTEST = 18  # characters: no known family has a shorter token

_HEAD = 3  # the characters of a prefix's first word by which families are looked up
_FEW = 16  # heads found in a run: with more of them one pattern for all families is cheaper


_ALNUM = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_RUNS = bytes(97 if code in _ALNUM or code in b"_.~-" else 32 for code in range(256))
_ONLY_RUNS = bytes(code if code in _ALNUM or code in b"_.~-" else 32 for code in range(256))
_WORDS = bytes(code if code in _ALNUM else 32 for code in range(256))
_RUN = b"a" * SHORTEST
_STEP = 6  # a run has three characters of every sixth, which are quickly looked at
_SAMPLE = b"a" * (SHORTEST // _STEP)
_SPARSE = 64  # characters to a long run: with more of them it is cheaper to split the text
_SHORT_TEXT = 4096
_find_runs = re.compile(_RUN + b"a*+").finditer
_UUID = 36
_DASH = ord("-")


def head_of(prefix: str) -> str:
    """Return the first characters of a prefix's first word."""
    match = re.match(f"[A-Za-z0-9]{{1,{_HEAD}}}", prefix)
    if match is None:
        msg = f"the prefix {prefix!r} begins with no letter or digit"
        raise ValueError(msg)
    return match.group()


class TokenFinder:
    """Finds a token of one of several families in a text."""

    def __init__(self, families: Sequence[Family]) -> None:
        by_head: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for family in families:
            for prefix in family.prefixes:
                head = head_of(prefix)
                by_head[head].append((prefix[len(head) :], family.body))
        self._named = tuple((family.name, re.compile(family.pattern).match) for family in families)
        # The head comes first, so that `re` searches for a literal; then what stood before it.
        patterns = {
            head: f"{head}(?<![A-Za-z0-9]{head}){tree_pattern(rest)}"
            for head, rest in by_head.items()
        }
        self._searches = {
            head.encode(): re.compile(pattern).search for head, pattern in patterns.items()
        }
        self._heads = frozenset(self._searches)
        whole = tree_pattern(
            (prefix, family.body) for family in families for prefix in family.prefixes
        )
        self._search = re.compile(f"(?<![A-Za-z0-9]){whole}").search

    def __call__(self, text: str) -> str | None:
        """Return the family of the first token that is found in the text."""
        raw = text.encode("latin-1", "replace")
        runs = raw.translate(_RUNS)
        if _SAMPLE not in runs[::_STEP]:
            return None
        held = _long_runs(raw, runs)
        if held and (found := self._first(held)):
            start = found.start()
            return next(name for name, match in self._named if match(found.string, start))
        return None

    def _first(self, runs: list[bytes]) -> re.Match[str] | None:
        """Return a token: look at the runs once, or once for each of few heads in them."""
        joined = b" ".join(runs)
        words = set(joined.translate(_WORDS).split())
        heads = self._heads.intersection([word[:_HEAD] for word in words])
        if not heads:
            return None
        text = joined.decode("latin-1")
        if len(heads) > _FEW:
            return self._search(text)
        for head in heads:
            if found := self._searches[head](text):
                return found
        return None


def _long_runs(raw: bytes, runs: bytes) -> list[bytes]:
    """Return the runs that are long enough to be a token, and no UUID."""
    if len(runs) > _SHORT_TEXT and runs.count(_RUN) * _SPARSE > len(runs):
        found: Iterable[bytes] = {*raw.translate(_ONLY_RUNS).split()}  # equal ones only once
        return [run for run in found if len(run) >= SHORTEST and not _is_uuid(run)]
    found = [raw[slice(*match.span())] for match in _find_runs(runs)]
    return [run for run in found if not _is_uuid(run)]


def _is_uuid(run: bytes) -> bool:
    """Tell whether a run is shaped like a UUID, the usual long run."""
    return len(run) == _UUID and run[8] == run[13] == run[18] == run[23] == _DASH

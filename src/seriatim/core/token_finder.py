"""Find tokens of many families in one pass: the guard's fast path for prefixed credentials.

A token is a long run of letters, digits and `_.~-`, and ordinary events hardly have such a run. So
the text is reduced to its runs by calls that cost about a nanosecond for a character, and only the
words of long runs are compared with the prefixes. UUIDs are the usual long run and are skipped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from seriatim.core.flat_text import Piece
from seriatim.core.guard_tokens import Family
from seriatim.core.literal_tree import tree_pattern

SHORTEST = 18  # characters: no known family has a shorter token

_HEAD = 3  # the characters of a prefix's first word by which families are looked up
_SAMPLED = 2048  # characters whose words tell which are frequent
_BRANCHED = 200  # characters: a longer pattern has many branches
_FREQUENT = 8  # a word is frequent if it is more than one of so many
_Search = Callable[..., re.Match[str] | None]

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
        by_start: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for family in families:
            for prefix in family.prefixes:
                start = _start_of(prefix)
                by_start[start].append((prefix[len(start) :], family.body))
        self._named = tuple((family.name, re.compile(family.pattern).match) for family in families)
        searches: dict[bytes, list[_Search]] = defaultdict(list)
        for start, rest in by_start.items():
            searches[head_of(start).encode()].append(_search_for(start, rest))
        self._searches = {**searches}
        self._heads = frozenset(searches)

    def __call__(self, piece: Piece) -> str | None:
        """Return the family of a token that begins in the piece."""
        raw = piece.text.encode("latin-1", "replace")
        runs = raw.translate(_RUNS)
        if _SAMPLE not in runs[::_STEP]:
            return None
        long_runs = _long_runs(raw, runs)
        if long_runs and (found := self._first(long_runs, piece)):
            start = found.start()
            return next(name for name, match in self._named if match(found.string, start))
        return None

    def _first(self, runs: Sequence[bytes], piece: Piece) -> re.Match[str] | None:
        """Return a token: search the runs of a piece for each start of a prefix in them."""
        joined = b" ".join(runs)
        heads = self._heads.intersection([word[:_HEAD] for word in _distinct_words(joined)])
        if not heads:
            return None
        text = joined.decode("latin-1")
        for head in heads:
            for search in self._searches[head]:
                found = search(text)
                if found and (found := _in_piece(search, found, runs, piece)):
                    return found
        return None


def _in_piece(
    search: _Search, found: re.Match[str], runs: Sequence[bytes], piece: Piece
) -> re.Match[str] | None:
    """Return the token in its piece, whose edge may look like its end in the runs."""
    if len(runs) == 1 and piece.text.find(found.string) + found.start() >= piece.end:
        return None  # the first token of the only run begins in the next piece
    token = search(piece.text, piece.begin)
    return token if token and token.start() < piece.end else None


def _start_of(prefix: str) -> str:
    """Return the head of a prefix, with the separator if one follows it."""
    head = head_of(prefix)
    following = prefix[len(head) : len(head) + 1]
    return head if following.isalnum() else head + following


def _search_for(start: str, rest: Iterable[tuple[str, str]]) -> _Search:
    """Return a search for prefixes that have the same start, each with the pattern of its body."""
    literal = re.escape(start)
    # The literal comes first, so that `re` searches for it; then the character before it.
    body = tree_pattern(rest)
    if len(body) > _BRANCHED:
        body = f"(?!{literal}){body}"  # a row of prefixes enters no branch
    return re.compile(f"{literal}(?<![A-Za-z0-9]{literal}){body}").search


def _distinct_words(runs: bytes) -> set[bytes]:
    """Return the words of runs; most occurrences of frequent words are removed before the split."""
    words = b" %b " % runs.translate(_WORDS)
    if len(words) < _SHORT_TEXT:
        return {*words.split()}
    sample = Counter(words[:_SAMPLED].split())
    least = sample.total() // _FREQUENT
    for word in [word for word, count in sample.items() if count > least]:
        alone = b" %b " % word
        # Neighbours share a space, so that each pass removes every other occurrence.
        words = words.replace(alone, b" ").replace(alone, b" ")
    return {*sample, *words.split()}


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

"""Find tokens of many families in one pass: the guard's fast path for prefixed credentials.

A token is a long run of letters, digits and `_.~-`, which ordinary events rarely contain. So the
text is reduced to its runs by calls that cost about a nanosecond per character, and only the words
of long runs are compared with the prefixes. UUIDs are the most common long runs and are skipped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from seriatim.core.flat_text import TextChunk
from seriatim.core.guard_tokens import TokenFamily
from seriatim.core.literal_prefilter import tree_pattern

MIN_TOKEN_CHARS = 18  # characters: no family has a shorter token

_HEAD = 3  # the characters of a prefix's first word by which families are looked up
_SAMPLED = 2048  # characters that are sampled for frequent words
_BRANCHED = 200  # characters: a longer pattern has many branches
_FREQUENT = 8  # a word is frequent if more than one in this many words is equal to it
_Search = Callable[..., re.Match[str] | None]

_ALNUM = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_RUNS = bytes(97 if code in _ALNUM or code in b"_.~-" else 32 for code in range(256))
_ONLY_RUNS = bytes(code if code in _ALNUM or code in b"_.~-" else 32 for code in range(256))
_WORDS = bytes(code if code in _ALNUM else 32 for code in range(256))
_RUN = b"a" * MIN_TOKEN_CHARS
_STEP = 6  # of every sixth character, a long enough run has three: a cheap first test
_SAMPLE = b"a" * (MIN_TOKEN_CHARS // _STEP)
_SPARSE = 64  # characters per long run: with more runs, splitting the text is cheaper
_SHORT_TEXT = 4096
_find_runs = re.compile(_RUN + b"a*+").finditer
_UUID = 36
_DASH = ord("-")


def prefix_head(prefix: str) -> str:
    """Return the first characters of the first word of a prefix."""
    match = re.match(f"[A-Za-z0-9]{{1,{_HEAD}}}", prefix)
    if match is None:
        msg = f"the prefix {prefix!r} must begin with a letter or digit"
        raise ValueError(msg)
    return match.group()


class TokenFinder:
    """Find a token of one of several families in a text."""

    def __init__(self, families: Sequence[TokenFamily]) -> None:
        by_start: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for family in families:
            for prefix in family.prefixes:
                start = _start_of(prefix)
                by_start[start].append((prefix[len(start) :], family.body))
        self._named = tuple((family.name, re.compile(family.pattern).match) for family in families)
        searches: dict[bytes, list[_Search]] = defaultdict(list)
        for start, rest in by_start.items():
            searches[prefix_head(start).encode()].append(_search_for(start, rest))
        self._searches = {**searches}
        self._heads = frozenset(searches)

    def __call__(self, chunk: TextChunk) -> str | None:
        """Return the name of the family of a token that starts in the chunk, or None."""
        raw = chunk.text.encode("latin-1", "replace")
        runs = raw.translate(_RUNS)
        if _SAMPLE not in runs[::_STEP]:
            return None
        long_runs = _long_runs(raw, runs)
        if long_runs and (found := self._first(long_runs, chunk)):
            start = found.start()
            return next(name for name, match in self._named if match(found.string, start))
        return None

    def _first(self, runs: Sequence[bytes], chunk: TextChunk) -> re.Match[str] | None:
        """Return a token of the chunk, after searching its runs for the prefixes that may occur."""
        joined = b" ".join(runs)
        heads = self._heads.intersection([word[:_HEAD] for word in _distinct_words(joined)])
        if not heads:
            return None
        text = joined.decode("latin-1")
        for head in heads:
            for search in self._searches[head]:
                found = search(text)
                if found and (found := _find_in_chunk(search, found, runs, chunk)):
                    return found
        return None


def _find_in_chunk(
    search: _Search, found: re.Match[str], runs: Sequence[bytes], chunk: TextChunk
) -> re.Match[str] | None:
    """Search a token that was found in the runs again in its chunk, with its surroundings."""
    if len(runs) == 1 and chunk.text.find(found.string) + found.start() >= chunk.end:
        return None  # the first token of the only run starts in the next chunk
    token = search(chunk.text, chunk.begin)
    return token if token and token.start() < chunk.end else None


def _start_of(prefix: str) -> str:
    """Return the head of a prefix, with the separator that follows it, if any."""
    head = prefix_head(prefix)
    following = prefix[len(head) : len(head) + 1]
    return head if following.isalnum() else head + following


def _search_for(start: str, rest: Iterable[tuple[str, str]]) -> _Search:
    """Return a search for prefixes with the same start, each with the pattern of its body."""
    literal = re.escape(start)
    # The literal comes first, so that `re` searches for it quickly; then the look at what precedes.
    body = tree_pattern(rest)
    if len(body) > _BRANCHED:
        body = f"(?!{literal}){body}"  # repeated prefixes enter no branch
    return re.compile(f"{literal}(?<![A-Za-z0-9]{literal}){body}").search


def _distinct_words(runs: bytes) -> set[bytes]:
    """Return the distinct words of runs; frequent words are removed before the split."""
    words = b" %b " % runs.translate(_WORDS)
    if len(words) < _SHORT_TEXT:
        return {*words.split()}
    sample = Counter(words[:_SAMPLED].split())
    least = sample.total() // _FREQUENT
    for word in [word for word, count in sample.items() if count > least]:
        alone = b" %b " % word
        # Neighbours share a space, so each pass removes only every other occurrence.
        words = words.replace(alone, b" ").replace(alone, b" ")
    return {*sample, *words.split()}


def _long_runs(raw: bytes, runs: bytes) -> list[bytes]:
    """Return the runs that are long enough for a token and are not UUIDs."""
    if len(runs) > _SHORT_TEXT and runs.count(_RUN) * _SPARSE > len(runs):
        found: Iterable[bytes] = {*raw.translate(_ONLY_RUNS).split()}  # a set: equal runs only once
        return [run for run in found if len(run) >= MIN_TOKEN_CHARS and not _is_uuid(run)]
    found = [raw[slice(*match.span())] for match in _find_runs(runs)]
    return [run for run in found if not _is_uuid(run)]


def _is_uuid(run: bytes) -> bool:
    """Return whether a run has the form of a UUID."""
    return len(run) == _UUID and run[8] == run[13] == run[18] == run[23] == _DASH

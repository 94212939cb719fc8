"""Find literals and tokens in the text of an event, in linear time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from seriatim.core.guard_tokens import TokenFamily

CHUNK_CHARS = 1 << 16  # characters that one call of `re` searches while it holds the GIL
LOOKAHEAD_CHARS = 1024  # characters: no built-in pattern extends further from its start
LOOKBEHIND_CHARS = 128  # characters: no built-in pattern looks further back

_CONTROLS = tuple(chr(code) for code in range(32) if code not in (1, 10))
_REPLACEMENTS = dict.fromkeys(range(32), "\n") | {ord('"'): "'", ord("\\"): "\x01"}


def flatten_json(text: str) -> str:
    """Convert canonical JSON to flat text; JSON without escapes is flat text already."""
    # Replace pairs of backslashes first: each remaining backslash begins an escape.
    text = text.replace("\\\\", "\x01").replace('\\"', "'")
    return _replace_controls(text) if "\\" in text else text


def _replace_controls(text: str) -> str:
    """Replace each escaped control character with a line break, and decode other escapes."""
    text = text.replace("\\n", "\n").replace("\\u0001", "\n")
    if "\\" in text:
        text = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
        for control in _CONTROLS:
            text = text.replace(control, "\n")
    return text


def flatten_string(text: str) -> str:
    """Convert one decoded string to flat text."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return text.translate(_REPLACEMENTS)


class TextChunk(msgspec.Struct, frozen=True, gc=False):
    """A part of a text with its surroundings; matches that start in [`begin`, `end`) belong to it.

    Matches that start outside belong to another chunk. The surroundings keep a pattern from taking
    the cut for the end of a word.
    """

    text: str
    begin: int
    end: int

    def lower(self) -> TextChunk:
        """Return the chunk in lower case; a character may become two, which moves the bounds."""
        if self.text.isascii():
            return TextChunk(self.text.lower(), self.begin, self.end)
        begin = len(self.text[: self.begin].lower())
        length = len(self.text[self.begin : self.end].lower())
        after = max(0, self.end - len(self.text))  # the last chunk ends one after the text
        return TextChunk(self.text.lower(), begin, begin + length + after)


def single_chunk(text: str) -> TextChunk:
    """Return a text as a single chunk."""
    return TextChunk(text, 0, len(text) + 1)


def split_chunks(text: str) -> Iterator[TextChunk]:
    """Split a text into chunks, so that other threads run between their scans."""
    if len(text) <= CHUNK_CHARS + LOOKAHEAD_CHARS:
        yield single_chunk(text)
        return
    for start in range(0, len(text), CHUNK_CHARS):
        before = max(0, start - LOOKBEHIND_CHARS)
        around = text[before : start + CHUNK_CHARS + LOOKAHEAD_CHARS]
        yield TextChunk(around, start - before, start - before + CHUNK_CHARS)


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


MIN_TOKEN_CHARS = 18  # characters: no family has a shorter token

_HEAD = 3  # the characters of a prefix's first word by which families are looked up
_SAMPLED = 2048  # characters that are sampled for frequent words
_BRANCHED = 200  # characters: a longer pattern has many branches
_FREQUENT = 8  # a word is frequent if more than one in this many words is equal to it
_PrefixSearch = Callable[..., re.Match[str] | None]

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
        searches: dict[bytes, list[_PrefixSearch]] = defaultdict(list)
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
    search: _PrefixSearch, found: re.Match[str], runs: Sequence[bytes], chunk: TextChunk
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


def _search_for(start: str, rest: Iterable[tuple[str, str]]) -> _PrefixSearch:
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

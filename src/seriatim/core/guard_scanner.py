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
        surrounded = text[before : start + CHUNK_CHARS + LOOKAHEAD_CHARS]
        yield TextChunk(surrounded, start - before, start - before + CHUNK_CHARS)


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
    firsts_by_rest: dict[str, list[str]] = defaultdict(list)
    for first, rest in sorted(by_first.items()):
        firsts_by_rest[tree_pattern(rest)].append(first)
    branches = [_build_character_class(firsts) + rest for rest, firsts in firsts_by_rest.items()]
    branches += dict.fromkeys(tails)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _build_character_class(characters: list[str]) -> str:
    escaped = "".join(map(re.escape, characters))
    return escaped if len(characters) == 1 else f"[{escaped}]"


T = TypeVar("T")
_Search = Callable[[str], object]
_BEGINNING_CHARS = 2  # characters
_BEGINNINGS_MAX = 2  # beginnings: with more, one search for the anchor is cheaper than one for each

# Rarest first in lower-case JSON of programs and prose; other characters are not anchors.
_RARE_CHARS = "~|@+=qzjxkwvbg/"


class Literal(msgspec.Struct, frozen=True):
    """A lower-case literal that a text must contain, and a pattern that must follow it."""

    text: str
    tail: str = ""


class Prefilter(Generic[T]):
    """Find the rules that have a literal in a text."""

    def __init__(self, rules: Iterable[tuple[T, Iterable[Literal]]]) -> None:
        by_anchor: dict[str, dict[Literal, list[T]]] = {}
        for rule, literals in rules:
            for literal in literals:
                by_literal = by_anchor.setdefault(_choose_anchor(literal.text), {})
                by_literal.setdefault(literal, []).append(rule)
        self._searches = tuple(
            (anchor, _build_anchor_search(anchor, by_literal), _build_rule_searches(by_literal))
            for anchor, by_literal in by_anchor.items()
        )

    def __call__(self, lower: str) -> list[T]:
        """Return the rules that have a literal in a lower-case text."""
        suspected: list[T] = []
        for anchor, search, rules in self._searches:
            if anchor in lower and search(lower):
                suspected += [
                    rule
                    for rule, search_own in rules
                    if search_own(lower) and rule not in suspected
                ]
        return suspected


def _build_rule_searches(by_literal: dict[Literal, list[T]]) -> tuple[tuple[T, _Search], ...]:
    """Return a search for each rule's own literals; running the rule itself would cost more."""
    rules = dict.fromkeys(chain.from_iterable(by_literal.values()))
    literals_of = {
        rule: [literal for literal in by_literal if rule in by_literal[literal]] for rule in rules
    }
    return tuple((rule, _build_literal_search(literals)) for rule, literals in literals_of.items())


def _choose_anchor(literal: str) -> str:
    """Return a literal's rarest character, or the word that it begins with."""
    word = re.match("[a-z]*", literal)
    first = literal if word is None else word.group() or literal
    rare = [char for char in literal if char in _RARE_CHARS]
    # Prefer a letter that is not the last one: what follows it excludes most occurrences.
    return min(
        rare,
        key=lambda char: (char.isalpha() and char not in literal[:-1], _RARE_CHARS.index(char)),
        default=first,
    )


def _build_anchor_search(anchor: str, literals: Collection[Literal]) -> _Search:
    """Return one search by an anchor: it checks what follows the anchor, then what precedes it."""
    beginnings = {literal.text[:_BEGINNING_CHARS] for literal in literals}
    if len(beginnings) <= _BEGINNINGS_MAX or all(
        literal.text.endswith(anchor) for literal in literals
    ):
        return _build_literal_search(literals)
    lookbehinds_by_rest: dict[tuple[str, str], list[str]] = defaultdict(list)
    for literal in literals:
        before, _, after = literal.text.partition(anchor)
        lookbehind = f"(?<={re.escape(literal.text)})" if before else ""
        lookbehinds_by_rest[after, literal.tail].append(lookbehind)
    entries = (
        (after, f"(?:{'|'.join(lookbehinds)}){tail}")
        for (after, tail), lookbehinds in lookbehinds_by_rest.items()
    )
    return re.compile(re.escape(anchor) + tree_pattern(entries)).search


def _build_literal_search(literals: Iterable[Literal]) -> _Search:
    """Return a search for literals by their common beginnings, which `re` finds quickly."""
    by_beginning: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for literal in literals:
        by_beginning[literal.text[:_BEGINNING_CHARS]].append((literal.text, literal.tail))
    searches = tuple(re.compile(tree_pattern(entries)).search for entries in by_beginning.values())
    if len(searches) == 1:
        return searches[0]
    return lambda lower: any(search(lower) for search in searches)


MIN_TOKEN_CHARS = 18  # characters: no family has a shorter token

_HEAD_CHARS = 3  # the characters of a prefix's first word by which families are looked up
_SAMPLE_CHARS = 2048  # characters that are sampled for frequent words
_BRANCHED_CHARS = 200  # characters: a longer pattern has many branches
_FREQUENT_DIVISOR = 8  # a word is frequent if more than one in this many words is equal to it
_PrefixSearch = Callable[..., re.Match[str] | None]

# `bytes.translate` classifies a text in one call: in `_RUNS` a token character is `a`, in
# `_ONLY_RUNS` and `_WORDS` it is itself, and every other character is a space.
_ALNUM = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_RUNS = bytes(97 if code in _ALNUM or code in b"_.~-" else 32 for code in range(256))
_ONLY_RUNS = bytes(code if code in _ALNUM or code in b"_.~-" else 32 for code in range(256))
_WORDS = bytes(code if code in _ALNUM else 32 for code in range(256))
_RUN = b"a" * MIN_TOKEN_CHARS
_STEP = 6  # of every sixth character, a long enough run has three: a cheap first test
_SAMPLE = b"a" * (MIN_TOKEN_CHARS // _STEP)
_SPARSE_CHARS = 64  # characters per long run: with more runs, splitting the text is cheaper
_SHORT_TEXT_CHARS = 4096
_find_runs = re.compile(_RUN + b"a*+").finditer
_UUID_CHARS = 36
_DASH = ord("-")


def prefix_head(prefix: str) -> str:
    """Return the first characters of the first word of a prefix."""
    match = re.match(f"[A-Za-z0-9]{{1,{_HEAD_CHARS}}}", prefix)
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
                start = _get_start(prefix)
                by_start[start].append((prefix[len(start) :], family.body))
        self._matchers = tuple(
            (family.name, re.compile(family.pattern).match) for family in families
        )
        searches: dict[bytes, list[_PrefixSearch]] = defaultdict(list)
        for start, rest in by_start.items():
            searches[prefix_head(start).encode()].append(_build_prefix_search(start, rest))
        self._searches = {**searches}
        self._heads = frozenset(searches)

    def __call__(self, chunk: TextChunk) -> str | None:
        """Return the name of the family of a token that starts in the chunk, or None."""
        # One byte per character, so that offsets in the bytes are offsets in the text.
        raw = chunk.text.encode("latin-1", "replace")
        runs = raw.translate(_RUNS)
        if _SAMPLE not in runs[::_STEP]:
            return None
        long_runs = _list_long_runs(raw, runs)
        if long_runs and (match := self._find_first_token(long_runs, chunk)):
            start = match.start()
            return next(
                name for name, match_family in self._matchers if match_family(match.string, start)
            )
        return None

    def _find_first_token(self, runs: Sequence[bytes], chunk: TextChunk) -> re.Match[str] | None:
        """Return a token of the chunk, after searching its runs for the prefixes that may occur."""
        joined = b" ".join(runs)
        heads = self._heads.intersection(
            [word[:_HEAD_CHARS] for word in _list_distinct_words(joined)]
        )
        if not heads:
            return None
        text = joined.decode("latin-1")
        for head in heads:
            for search in self._searches[head]:
                match = search(text)
                if match and (match := _find_in_chunk(search, match, runs, chunk)):
                    return match
        return None


def _find_in_chunk(
    search: _PrefixSearch, match: re.Match[str], runs: Sequence[bytes], chunk: TextChunk
) -> re.Match[str] | None:
    """Search a token that was found in the runs again in its chunk, with its surroundings."""
    if len(runs) == 1 and chunk.text.find(match.string) + match.start() >= chunk.end:
        return None  # the first token of the only run starts in the next chunk
    match_in_chunk = search(chunk.text, chunk.begin)
    return match_in_chunk if match_in_chunk and match_in_chunk.start() < chunk.end else None


def _get_start(prefix: str) -> str:
    """Return the head of a prefix, with the separator that follows it, if any."""
    head = prefix_head(prefix)
    following = prefix[len(head) : len(head) + 1]
    return head if following.isalnum() else head + following


def _build_prefix_search(start: str, rest: Iterable[tuple[str, str]]) -> _PrefixSearch:
    """Return a search for prefixes with the same start, each with the pattern of its body."""
    literal = re.escape(start)
    # The literal comes first, so that `re` searches for it quickly; then what precedes it.
    body = tree_pattern(rest)
    if len(body) > _BRANCHED_CHARS:
        body = f"(?!{literal}){body}"  # repeated prefixes enter no branch
    return re.compile(f"{literal}(?<![A-Za-z0-9]{literal}){body}").search


def _list_distinct_words(runs: bytes) -> set[bytes]:
    """Return the distinct words of runs; frequent words are removed before the split."""
    words = b" %b " % runs.translate(_WORDS)
    if len(words) < _SHORT_TEXT_CHARS:
        return {*words.split()}
    sample = Counter(words[:_SAMPLE_CHARS].split())
    threshold = sample.total() // _FREQUENT_DIVISOR
    for word in [word for word, count in sample.items() if count > threshold]:
        delimited = b" %b " % word
        # Neighbours share a space, so each pass removes only every other occurrence.
        words = words.replace(delimited, b" ").replace(delimited, b" ")
    return {*sample, *words.split()}


def _list_long_runs(raw: bytes, runs: bytes) -> list[bytes]:
    """Return the runs that are long enough for a token and are not UUIDs."""
    if len(runs) > _SHORT_TEXT_CHARS and runs.count(_RUN) * _SPARSE_CHARS > len(runs):
        # A set, because texts with many runs repeat them.
        candidates: Iterable[bytes] = {*raw.translate(_ONLY_RUNS).split()}
        return [run for run in candidates if len(run) >= MIN_TOKEN_CHARS and not _is_uuid(run)]
    candidates = [raw[slice(*match.span())] for match in _find_runs(runs)]
    return [run for run in candidates if not _is_uuid(run)]


def _is_uuid(run: bytes) -> bool:
    """Return whether a run has the form of a UUID."""
    return len(run) == _UUID_CHARS and run[8] == run[13] == run[18] == run[23] == _DASH

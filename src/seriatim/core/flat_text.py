"""Flat text: the form of JSON without escapes that the guard's patterns search.

In flat text `"` ends a string, `'` is a quote within one, U+0001 is a backslash, and a line break
is any control character. So a pattern sees decoded values and never matches across two strings.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

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

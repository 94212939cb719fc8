"""Flat text: the form of JSON without escapes that the guard's patterns search.

In flat text `"` ends a string, `'` is a quote within one, U+0001 is a backslash, and a line break
is any control character. So a pattern sees decoded values and never matches across two strings.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

PIECE = 1 << 16  # characters that one call of `re` searches while it holds the GIL
SPAN = 1024  # characters: no built-in pattern extends further from its start
BEFORE = 128  # characters: no built-in pattern looks further back

_CONTROLS = tuple(chr(code) for code in range(32) if code not in (1, 10))
_REPLACEMENTS = dict.fromkeys(range(32), "\n") | {ord('"'): "'", ord("\\"): "\x01"}


def flat_json(text: str) -> str:
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


def flat_string(text: str) -> str:
    """Convert one decoded string to flat text."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return text.translate(_REPLACEMENTS)


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a text with its surroundings; matches that start in [`begin`, `end`) belong to it.

    Matches that start outside belong to another chunk. The surroundings keep a pattern from taking
    the cut for the end of a word.
    """

    text: str
    begin: int
    end: int

    def lower(self) -> Piece:
        """Return the chunk in lower case; a character may become two, which moves the bounds."""
        if self.text.isascii():
            return Piece(self.text.lower(), self.begin, self.end)
        begin = len(self.text[: self.begin].lower())
        length = len(self.text[self.begin : self.end].lower())
        after = max(0, self.end - len(self.text))  # the last chunk ends one after the text
        return Piece(self.text.lower(), begin, begin + length + after)


def whole(text: str) -> Piece:
    """Return a text as a single chunk."""
    return Piece(text, 0, len(text) + 1)


def pieces(text: str) -> Iterator[Piece]:
    """Split a text into chunks, so that other threads run between their scans."""
    if len(text) <= PIECE + SPAN:
        yield whole(text)
        return
    for start in range(0, len(text), PIECE):
        before = max(0, start - BEFORE)
        around = text[before : start + PIECE + SPAN]
        yield Piece(around, start - before, start - before + PIECE)

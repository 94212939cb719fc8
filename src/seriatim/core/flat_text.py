"""Flat text: what the guard's patterns read instead of JSON with its escapes.

In it `"` ends a string, `'` is a quote within one, U+0001 a backslash, and a line break any control
character. So a pattern sees what a value holds, and cannot take two strings for one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

PIECE = 1 << 16  # characters that one call of `re` looks at while it holds the interpreter
SPAN = 1024  # characters: no built-in pattern looks further from where it begins
BEFORE = 128  # characters: none looks further back

_CONTROLS = tuple(chr(code) for code in range(32) if code not in (1, 10))
_PLAIN = dict.fromkeys(range(32), "\n") | {ord('"'): "'", ord("\\"): "\x01"}


def flat_json(text: str) -> str:
    """Return canonical JSON that has escapes as flat text; without escapes it is flat."""
    # Pairs of backslashes first: what is left of them begins an escape.
    text = text.replace("\\\\", "\x01").replace('\\"', "'")
    return _without_controls(text) if "\\" in text else text


def _without_controls(text: str) -> str:
    """Return a text with a line break for each control character, which it has as escapes."""
    text = text.replace("\\n", "\n").replace("\\u0001", "\n")
    if "\\" in text:
        text = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
        for control in _CONTROLS:
            text = text.replace(control, "\n")
    return text


def flat_string(text: str) -> str:
    """Return one string as flat text."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return text.translate(_PLAIN)


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a text with what stands around it; a match in it begins from `begin` to `end`.

    What begins outside is in another piece. So a cut is never taken for the end of a word.
    """

    text: str
    begin: int
    end: int

    def lower(self) -> Piece:
        """Return the piece in lower case, in which a character may become two."""
        if self.text.isascii():
            return Piece(self.text.lower(), self.begin, self.end)
        begin = len(self.text[: self.begin].lower())
        own = len(self.text[self.begin : self.end].lower())
        after = max(0, self.end - len(self.text))  # of a last piece, the end of the text
        return Piece(self.text.lower(), begin, begin + own + after)


def whole(text: str) -> Piece:
    """Return a text as one piece."""
    return Piece(text, 0, len(text) + 1)


def pieces(text: str) -> Iterator[Piece]:
    """Yield a text in pieces, so that other threads run between them."""
    if len(text) <= PIECE + SPAN:
        yield whole(text)
        return
    for start in range(0, len(text), PIECE):
        before = max(0, start - BEFORE)
        around = text[before : start + PIECE + SPAN]
        yield Piece(around, start - before, start - before + PIECE)

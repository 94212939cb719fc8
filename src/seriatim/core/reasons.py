"""What an error of a user's code said, in words that may be kept."""

from __future__ import annotations

from seriatim.core.guard import DEFAULT
from seriatim.core.values import text_flaw

_LONGEST = 500


def reason_of(error: BaseException) -> str:
    """Return an error's type and words, bounded, as every database can hold them; no secret."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it was written by a user
        said = "it does not say why"
    return kept_words(name, said)


def kept_words(name: str, said: str) -> str:
    """Return the type of an error and its words, bounded, as every database can hold them."""
    if DEFAULT.refuses(said):
        return f"{name}: its words are not kept, they look like a secret"
    return _fitting(f"{name}: {said}")


def kept_reason(text: str) -> str:
    """Return a reason that somebody else wrote down, bounded, as databases hold it; no secret."""
    if DEFAULT.refuses(text):
        return "its words are not kept, they look like a secret"
    return _fitting(text)


def _fitting(text: str) -> str:
    text = text[:_LONGEST]
    return text if text_flaw(text) is None else ascii(text)[1:-1][:_LONGEST]

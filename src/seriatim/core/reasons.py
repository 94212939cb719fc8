"""Summarize errors of user code for storage: bounded, storable and without secrets."""

from __future__ import annotations

from seriatim.core.guard import DEFAULT
from seriatim.core.values import text_flaw

_LONGEST = 500


def reason_of(error: BaseException) -> str:
    """Return an error's type and message in a form that can be stored.

    The message is truncated, and left out if it looks like a secret.
    """
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        message = "message not available"
    return kept_words(name, message)


def kept_words(name: str, message: str) -> str:
    """Return the name of an error's type and its message in a form that can be stored."""
    if DEFAULT.refuses(message):
        return f"{name}: message not stored because it looks like a secret"
    return _make_storable(f"{name}: {message}")


def kept_reason(text: str) -> str:
    """Return a reason written by a caller in a form that can be stored."""
    if DEFAULT.refuses(text):
        return "message not stored because it looks like a secret"
    return _make_storable(text)


def _make_storable(text: str) -> str:
    """Truncate a text, and escape it if a database cannot store it."""
    text = text[:_LONGEST]
    return text if text_flaw(text) is None else ascii(text)[1:-1][:_LONGEST]

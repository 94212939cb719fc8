"""Summarize errors of user code for storage: bounded, storable and without secrets."""

from __future__ import annotations

from seriatim.core.column_types import stored_text_problem
from seriatim.core.guard import DEFAULT_GUARD

_LONGEST = 500


def summarize_error(error: BaseException) -> str:
    """Return an error's type and message in a form that can be stored.

    The message is truncated, and left out if it looks like a secret.
    """
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        message = "message not available"
    return summarize_message(name, message)


def summarize_message(name: str, message: str) -> str:
    """Return the name of an error's type and its message in a form that can be stored."""
    if DEFAULT_GUARD.rejects(message):
        return f"{name}: message not stored because it looks like a secret"
    return _make_storable(f"{name}: {message}")


def sanitize_reason(text: str) -> str:
    """Return a reason written by a caller in a form that can be stored."""
    if DEFAULT_GUARD.rejects(text):
        return "message not stored because it looks like a secret"
    return _make_storable(text)


def _make_storable(text: str) -> str:
    """Truncate a text, and escape it if a database cannot store it."""
    text = text[:_LONGEST]
    return text if stored_text_problem(text) is None else ascii(text)[1:-1][:_LONGEST]

"""The column types of read models, and the normal form of their values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from seriatim.core.canonical import read_json, safe_text
from seriatim.core.errors import Flaw
from seriatim.core.times import format_us, instant_us

_INT_END = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _int(value: Any) -> int:
    if type(value) is not int or not -_INT_END <= value < _INT_END:
        raise _type_error("a 64-bit int", value)
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or value - value != 0:  # false for NaN and infinities
        raise _type_error("a finite float", value)
    try:
        return float(value) + 0.0  # SQLite has no negative zero
    except OverflowError:
        raise _type_error("a finite float", value) from None


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _type_error("a bool", value)
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise _type_error("a str", value)
    if value.isascii() and "\0" not in value:
        return value
    if problem := text_flaw(value):
        raise ValueError(problem)
    return value


def _datetime(value: Any) -> datetime:
    # Exactly a datetime: a subclass such as pandas' Timestamp may be finer than microseconds.
    if type(value) is not datetime or value.utcoffset() is None:
        raise _type_error("a datetime with a time zone", value)
    return value.astimezone(UTC)


def _dict(value: Any) -> str:
    if not isinstance(value, dict):
        raise _type_error("a dict", value)
    return _json(value)


def _list(value: Any) -> str:
    if not isinstance(value, list | tuple):
        raise _type_error("a list", value)
    return _json(value)


def _json(value: Any) -> str:
    try:
        return safe_text(value)
    except Flaw as problem:
        raise ValueError(str(problem)) from None


def text_flaw(text: str) -> str | None:
    """Return why a database cannot store a text, or None if it can."""
    if "\0" in text:
        return "text with U+0000 cannot be stored"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with lone surrogates cannot be stored"
    return None


def _type_error(expected: str, value: Any) -> TypeError:
    return TypeError(f"expected {expected}, got {type(value).__name__}")


def time_text(value: datetime) -> str:
    """Format a time as text, the form used in JSON, SQLite and digests."""
    return format_us((value - _EPOCH) // _MICROSECOND)


def text_time(text: str) -> datetime:
    """Parse a text made by `format_time`."""
    moment = instant_us(text)
    if moment is None:
        msg = f"{text!r:.80} is not a timestamp"
        raise ValueError(msg)
    return _EPOCH + moment * _MICROSECOND


def same(value: Any) -> Any:
    """Return the value unchanged, for types whose forms are the same."""
    return value


class Value(msgspec.Struct, frozen=True):
    """A column type: its name, and conversions between the forms of its values.

    A normalized value equals the value that a database returns, so that a fold sees the same state
    in memory and after a restart. JSON is normalized to text, which cannot be changed in place.

    Attributes:
        name: The name of the type in declarations.
        normalize: Checks a value from a fold and returns its normal form.
        to_python: Converts a normalized value to the value that a fold receives.
        to_json: Converts a normalized value to JSON.
        from_json: Converts a value from JSON to its normal form.
    """

    name: str
    keep: Callable[[Any], Any]
    given: Callable[[Any], Any] = same
    to_json: Callable[[Any], Any] = same
    from_json: Callable[[Any], Any] = same


VALUES: dict[Any, Value] = {
    str: Value("text", _str),
    int: Value("integer", _int),
    float: Value("float", _float),
    bool: Value("boolean", _bool),
    datetime: Value("time", _datetime, to_json=time_text, from_json=text_time),
    dict: Value("json", _dict, read_json),
    list: Value("json", _list, read_json),
}

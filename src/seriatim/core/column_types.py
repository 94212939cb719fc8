"""The column types of read models, and the normal form of their values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from seriatim.core.canonical import check_and_encode, decode_stored_json
from seriatim.core.errors import ValidationError
from seriatim.core.times import format_us, parse_us

_INT_END = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _normalize_int(value: Any) -> int:
    if type(value) is not int or not -_INT_END <= value < _INT_END:
        raise _type_error("a 64-bit int", value)
    return value


def _normalize_float(value: Any) -> float:
    if type(value) not in (int, float) or value - value != 0:  # false for NaN and infinities
        raise _type_error("a finite float", value)
    try:
        return float(value) + 0.0  # SQLite has no negative zero
    except OverflowError:
        raise _type_error("a finite float", value) from None


def _normalize_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _type_error("a bool", value)
    return value


def _normalize_str(value: Any) -> str:
    if type(value) is not str:
        raise _type_error("a str", value)
    if value.isascii() and "\0" not in value:
        return value
    if problem := stored_text_problem(value):
        raise ValueError(problem)
    return value


def _normalize_datetime(value: Any) -> datetime:
    # Exactly a datetime: a subclass such as pandas' Timestamp may be finer than microseconds.
    if type(value) is not datetime or value.utcoffset() is None:
        raise _type_error("a datetime with a time zone", value)
    return value.astimezone(UTC)


def _normalize_dict(value: Any) -> str:
    if not isinstance(value, dict):
        raise _type_error("a dict", value)
    return _encode_json(value)


def _normalize_list(value: Any) -> str:
    if not isinstance(value, list | tuple):
        raise _type_error("a list", value)
    return _encode_json(value)


def _encode_json(value: Any) -> str:
    try:
        return check_and_encode(value)
    except ValidationError as problem:
        raise ValueError(str(problem)) from None


def stored_text_problem(text: str) -> str | None:
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


def format_time(value: datetime) -> str:
    """Format a time as text, the form used in JSON, SQLite and digests."""
    return format_us((value - _EPOCH) // _MICROSECOND)


def parse_time(text: str) -> datetime:
    """Parse a text made by `format_time`; raise `ValueError` for any other text."""
    microseconds = parse_us(text)
    if microseconds is None:
        msg = f"{text!r:.80} is not a timestamp"
        raise ValueError(msg)
    return _EPOCH + microseconds * _MICROSECOND


def identity(value: Any) -> Any:
    """Return the value unchanged, for types whose forms are the same."""
    return value


class ColumnType(msgspec.Struct, frozen=True):
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
    normalize: Callable[[Any], Any]
    to_python: Callable[[Any], Any] = identity
    to_json: Callable[[Any], Any] = identity
    from_json: Callable[[Any], Any] = identity


COLUMN_TYPES: dict[Any, ColumnType] = {
    str: ColumnType("text", _normalize_str),
    int: ColumnType("integer", _normalize_int),
    float: ColumnType("float", _normalize_float),
    bool: ColumnType("boolean", _normalize_bool),
    datetime: ColumnType("time", _normalize_datetime, to_json=format_time, from_json=parse_time),
    dict: ColumnType("json", _normalize_dict, decode_stored_json),
    list: ColumnType("json", _normalize_list, decode_stored_json),
}

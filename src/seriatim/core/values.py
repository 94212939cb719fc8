"""What a column of a read model can hold, and the one form in which each value is kept."""

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
        raise _wrong("an int of 64 bits", value)
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or value - value != 0:  # NaN and infinities differ from 0
        raise _wrong("a finite float", value)
    try:
        return float(value) + 0.0  # SQLite knows no negative zero
    except OverflowError:
        raise _wrong("a finite float", value) from None


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong("a bool", value)
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise _wrong("a str", value)
    if value.isascii() and "\0" not in value:
        return value
    if problem := text_flaw(value):
        raise ValueError(problem)
    return value


def _datetime(value: Any) -> datetime:
    # Exactly a datetime: a library's own may be finer than the microseconds of a database.
    if type(value) is not datetime or value.utcoffset() is None:
        raise _wrong("a datetime with a time zone", value)
    return value.astimezone(UTC)


def _dict(value: Any) -> str:
    if not isinstance(value, dict):
        raise _wrong("a dict", value)
    return _json(value)


def _list(value: Any) -> str:
    if not isinstance(value, list | tuple):
        raise _wrong("a list", value)
    return _json(value)


def _json(value: Any) -> str:
    try:
        return safe_text(value)
    except Flaw as flaw:
        raise ValueError(str(flaw)) from None


def text_flaw(text: str) -> str | None:
    """Say why a database cannot hold a text, or None when it can."""
    if "\0" in text:
        return "text with U+0000 cannot be stored"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with lone surrogates cannot be stored"
    return None


def _wrong(wanted: str, value: Any) -> TypeError:
    return TypeError(f"wants {wanted}, got {type(value).__name__}")


def time_text(value: datetime) -> str:
    """Return a time as text: how JSON, SQLite and digests have it."""
    return format_us((value - _EPOCH) // _MICROSECOND)


def text_time(text: str) -> datetime:
    """Undo `time_text`."""
    moment = instant_us(text)
    if moment is None:
        msg = f"{text!r:.80} is no time"
        raise ValueError(msg)
    return _EPOCH + moment * _MICROSECOND


def same(value: Any) -> Any:
    """Return a value whose two forms are one."""
    return value


class Value(msgspec.Struct, frozen=True):
    """One type of column: its name, and the forms of its values.

    A kept value is what a database gives back, so a fold sees the same state whether it goes on
    in memory or after a restart. JSON is kept as text: nobody can change it by accident.
    """

    name: str
    keep: Callable[[Any], Any]
    given: Callable[[Any], Any] = same  # what a fold gets of a kept value
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

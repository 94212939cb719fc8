"""Filters that the log can answer itself, taken over from Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import datasource as ds

from seriatim.core.patterns import Names
from seriatim.pipeline.columns import EVENTS
from seriatim.pipeline.wanted import END, NAMED, Scan, Window

_TEXTS = {column: part for part, column in NAMED.items()}
_TIMES = {"occurred_at": "occurred", "recorded_at": "recorded"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pushed(msgspec.Struct, frozen=True):
    """A scan and its range of positions, as narrow as the filters made them."""

    scan: Scan
    after: int = 0
    until: int = END


def push(start: Pushed, filters: Iterable[ds.Filter]) -> tuple[Pushed, list[ds.Filter]]:
    """Narrow a read by what the log understands, and return the filters that Spark must keep."""
    pushed, kept = start, []
    for one in filters:
        narrower = _narrowed(pushed, one)
        if narrower is None:
            kept.append(one)
        else:
            pushed = narrower
    return pushed, kept


def _narrowed(pushed: Pushed, one: ds.Filter) -> Pushed | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(one, ds.IsNotNull):
        always = column in EVENTS.names and not EVENTS.field(column).nullable
        return pushed if always else None
    value = getattr(one, "value", None)
    if column in _TEXTS:
        return _by_text(pushed, _TEXTS[column], one, value)
    if column == "position":
        window = _window(one, value, _whole)
        if window is None:
            return None
        inside = Window(pushed.after, pushed.until).both(window)
        return Pushed(pushed.scan, max(inside.after or 0, 0), max(inside.until or 0, 0))
    if column in _TIMES:
        part = _TIMES[column]
        window = _window(one, value, _microseconds)
        if window is None:
            return None
        inside = getattr(pushed.scan, part).both(window)
        return _with(pushed, part, inside)
    return None


def _by_text(pushed: Pushed, part: str, one: ds.Filter, value: Any) -> Pushed | None:
    names: Names | None = None
    if isinstance(one, ds.EqualTo | ds.EqualNullSafe) and _is_text(value):
        names = Names((value,))
    elif isinstance(one, ds.In) and value and all(map(_is_text, value)):
        names = Names(tuple(value))
    elif isinstance(one, ds.StringStartsWith) and _is_text(value) and value:
        names = Names((), (value,))
    if names is None:
        return None
    return _with(pushed, part, names.both(getattr(pushed.scan, part)))


def _with(pushed: Pushed, part: str, value: Any) -> Pushed:
    scan = msgspec.structs.replace(pushed.scan, **{part: value})
    return msgspec.structs.replace(pushed, scan=scan)


def _is_text(value: object) -> bool:
    # What no database holds, no event has: Spark keeps such a filter.
    return isinstance(value, str) and "\0" not in value and not any(_surrogates(value))


def _surrogates(text: str) -> Iterator[str]:
    return (one for one in text if "\ud800" <= one <= "\udfff")


def _window(one: ds.Filter, value: Any, number_of: Any) -> Window | None:
    """Return the interval that a comparison leaves."""
    number: int | None = number_of(value)
    if number is None:
        return None
    match one:
        case ds.EqualTo() | ds.EqualNullSafe():
            return Window(number - 1, number)
        case ds.GreaterThan():
            return Window(number, None)
        case ds.GreaterThanOrEqual():
            return Window(number - 1, None)
        case ds.LessThan():
            return Window(None, number - 1)
        case ds.LessThanOrEqual():
            return Window(None, number)
    return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    gone = value - _EPOCH
    return (gone.days * 86_400 + gone.seconds) * 1_000_000 + gone.microseconds

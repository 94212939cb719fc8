"""Filter push-down: translate Spark's filters into filters of a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import datasource as ds

from seriatim.core.patterns import NameFilter
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.scan.options import MAX_POSITION, NAME_COLUMNS, Interval, ScanSpec

_NAME_FIELDS = {column: field for field, column in NAME_COLUMNS.items()}
_TIME_FIELDS = {"occurred_at": "occurred", "recorded_at": "recorded"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BoundedScan(msgspec.Struct, frozen=True):
    """A scan specification and the range of positions (after, until] to read."""

    scan: ScanSpec
    after: int = 0
    until: int = MAX_POSITION


def push_filters(
    start: BoundedScan, filters: Iterable[ds.Filter]
) -> tuple[BoundedScan, list[ds.Filter]]:
    """Narrow a scan by the filters that the log can apply itself.

    Args:
        start: The scan before the filters.
        filters: Filters that Spark combines by AND.

    Returns:
        The narrowed scan, and the filters that Spark must still apply.
    """
    pushed, remaining = start, []
    for condition in filters:
        narrowed = _narrow(pushed, condition)
        if narrowed is None:
            remaining.append(condition)
        else:
            pushed = narrowed
    return pushed, remaining


def _narrow(spec: BoundedScan, condition: ds.Filter) -> BoundedScan | None:
    """Return the narrowed scan, or None if only Spark can apply the filter."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(condition, ds.IsNotNull):
        # Always true for a column that is never null: nothing to filter.
        always_true = column in EVENT_SCHEMA.names and not EVENT_SCHEMA.field(column).nullable
        return spec if always_true else None
    value = getattr(condition, "value", None)
    if column in _NAME_FIELDS:
        return _narrow_names(spec, _NAME_FIELDS[column], condition, value)
    if column == "position":
        interval = _find_interval(condition, value, _to_integer)
        if interval is None:
            return None
        # Positions start at 1: a bound below them means an empty or an unbounded side.
        overlap = Interval(spec.after, spec.until).intersect(interval)
        return BoundedScan(spec.scan, max(overlap.after or 0, 0), max(overlap.until or 0, 0))
    if column in _TIME_FIELDS:
        field = _TIME_FIELDS[column]
        interval = _find_interval(condition, value, _to_microseconds)
        if interval is None:
            return None
        return _replace_field(spec, field, getattr(spec.scan, field).intersect(interval))
    return None


def _narrow_names(
    spec: BoundedScan, field: str, condition: ds.Filter, value: Any
) -> BoundedScan | None:
    names: NameFilter | None = None
    if isinstance(condition, ds.EqualTo | ds.EqualNullSafe) and _is_storable_text(value):
        names = NameFilter((value,))
    elif isinstance(condition, ds.In) and value and all(map(_is_storable_text, value)):
        names = NameFilter(tuple(value))
    elif isinstance(condition, ds.StringStartsWith) and _is_storable_text(value) and value:
        names = NameFilter((), (value,))
    if names is None:
        return None
    return _replace_field(spec, field, names.intersect(getattr(spec.scan, field)))


def _replace_field(spec: BoundedScan, field: str, value: Any) -> BoundedScan:
    scan = msgspec.structs.replace(spec.scan, **{field: value})
    return msgspec.structs.replace(spec, scan=scan)


def _is_storable_text(value: object) -> bool:
    # No database stores NUL or surrogates, and a statement cannot contain them: such a filter
    # stays with Spark, where it matches no event.
    return isinstance(value, str) and "\0" not in value and not _has_surrogates(value)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _find_interval(
    condition: ds.Filter, value: Any, to_number: Callable[[object], int | None]
) -> Interval | None:
    """Return the interval of numbers that satisfy a comparison, None if it has none."""
    number = to_number(value)
    if number is None:
        return None
    match condition:
        case ds.EqualTo() | ds.EqualNullSafe():
            return Interval(number - 1, number)
        case ds.GreaterThan():
            return Interval(number, None)
        case ds.GreaterThanOrEqual():
            return Interval(number - 1, None)
        case ds.LessThan():
            return Interval(None, number - 1)
        case ds.LessThanOrEqual():
            return Interval(None, number)
    return None


def _to_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _to_microseconds(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    elapsed = value - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds

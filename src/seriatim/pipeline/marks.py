"""Marks: a last row for each part of a read, which says what range it covered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from seriatim.pipeline.columns import EVENTS

MARK_TYPE = ""  # no event has it


def mark(columns: Sequence[str], after: int, until: int) -> pa.RecordBatch:
    """Make the row: `position` is the range's end, `append_position` the position before it."""
    known = {"position": until, "append_position": after, "event_type": MARK_TYPE}
    fields = [EVENTS.field(name) for name in columns]
    arrays = [pa.array([known.get(one.name, _neutral(one))], one.type) for one in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def covered(ranges: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the range that the marks of a whole read tell, None without any."""
    told = list(ranges)
    if not told:
        return None
    return min(after for after, _ in told), max(until for _, until in told)


def _neutral(field: pa.Field) -> object:
    if field.nullable:
        return None
    if pa.types.is_string(field.type):
        return "{}" if field.name == "payload" else ""
    return [] if pa.types.is_nested(field.type) else 0

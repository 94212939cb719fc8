"""Watermark rows: the last row of each partition of a read, which states the range it covered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from seriatim.pipeline.columns import EVENT_SCHEMA

# `foreachBatch` does not receive the range of its batch, and filters may leave a batch without
# events. The cursor of a projection moves by watermarks all the same.
WATERMARK_TYPE = ""  # the event type of a watermark; no event has an empty type


def make_watermark(columns: Sequence[str], after: int, until: int) -> pa.RecordBatch:
    """Return a batch with one watermark row for the range (after, until].

    Its `position` is the end of the range, and its `append_position` the position before it.
    """
    values = {"position": until, "append_position": after, "event_type": WATERMARK_TYPE}
    fields = [EVENT_SCHEMA.field(name) for name in columns]
    arrays = [
        pa.array([values.get(field.name, _get_neutral_value(field))], field.type)
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def find_covered_range(ranges: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the smallest range that contains the watermarks of a read, None without any."""
    covered = list(ranges)
    if not covered:
        return None
    return min(after for after, _ in covered), max(until for _, until in covered)


def _get_neutral_value(field: pa.Field) -> object:
    """Return a valid placeholder for a column that a watermark does not use."""
    if field.nullable:
        return None
    if pa.types.is_string(field.type):
        return "{}" if field.name == "payload" else ""
    return [] if pa.types.is_nested(field.type) else 0

"""Between record batches and records, a column at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.event import EventRecord
from seriatim.core.times import instant_us
from seriatim.pipeline.columns import EVENTS

_OWN_FORM = "%Y-%m-%dT%H:%M:%SZ"  # seconds come with their six digits


def records_of(batch: pa.RecordBatch) -> Iterator[EventRecord]:
    """Make the records of a batch; what was not read of them is None or empty."""
    return map(EventRecord, *(_values(batch, name) for name in EventRecord.__struct_fields__))


def _values(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if name == "occurred_at":
        return _occurred(batch)
    column = _column(batch, name)
    if name == "metadata":
        return _maps(column, batch.num_rows)
    if name == "tags":
        return repeat((), batch.num_rows) if column is None else _tuples(column)
    if column is None:
        return repeat(None, batch.num_rows)
    return _times(column) if name == "recorded_at" else column.to_pylist()


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column, None for one that was not read or holds nothing."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        return None
    column = batch.column(at)
    return None if column.null_count == batch.num_rows else column


def _occurred(batch: pa.RecordBatch) -> Iterable[str | None]:
    """Return the producer's own texts, and where there is none the time of recording."""
    text, recorded = _column(batch, "occurred_text"), _column(batch, "recorded_at")
    moments = recorded if recorded is not None else _column(batch, "occurred_at")
    if moments is None:
        return repeat(None, batch.num_rows) if text is None else text.to_pylist()
    if text is None:
        return _times(moments)
    return text.to_pylist() if text.null_count == 0 else _coalesced(text, moments)


def _coalesced(text: pa.Array, moments: pa.Array) -> list[str]:
    found: list[str] = pc.coalesce(text, _time_texts(moments)).to_pylist()
    return found


def _times(moments: pa.Array) -> list[str]:
    found: list[str] = _time_texts(moments).to_pylist()
    return found


def _time_texts(moments: pa.Array) -> pa.Array:
    return pc.strftime(moments.view(pa.timestamp("us")), format=_OWN_FORM)


def _maps(column: pa.Array | None, rows: int) -> Iterable[dict[str, str]]:
    if column is None or len(column.items) == 0:
        return ({} for _ in range(rows))
    return map(dict, column.to_pylist())


def _tuples(column: pa.Array) -> Iterable[tuple[str, ...]]:
    if len(column.values) == 0:
        return repeat((), len(column))
    return map(tuple, column.to_pylist())


def batch_of(records: Sequence[EventRecord]) -> pa.RecordBatch:
    """Make the batch of some records, in all columns of events."""
    arrays = [pa.array(_fields(records, name), EVENTS.field(name).type) for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def _fields(records: Sequence[EventRecord], name: str) -> list[Any]:
    match name:
        case "occurred_at" | "recorded_at":
            return [instant_us(getattr(one, name)) for one in records]
        case "occurred_text":
            same = ((one.occurred_at, one.recorded_at) for one in records)
            return [None if occurred == recorded else occurred for occurred, recorded in same]
        case "metadata":
            return [list(one.metadata.items()) for one in records]
        case _:
            return [getattr(one, name) for one in records]

"""Between record batches and records, a column at a time or packed into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from seriatim.core.event import EventRecord
from seriatim.core.times import format_us, instant_us
from seriatim.pipeline.columns import EVENTS

RECORD = "record"  # a column that holds whole records
_encode_into = msgspec.msgpack.Encoder().encode_into


class _Packed(EventRecord, frozen=True, array_like=True, gc=False):
    """A record whose packed form has no names."""


_decode = msgspec.msgpack.Decoder(_Packed).decode


def records_of(batch: pa.RecordBatch) -> Iterator[EventRecord]:
    """Make the records of a batch; what was not read of them is None or empty."""
    if RECORD in batch.schema.names:
        return map(_decode, batch.column(RECORD).to_pylist())
    return map(EventRecord, *_columns(batch))


def packed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return some columns of a batch, and the whole records in one more.

    Spark moves a row of few columns in a fraction of the time that one of all columns takes.
    """
    data, ends = bytearray(), [0]
    for values in zip(*_columns(batch), strict=False):  # some repeat themselves for ever
        _encode_into(values, data, -1)
        ends.append(len(data))
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(data)]
    records = pa.Array.from_buffers(pa.binary(), batch.num_rows, buffers)
    return batch.select(list(columns)).append_column(
        pa.field(RECORD, pa.binary(), nullable=False), records
    )


def _columns(batch: pa.RecordBatch) -> Iterator[Iterable[Any]]:
    return (_values(batch, name) for name in EventRecord.__struct_fields__)


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
    return [own or time for own, time in zip(text.to_pylist(), _times(moments), strict=True)]


def _times(moments: pa.Array) -> list[str]:
    """Write times; the events of one commit share theirs, so each is written once."""
    known = moments.view(pa.int64()).dictionary_encode()
    texts = [format_us(one) for one in known.dictionary.to_pylist()]
    return [texts[at] for at in known.indices.to_pylist()]


def _maps(column: pa.Array | None, rows: int) -> Iterable[dict[str, str]]:
    if column is None or len(column.items) == 0:
        return ({} for _ in range(rows))
    keys, values = column.keys.to_pylist(), column.items.to_pylist()
    return (dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in _bounds(column))


def _tuples(column: pa.Array) -> Iterable[tuple[str, ...]]:
    if len(column.values) == 0:
        return repeat((), len(column))
    values = column.values.to_pylist()
    return (tuple(values[a:b]) for a, b in _bounds(column))


def _bounds(column: pa.Array) -> Iterable[tuple[int, int]]:
    return pairwise(column.offsets.to_pylist())


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

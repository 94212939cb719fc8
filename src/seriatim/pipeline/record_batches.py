"""Conversion between Arrow record batches and event records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from seriatim.core.event import RECORD_COLUMNS, EventRecord
from seriatim.core.times import format_us, parse_us
from seriatim.pipeline.columns import EVENT_SCHEMA

RECORD_COLUMN = "record"  # name of the column that holds whole encoded records
_encode_into = msgspec.msgpack.Encoder().encode_into


# gc=False: records contain no cycles, and the collector would visit each of them.
class _EncodedRecord(EventRecord, frozen=True, array_like=True, gc=False):
    """A record whose MessagePack form is an array, without field names."""


_decode = msgspec.msgpack.Decoder(_EncodedRecord).decode


def decode_records(batch: pa.RecordBatch) -> Iterator[EventRecord]:
    """Yield the records of a batch.

    A batch with the column `record` is decoded from it; otherwise records are built from the
    columns, and fields whose columns were not read are None or empty.
    """
    if RECORD_COLUMN in batch.schema.names:
        return map(_decode, batch.column(RECORD_COLUMN).to_pylist())
    return map(EventRecord, *_get_columns(batch))


def pack_records(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return some columns of a batch, and a column with whole encoded records.

    Spark moves a row of few columns in a fraction of the time that a row of all columns takes.

    Args:
        batch: A batch with all columns of events.
        columns: The columns to keep beside the records.
    """
    # Hot path: all records are encoded into one buffer, which becomes the column without a copy.
    data, ends = bytearray(), [0]
    for values in zip(*_get_columns(batch), strict=False):
        _encode_into(values, data, -1)
        ends.append(len(data))
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(data)]
    records = pa.Array.from_buffers(pa.binary(), batch.num_rows, buffers)
    return batch.select(list(columns)).append_column(
        pa.field(RECORD_COLUMN, pa.binary(), nullable=False), records
    )


def _get_columns(batch: pa.RecordBatch) -> Iterator[Iterable[Any]]:
    return (_get_values(batch, name) for name in RECORD_COLUMNS)


def _get_values(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    """Return the values of a record's field, one for each row."""
    if name == "occurred_at":
        return _format_occurred(batch)
    column = _find_column(batch, name)
    if name == "metadata":
        return _build_dicts(column, batch.num_rows)
    if name == "tags":
        return repeat((), batch.num_rows) if column is None else _build_tuples(column)
    if column is None:
        return repeat(None, batch.num_rows)
    return _format_times(column) if name == "recorded_at" else column.to_pylist()


def _find_column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column, None if it was not read or has only nulls."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    column = batch.column(index)
    return None if column.null_count == batch.num_rows else column


def _format_occurred(batch: pa.RecordBatch) -> Iterable[str | None]:
    """Return `occurred_at` as the producer wrote it, or else the time of recording."""
    text, recorded = _find_column(batch, "occurred_text"), _find_column(batch, "recorded_at")
    times = recorded if recorded is not None else _find_column(batch, "occurred_at")
    if times is None:
        return repeat(None, batch.num_rows) if text is None else text.to_pylist()
    if text is None:
        return _format_times(times)
    pairs = zip(text.to_pylist(), _format_times(times), strict=True)
    return [occurred or recorded_at for occurred, recorded_at in pairs]


def _format_times(times: pa.Array) -> list[str]:
    """Format timestamps; each distinct one once, since the events of a commit share theirs."""
    distinct = times.view(pa.int64()).dictionary_encode()
    texts = [format_us(microseconds) for microseconds in distinct.dictionary.to_pylist()]
    return [texts[index] for index in distinct.indices.to_pylist()]


def _build_dicts(column: pa.Array | None, rows: int) -> Iterable[dict[str, str]]:
    if column is None or len(column.items) == 0:
        return ({} for _ in range(rows))
    keys, values = column.keys.to_pylist(), column.items.to_pylist()
    return (dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in _get_bounds(column))


def _build_tuples(column: pa.Array) -> Iterable[tuple[str, ...]]:
    if len(column.values) == 0:
        return repeat((), len(column))
    values = column.values.to_pylist()
    return (tuple(values[a:b]) for a, b in _get_bounds(column))


def _get_bounds(column: pa.Array) -> Iterable[tuple[int, int]]:
    return pairwise(column.offsets.to_pylist())


def build_batch(records: Sequence[EventRecord]) -> pa.RecordBatch:
    """Return the batch of records, with all columns of events."""
    arrays = [
        pa.array(_get_field(records, name), EVENT_SCHEMA.field(name).type)
        for name in EVENT_SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _get_field(records: Sequence[EventRecord], name: str) -> list[Any]:
    match name:
        case "occurred_at" | "recorded_at":
            return [parse_us(getattr(record, name)) for record in records]
        case "occurred_text":
            times = ((record.occurred_at, record.recorded_at) for record in records)
            return [None if occurred == recorded else occurred for occurred, recorded in times]
        case "metadata":
            return [list(record.metadata.items()) for record in records]
        case "payload":
            return [record.payload_json for record in records]
        case _:
            return [getattr(record, name) for record in records]

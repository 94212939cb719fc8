"""Parquet files of archive segments: row groups of bounded size, read with pruning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from seriatim.core.errors import BackendFailure
from seriatim.pipeline.columns import EVENT_COLUMNS, EVENT_SCHEMA

ROW_GROUP_EVENTS = 50_000
ROW_GROUP_BYTES = 64 * 1024 * 1024
BATCH_EVENTS = 20_000
_CHUNK_BYTES = 4 * 1024 * 1024

# Nearly every value of these columns is distinct, so a dictionary would only add to the file.
_DISTINCT = {"position", "append_position", "event_id", "occurred_at", "occurred_text"}
_DISTINCT |= {"recorded_at", "payload", "payload_hash", "request_id", "idempotency_key"}
_NESTED_COLUMNS: dict[str, tuple[str, ...]] = {
    "metadata": ("metadata.key_value.key", "metadata.key_value.value"),
    "tags": ("tags.list.element",),
}
_DICTIONARY = [
    leaf
    for name in EVENT_COLUMNS
    if name not in _DISTINCT
    for leaf in _NESTED_COLUMNS.get(name, (name,))
]
_ENCODINGS = {"position": "DELTA_BINARY_PACKED", "append_position": "DELTA_BINARY_PACKED"}

# Errors that pyarrow raises for a file in which any byte was changed.
_UNREADABLE = (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError)


class HashingSink:
    """A write-only file object that hashes and counts the bytes it passes on."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes and return their number."""
        view = memoryview(data)
        self._hash.update(view)
        self._sink.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it."""

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.bytes

    def close(self) -> None:
        """Do nothing: the owner of the file closes it."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes written so far, in hexadecimal."""
        return self._hash.hexdigest()


class SegmentWriter:
    """Writes batches to a Parquet file in row groups of bounded size.

    A row group ends at `ROW_GROUP_EVENTS` events or `ROW_GROUP_BYTES` in memory.
    """

    def __init__(self, sink: HashingSink, metadata: dict[str, str]) -> None:
        self._writer = pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            EVENT_SCHEMA.with_metadata(metadata),
            compression="zstd",
            use_dictionary=_DICTIONARY,
            column_encoding=_ENCODINGS,
        )
        self._pending: list[pa.RecordBatch] = []
        self._events = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch to the current row group, and write the group when it is full."""
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, ROW_GROUP_EVENTS - self._events)
            self._pending.append(part)
            self._events += part.num_rows
            self._bytes += part.get_total_buffer_size()
            start += part.num_rows
            if self._events >= ROW_GROUP_EVENTS or self._bytes >= ROW_GROUP_BYTES:
                self._flush()

    def close(self) -> None:
        """Write the last row group and the footer of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending).replace_schema_metadata(None)
            self._writer.write_table(table, row_group_size=self._events)
        self._pending, self._events, self._bytes = [], 0, 0


def read_segment_file(
    source: Any,
    columns: Sequence[str] | None = None,
    after: int = 0,
    until: int | None = None,
    *,
    count: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a segment's file in the range (after, until].

    Row groups outside of the range are not read, and one row group is in memory at a time.

    Args:
        source: A path or a file object that pyarrow can read.
        columns: The columns to return; by default all.
        after: The position before the range.
        until: The last position of the range; by default the end of the file.
        count: The number of rows that the file must have; it is checked before any row is read.

    Raises:
        BackendFailure: The file is damaged, or has another number of rows or other columns.
    """
    selected = list(EVENT_COLUMNS if columns is None else columns)
    try:
        file = pq.ParquetFile(source, pre_buffer=True)
        if count is not None and file.metadata.num_rows != count:
            _raise_count_error(file.metadata.num_rows, count)
        _check_columns(file.schema_arrow)
        # The statistics of the position column tell which row groups a range needs.
        groups = [_get_range(file, index) for index in range(file.num_row_groups)]
        for index, (first, last) in enumerate(groups):
            if last <= after or (until is not None and first > until):
                continue
            complete = first > after and (until is None or last <= until)
            names = selected if complete or "position" in selected else [*selected, "position"]
            for batch in file.iter_batches(BATCH_EVENTS, row_groups=[index], columns=names):
                part = batch if complete else _slice_range(batch, after, until)
                if part.num_rows:
                    yield part.select(selected).replace_schema_metadata(None)
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the operating system, not of the file's contents
        reason = str(error).partition("\n")[0][:200]
        msg = f"a segment's file is damaged or not a Parquet file: {reason}"
        raise BackendFailure(msg, retryable=False) from error


def _raise_count_error(count: int, sealed: int) -> None:
    msg = f"it has {count} events, {sealed} were sealed"
    raise ValueError(msg)


def _check_columns(schema: pa.Schema) -> None:
    """Check every column: a Parquet reader would replace a missing column by nulls."""
    for name in EVENT_COLUMNS:
        if not schema.field(name).equals(EVENT_SCHEMA.field(name)):
            msg = f"its column {name} has another type than was sealed"
            raise ValueError(msg)


def _get_range(file: pq.ParquetFile, index: int) -> tuple[int, int]:
    """Return the first and last position of a row group, from the file's statistics."""
    statistics = file.metadata.row_group(index).column(0).statistics
    return statistics.min, statistics.max


def _slice_range(batch: pa.RecordBatch, after: int, until: int | None) -> pa.RecordBatch:
    """Return the rows of a batch in a range; positions of the batch must be consecutive."""
    first = batch.column("position")[0].as_py()
    start = max(0, after + 1 - first)
    end = batch.num_rows if until is None else min(batch.num_rows, until + 1 - first)
    return batch.slice(start, max(0, end - start))


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size of a file in bytes and its SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()

"""The Parquet files of an archive: written in row groups of bounded size, read with pruning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from seriatim.core.errors import BackendFailure
from seriatim.pipeline.columns import EVENTS, NAMES

ROW_GROUP_EVENTS = 50_000
ROW_GROUP_BYTES = 64 * 1024 * 1024
BATCH_EVENTS = 20_000
_CHUNK_BYTES = 4 * 1024 * 1024

# Columns in which nearly every value is new: a dictionary of them would only cost.
_DISTINCT = {"position", "append_position", "event_id", "occurred_at", "occurred_text"}
_DISTINCT |= {"recorded_at", "payload", "payload_hash", "request_id", "idempotency_key"}
_LEAVES: dict[str, tuple[str, ...]] = {
    "metadata": ("metadata.key_value.key", "metadata.key_value.value"),
    "tags": ("tags.list.element",),
}
_DICTIONARY = [leaf for n in NAMES if n not in _DISTINCT for leaf in _LEAVES.get(n, (n,))]
_COUNTED = {"position": "DELTA_BINARY_PACKED", "append_position": "DELTA_BINARY_PACKED"}

# What a file may raise in which any byte was changed.
_UNREADABLE = (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError)


class HashingSink:
    """A file that is written once, from its begin to its end, and hashed on the way."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write and count some bytes."""
        view = memoryview(data)
        self._hash.update(view)
        self._sink.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Leave that to the file."""

    def tell(self) -> int:
        """Return how much was written."""
        return self.bytes

    def close(self) -> None:
        """Leave that to whoever opened the file."""

    @property
    def sha256(self) -> str:
        """The hash of all that was written."""
        return self._hash.hexdigest()


class SegmentWriter:
    """Writes batches to a Parquet file, as many to a row group as memory allows."""

    def __init__(self, sink: HashingSink, metadata: dict[str, str]) -> None:
        self._writer = pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            EVENTS.with_metadata(metadata),
            compression="zstd",
            use_dictionary=_DICTIONARY,
            column_encoding=_COUNTED,
        )
        self._held: list[pa.RecordBatch] = []
        self._events = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch with those that follow."""
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, ROW_GROUP_EVENTS - self._events)
            self._held.append(part)
            self._events += part.num_rows
            self._bytes += part.get_total_buffer_size()
            start += part.num_rows
            if self._events >= ROW_GROUP_EVENTS or self._bytes >= ROW_GROUP_BYTES:
                self._flush()

    def close(self) -> None:
        """Write what is held, and the file's end."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            held = pa.Table.from_batches(self._held).replace_schema_metadata(None)
            self._writer.write_table(held, row_group_size=self._events)
        self._held, self._events, self._bytes = [], 0, 0


def read_file(
    source: Any,
    columns: Sequence[str] | None = None,
    after: int = 0,
    until: int | None = None,
    *,
    count: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events in (after, until] of a segment's file, a row group in memory at a time.

    With `count`, a file with more or fewer rows than that is refused before anything is read.
    """
    wanted = list(NAMES if columns is None else columns)
    try:
        file = pq.ParquetFile(source, pre_buffer=True)
        if count is not None and file.metadata.num_rows != count:
            _refuse_count(file.metadata.num_rows, count)
        _check_columns(file.schema_arrow)
        groups = [_range(file, index) for index in range(file.num_row_groups)]
        for index, (first, last) in enumerate(groups):
            if last <= after or (until is not None and first > until):
                continue
            whole = first > after and (until is None or last <= until)
            names = wanted if whole or "position" in wanted else [*wanted, "position"]
            for batch in file.iter_batches(BATCH_EVENTS, row_groups=[index], columns=names):
                found = batch if whole else _cut(batch, after, until)
                if found.num_rows:
                    yield found.select(wanted).replace_schema_metadata(None)
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system, and not of the file's contents
        reason = str(error).partition("\n")[0][:200]
        msg = f"a segment's file is damaged or no Parquet file: {reason}"
        raise BackendFailure(msg, retryable=False) from error


def _refuse_count(found: int, sealed: int) -> None:
    msg = f"it holds {found} events, {sealed} were sealed"
    raise ValueError(msg)


def _check_columns(schema: pa.Schema) -> None:
    """Check every column: readers of a file by itself would take a missing one for nulls."""
    for name in NAMES:
        if not schema.field(name).equals(EVENTS.field(name)):
            msg = f"its column {name} is not what it was"
            raise ValueError(msg)


def _range(file: pq.ParquetFile, index: int) -> tuple[int, int]:
    """Return the first and last position of a row group, from its statistics."""
    statistics = file.metadata.row_group(index).column(0).statistics
    return statistics.min, statistics.max


def _cut(batch: pa.RecordBatch, after: int, until: int | None) -> pa.RecordBatch:
    """Slice a batch, whose positions follow one another, to a range."""
    first = batch.column("position")[0].as_py()
    start = max(0, after + 1 - first)
    end = batch.num_rows if until is None else min(batch.num_rows, until + 1 - first)
    return batch.slice(start, max(0, end - start))


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size of a file and its SHA-256."""
    hashed = hashlib.sha256()
    size = 0
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            hashed.update(chunk)
            size += len(chunk)
    return size, hashed.hexdigest()

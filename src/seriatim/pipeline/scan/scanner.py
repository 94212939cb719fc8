"""Scans of a log: ranges of positions as Arrow record batches with the columns of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.errors import BackendFailure
from seriatim.core.event import LogIdentity
from seriatim.core.patterns import NameFilter
from seriatim.core.times import EARLIEST_US, LATEST_US
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.scan import decoders
from seriatim.pipeline.scan.database import (
    BATCH_BYTES,
    DatabaseAddress,
    ReadConnection,
    open_connection,
    parse_database_url,
)
from seriatim.pipeline.scan.options import (
    ALL_EVENTS,
    MAX_POSITION,
    Interval,
    KeyPartition,
    ScanSpec,
)
from seriatim.pipeline.scan.select_statements import (
    NULLABLE_COLUMNS,
    build_count,
    build_select,
    find_raw_columns,
    get_arrow_type,
)

__all__ = [
    "ALL_EVENTS",
    "MAX_POSITION",
    "Interval",
    "LogState",
    "NameFilter",
    "ScanSpec",
    "count_events",
    "query_log_state",
    "read_head",
    "read_identity",
    "read_log_state",
    "scan",
]

# The driver spends more on a null than on a short text, and most logs leave half of the columns
# empty: columns without values are transferred as one JSON list, which is null in most rows.
SPARSE_COLUMN = "sparse"  # the alias of the bundled column
_MIN_BUNDLED = 2  # bundling a single column gains nothing
_SAMPLE = 100  # events at each end of a range that are sampled
_decode_rows = msgspec.json.Decoder(list[list[str | int | None]]).decode


def find_sparse_columns(
    connection: ReadConnection, address: DatabaseAddress, raw: Sequence[str], after: int, until: int
) -> tuple[str, ...]:
    """Return the nullable columns that are null in every sampled event of a range.

    Args:
        connection: A connection to Postgres.
        address: The database of the connection.
        raw: Database columns that the scan reads.
        after: The position before the range.
        until: The last position of the range.

    Returns:
        The columns to bundle; empty if fewer than two columns are nullable.
    """
    candidates = [name for name in raw if name in NULLABLE_COLUMNS]
    if len(candidates) < _MIN_BUNDLED:
        return ()
    sql = (
        address.statements["find_used_columns"]
        .replace("{used}", ", ".join(f"count(e.{name}) > 0 as {name}" for name in candidates))
        .replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
        .replace("{sample}", str(_SAMPLE))
    )
    # A column that is used only between the samples is bundled too, which is slower but correct.
    [row] = connection.fetch_rows(sql)
    return tuple(name for name in candidates if not row[name])


def build_bundle_expression(names: Sequence[str]) -> str:
    """Return the SQL expression that selects columns as one JSON list, null if all are null."""
    all_null = " and ".join(f"e.{name} is null" for name in names)
    values = ", ".join(f"e.{name}" for name in names)
    json_list = f"json_build_array({values})::text"
    return f"case when {all_null} then null else {json_list} end as {SPARSE_COLUMN}"


def unbundle_columns(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Add the bundled columns to a batch; without any value, return the batch unchanged."""
    texts = batch.column(SPARSE_COLUMN)
    if texts.null_count == len(texts):
        return batch
    nulls = f"[{','.join(['null'] * len(names))}]"
    # One decoder call for the whole batch, not one per row.
    rows = _decode_rows(f"[{','.join(texts.fill_null(nulls).to_pylist())}]")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        batch = batch.append_column(name, pa.array(values, get_arrow_type(name)))
    return batch


BATCH_ROWS = 20_000
_MIN_SAMPLED_RANGE = 5000  # events: in a smaller range, sampling costs as much as it saves


class LogState(msgspec.Struct, frozen=True):
    """The state of a log at one moment: its identity, its head, and the events at two positions.

    Attributes:
        identity: The log id and the epoch.
        head: The last position.
        until: The requested end, lowered to the head.
        event_id_at: The id of the event at the requested position, None if there is none.
        event_id_at_until: The id of the event at `until`, None if there is none.
    """

    identity: LogIdentity
    head: int
    until: int
    event_id_at: str | None
    event_id_at_until: str | None

    @property
    def identity_and_head(self) -> tuple[str, int, int]:
        """Log id, epoch and head: the first arguments of `Archive.check_log`."""
        return self.identity.log_id, self.identity.epoch, self.head


def read_log_state(url: str, at: int = 0, until: int = MAX_POSITION) -> LogState:
    """Read the state of a log.

    Args:
        url: The URL of the log.
        at: A position whose event id is returned.
        until: A second such position; it is lowered to the head.

    Raises:
        BackendFailure: The database cannot be reached or contains no log.
    """
    address = parse_database_url(url)
    with open_connection(address, "reading the state of the log") as connection:
        return query_log_state(connection, address, at, until)


def query_log_state(
    connection: ReadConnection, address: DatabaseAddress, at: int, until: int
) -> LogState:
    """Read the state of a log on an open connection; see `read_log_state`."""
    # One statement sees one snapshot: head, identity and event ids belong together.
    sql = (
        address.statements["select_log_state"]
        .replace("{at}", str(int(at)))
        .replace("{until}", str(int(until)))
    )
    rows = connection.fetch_rows(sql)
    if not rows:
        msg = "the database has the tables of a log but contains no log: run seriatim init"
        raise BackendFailure(msg, retryable=False)
    log_id, epoch, head, end, id_at, id_at_until = rows[0].values()
    return LogState(LogIdentity(log_id, epoch), head, end, id_at, id_at_until)


def read_head(url: str) -> int:
    """Return the last position of a log."""
    return read_log_state(url).head


def read_identity(url: str) -> LogIdentity:
    """Return the log id and the epoch of a log."""
    return read_log_state(url).identity


def count_events(url: str, spec: ScanSpec, after: int, until: int) -> int:
    """Count the matching events of a range (after, until] without reading payloads."""
    address = parse_database_url(url)
    with open_connection(address, "counting events", reuse=True) as connection:
        [row] = connection.fetch_rows(build_count(address, spec, after, until))
    return int(row["events"])


def scan(url: str, spec: ScanSpec, after: int, until: int) -> Iterator[pa.RecordBatch]:
    """Stream the matching events of a range (after, until], in the order of positions.

    Only a few batches are in memory at a time.

    Args:
        url: The URL of the log.
        spec: The filters and columns.
        after: The position before the range.
        until: The last position of the range, at most the head.

    Yields:
        Record batches with the columns of `spec`, typed as in `EVENT_SCHEMA`.

    Raises:
        BackendFailure: The database failed, or an unfiltered scan did not find every position of
            the range.
    """
    address = parse_database_url(url)
    count = 0
    with open_connection(address, "reading events", reuse=True) as connection:
        raw = find_raw_columns(address, spec.columns)
        sparse = _find_sparse(connection, address, raw, after, until)
        dense = [name for name in raw if name not in sparse]
        extra = [build_bundle_expression(sparse)] if sparse else []
        statement = build_select(address, spec, after, until, dense, extra)
        for raw_batch in _regroup(address, connection.stream_batches(statement)):
            batch = unbundle_columns(raw_batch, sparse) if sparse else raw_batch
            if spec.key_partition is not None and address.backend == "sqlite":
                batch = _filter_partition(batch, spec.key_partition)
            count += batch.num_rows
            if batch.num_rows:
                yield _build_events(batch, spec.columns)
    # Positions are gapless, so an unfiltered scan knows how many events it must find.
    if not spec.is_filtered and count != until - after:
        msg = (
            f"the log has {count} events after position {after} and up to {until}, expected "
            f"{until - after}: it was restored or replaced during the read; run the job again"
        )
        raise BackendFailure(msg, retryable=False)


def _find_sparse(
    connection: ReadConnection, address: DatabaseAddress, raw: Sequence[str], after: int, until: int
) -> tuple[str, ...]:
    if address.backend != "postgres" or until - after < _MIN_SAMPLED_RANGE:
        return ()
    return find_sparse_columns(connection, address, raw, after, until)


def _filter_partition(batch: pa.RecordBatch, partition: KeyPartition) -> pa.RecordBatch:
    """Keep the events of a key partition; SQLite has no hash function for texts."""
    # crc32, because Python's own hash of a text differs from process to process.
    keys = zip(*(batch.column(name).to_pylist() for name in partition.columns), strict=True)
    selected = [crc32(repr(key).encode()) % partition.count == partition.index for key in keys]
    return batch.filter(pa.array(selected))


def _regroup(address: DatabaseAddress, raw: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine the small batches of SQLite's driver up to `BATCH_ROWS` and `BATCH_BYTES`."""
    if address.backend == "postgres":
        yield from raw
        return
    first = next(raw)
    group = [first.slice(1)]  # the first row only tells the driver the column types
    rows, size = group[0].num_rows, group[0].nbytes
    for batch in raw:
        if rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES:
            yield from _combine(group)
            group, rows, size = [], 0, 0
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield from _combine(group)


def _combine(group: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_batches(group).combine_chunks().to_batches()


def _build_events(raw: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in columns])
    arrays = [_DECODERS.get(name, _get_column)(raw, name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _get_column(raw: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column; a sparse column without values is missing and becomes nulls."""
    index = raw.schema.get_field_index(name)
    if index >= 0:
        return raw.column(index)
    return pa.nulls(raw.num_rows, get_arrow_type(name))


def _decode_event_ids(raw: pa.RecordBatch, _name: str) -> pa.Array:
    stored = _get_column(raw, "event_id")
    if "event_key" not in raw.schema.names or stored.null_count == 0:
        return stored
    keys = decoders.format_uuids(raw.column("event_key"))
    return keys if stored.null_count == len(stored) else pc.coalesce(stored, keys)


def _decode_occurred_at(raw: pa.RecordBatch, _name: str) -> pa.Array:
    stored, recorded = _get_column(raw, "occurred_us"), raw.column("recorded_us")
    if stored.null_count == len(stored):
        return decoders.to_timestamps(recorded)
    times = stored if stored.null_count == 0 else pc.coalesce(stored, recorded)
    # Earlier versions accepted times outside of the range of Python and Spark. They are clamped
    # here; `occurred_text` has the original.
    return decoders.to_timestamps(
        pc.min_element_wise(pc.max_element_wise(times, EARLIEST_US), LATEST_US)
    )


_DECODERS: dict[str, Callable[[pa.RecordBatch, str], Any]] = {
    "event_id": _decode_event_ids,
    "event_version": lambda raw, name: raw.column(name).cast(pa.int32()),
    "occurred_at": _decode_occurred_at,
    "occurred_text": lambda raw, _: _get_column(raw, "occurred_at"),
    "recorded_at": lambda raw, _: decoders.to_timestamps(raw.column("recorded_us")),
    "metadata": lambda raw, name: decoders.parse_metadata_maps(_get_column(raw, name)),
    "payload_hash": lambda raw, name: decoders.format_hashes(raw.column(name)),
    "tags": lambda raw, name: decoders.parse_tag_lists(_get_column(raw, name)),
}

"""Transfer of sparse columns: nullable columns that a range hardly uses travel as one JSON column.

The Postgres driver reads a null more slowly than a short text, so one bundled column is faster
than many columns of nulls.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from seriatim.pipeline.scan.database import DatabaseAddress, ReadConnection
from seriatim.pipeline.scan.select_statements import NULLABLE_COLUMNS, get_arrow_type

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
    text = (
        address.statements["used"]
        .replace("{used}", ", ".join(f"count(e.{name}) > 0 as {name}" for name in candidates))
        .replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
        .replace("{sample}", str(_SAMPLE))
    )
    [row] = connection.fetch_rows(text)
    return tuple(name for name in candidates if not row[name])


def build_bundle_expression(names: Sequence[str]) -> str:
    """Return the SQL expression that selects columns as one JSON list, null if all are null."""
    all_null = " and ".join(f"e.{name} is null" for name in names)
    values = ", ".join(f"e.{name}" for name in names)
    packed = f"json_build_array({values})::text"
    return f"case when {all_null} then null else {packed} end as {SPARSE_COLUMN}"


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

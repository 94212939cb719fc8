"""Columns that a range hardly uses travel as one: a driver reads a null slower than a text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from seriatim.pipeline.database import Connection, Place
from seriatim.pipeline.selects import NULLABLE, type_of

SELDOM = "seldom"
_SAMPLE = 100  # events at either end of a range that tell what it uses
_decode = msgspec.json.Decoder(list[list[str | int | None]]).decode


def seldom_used(
    connection: Connection, place: Place, raw: Sequence[str], after: int, until: int
) -> tuple[str, ...]:
    """Return the columns that a sample of a range does not use."""
    asked = [name for name in raw if name in NULLABLE]
    if len(asked) < 2:  # noqa: PLR2004 - one alone is as good as a bundle
        return ()
    text = (
        place.sql["used"]
        .replace("{used}", ", ".join(f"count(e.{name}) > 0 as {name}" for name in asked))
        .replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
        .replace("{sample}", str(_SAMPLE))
    )
    [row] = connection.rows(text)
    return tuple(name for name in asked if not row[name])


def bundled(names: Sequence[str]) -> str:
    """Return the expression that selects these columns as a JSON list, null if all of them are."""
    nothing = " and ".join(f"e.{name} is null" for name in names)
    values = ", ".join(f"e.{name}" for name in names)
    return f"case when {nothing} then null else json_build_array({values})::text end as {SELDOM}"


def unbundled(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with these columns, as far as any of its rows has one."""
    texts = batch.column(SELDOM)
    if texts.null_count == len(texts):
        return batch
    nothing = f"[{','.join(['null'] * len(names))}]"
    rows = _decode(f"[{','.join(texts.fill_null(nothing).to_pylist())}]")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        batch = batch.append_column(name, pa.array(values, type_of(name)))
    return batch

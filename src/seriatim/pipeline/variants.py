"""Payloads as Spark's VARIANT, for who reads through the plain format."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

_VARIANT = to_arrow_type(VariantType())


def with_variants(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse the payloads, one by one in Python: `pipeline.events` lets Spark do it, faster."""
    for batch in batches:
        at = batch.schema.get_field_index("payload")
        yield batch if at < 0 else _with_variant(batch, at)


def _with_variant(batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    parsed = map(VariantVal.parseJson, batch.column(at).to_pylist())
    rows = [{"value": bytes(one.value), "metadata": bytes(one.metadata)} for one in parsed]
    field = pa.field("payload", _VARIANT, nullable=False)
    return batch.set_column(at, field, pa.array(rows, _VARIANT))

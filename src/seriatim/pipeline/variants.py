"""Payloads as Spark VARIANT values, for reads through the plain `seriatim` format."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

_VARIANT_TYPE = to_arrow_type(VariantType())


def with_variants(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace the payload column of batches by VARIANT values.

    Payloads are parsed one by one in Python. The function `events` is faster, because Spark
    parses them there.
    """
    for batch in batches:
        at = batch.schema.get_field_index("payload")
        yield batch if at < 0 else _parse_payloads(batch, at)


def _parse_payloads(batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    variants = map(VariantVal.parseJson, batch.column(at).to_pylist())
    rows = [{"value": bytes(each.value), "metadata": bytes(each.metadata)} for each in variants]
    field = pa.field("payload", _VARIANT_TYPE, nullable=False)
    return batch.set_column(at, field, pa.array(rows, _VARIANT_TYPE))

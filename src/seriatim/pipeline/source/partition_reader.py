"""Reader of one partition in a Spark task, from the archive or from the log."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

from seriatim.pipeline.record_batches import pack_records
from seriatim.pipeline.scan.options import SourceOptions
from seriatim.pipeline.scan.scan_spec import ScanSpec
from seriatim.pipeline.scan.scanner import scan
from seriatim.pipeline.source.archive_reader import SegmentPartition, read_segment_partition
from seriatim.pipeline.source.partitions import RangePartition
from seriatim.pipeline.source.watermarks import make_watermark
from seriatim.pipeline.spark_errors import annotate_errors

_VARIANT_TYPE = to_arrow_type(VariantType())


def parse_variants(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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


def read_partition(
    options: SourceOptions, spec: ScanSpec, part: RangePartition
) -> Iterator[pa.RecordBatch]:
    """Yield the events of one partition, then its watermark if the options ask for one.

    Args:
        options: The options of the read.
        spec: Filters and columns, narrowed by pushed-down filters.
        part: The partition to read.

    Raises:
        SeriatimError: The read failed; the error carries its details to the driver.
    """
    with annotate_errors():
        yield from _read(options, spec, part)


def _read(options: SourceOptions, spec: ScanSpec, part: RangePartition) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    # Whole records need every column, whichever columns Spark selects.
    full = spec.with_all_columns if options.record_column else spec
    if isinstance(part, SegmentPartition) and options.archive is not None:
        batches = read_segment_partition(options.archive, full, part)
    else:
        batches = scan(options.url, full, part.after, part.until)
    if options.watermarks:
        batches = _append_watermark(batches, full, part)
    if options.record_column:
        return (pack_records(batch, spec.columns) for batch in batches)
    return parse_variants(batches) if options.payload == "variant" else batches


@cache
def freeze_imports() -> None:
    """Exclude all objects imported so far from garbage collection, once per process.

    Spark collects garbage after every task, and would visit every imported object each time.
    """
    gc.freeze()


def _append_watermark(
    batches: Iterator[pa.RecordBatch], spec: ScanSpec, part: RangePartition
) -> Iterator[pa.RecordBatch]:
    yield from batches
    yield make_watermark(spec.columns, part.after, part.until)

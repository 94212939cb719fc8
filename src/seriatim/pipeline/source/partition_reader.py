"""Reader of one partition in a Spark task, from the archive or from the log."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

from seriatim.config import available_cores
from seriatim.core.patterns import NameFilter
from seriatim.pipeline.archive.catalog import Archive, read_segment
from seriatim.pipeline.archive.manifest import Segment
from seriatim.pipeline.record_batches import pack_records
from seriatim.pipeline.scan.options import NAME_COLUMNS, Interval, ScanSpec, SourceOptions
from seriatim.pipeline.scan.scanner import scan
from seriatim.pipeline.source.watermarks import make_watermark
from seriatim.pipeline.spark_errors import annotate_errors

SINGLE_TASK_EVENTS = 20_000  # events: a smaller range is faster in one task than in two
MIN_TASK_EVENTS = 10_000
MAX_TASK_EVENTS = 250_000


class RangePartition(InputPartition):
    """The range of positions (after, until] that one task reads."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__((after, until))
        self.after = after
        self.until = until


def split_range(after: int, until: int, count: int | None = None) -> list[RangePartition]:
    """Split a range into partitions of nearly equal size.

    Args:
        after: The position before the range.
        until: The last position of the range.
        count: The number of partitions; by default it depends on the size and the cores.

    Returns:
        The partitions in order; none if the range is empty.
    """
    size = max(0, until - after)
    if size == 0:
        return []
    parts = min(count or _choose_count(size), size)
    bounds = [after + size * nth // parts for nth in range(parts + 1)]
    return [RangePartition(low, high) for low, high in pairwise(bounds)]


def _choose_count(size: int) -> int:
    if size <= SINGLE_TASK_EVENTS:
        return 1
    # One task per core, unless tasks would become too small; more if they would become too large.
    return max(min(available_cores(), size // MIN_TASK_EVENTS), -(-size // MAX_TASK_EVENTS))


_TIME_COLUMNS = {"occurred": "occurred_at", "recorded": "recorded_at"}


class SegmentPartition(RangePartition):
    """A partition that lies within one segment of an archive."""

    def __init__(self, after: int, until: int, segment: Segment) -> None:
        super().__init__(after, until)
        self.segment = segment


def plan_partitions(
    archive: Archive | None, after: int, until: int, count: int | None
) -> list[RangePartition]:
    """Split a range into partitions, each of which lies in one segment or in the log.

    Args:
        archive: The archive that holds the beginning of the log, if any.
        after: The position before the range.
        until: The last position of the range.
        count: The approximate number of partitions; None lets sizes decide.
    """
    if archive is None or after >= archive.end:
        return split_range(after, until, count)
    # A partition never spans two segments: each file is opened and checked on its own.
    parts: list[RangePartition] = []
    for segment in archive.segments:
        low, high = max(after, segment.first - 1), min(until, segment.last)
        share = count and max(1, count * (high - low) // max(1, until - after))
        parts += [
            SegmentPartition(part.after, part.until, segment)
            for part in split_range(low, high, share)
        ]
    live = max(after, archive.end)
    rest = count and max(1, count - len(parts))
    return parts + split_range(live, until, rest)


def read_segment_partition(
    at: str, spec: ScanSpec, part: SegmentPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the matching events of a partition from its archive segment.

    Args:
        at: The location of the archive.
        spec: Filters and columns.
        part: The partition.
    """
    columns = list(dict.fromkeys((*spec.columns, *_find_filter_columns(spec))))
    for batch in read_segment(at, part.segment, columns, part.after, part.until):
        matches = batch.filter(match_events(batch, spec)) if spec.is_filtered else batch
        if matches.num_rows:
            yield matches.select(list(spec.columns))


def _find_filter_columns(spec: ScanSpec) -> Iterator[str]:
    """Yield the columns that the filters of a scan need."""
    for field, column in NAME_COLUMNS.items():
        if getattr(spec, field) is not None:
            yield column
    for field, column in _TIME_COLUMNS.items():
        if getattr(spec, field) != Interval():
            yield column


def match_events(batch: pa.RecordBatch, spec: ScanSpec) -> pa.Array:
    """Return a boolean array that is true for events that match; a null value never matches."""
    mask = pa.repeat(pa.scalar(True), batch.num_rows)
    for field, column in NAME_COLUMNS.items():
        names: NameFilter | None = getattr(spec, field)
        if names is not None:
            mask = pc.and_(mask, _match_names(batch.column(column), names))
    for field, column in _TIME_COLUMNS.items():
        interval: Interval = getattr(spec, field)
        times = batch.column(column).view(pa.int64()) if interval != Interval() else None
        if interval.after is not None:
            mask = pc.and_(mask, pc.greater(times, interval.after))
        if interval.until is not None:
            mask = pc.and_(mask, pc.less_equal(times, interval.until))
    return mask


def _match_names(values: pa.Array, names: NameFilter) -> pa.Array:
    mask = pc.is_in(values, pa.array(names.values, pa.string()))
    for prefix in names.prefixes:
        mask = pc.or_(mask, pc.starts_with(values, prefix).fill_null(False))
    return mask


_VARIANT_TYPE = to_arrow_type(VariantType())


def parse_variants(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace the payload column of batches by VARIANT values.

    Payloads are parsed one by one in Python. The function `events` is faster, because Spark
    parses them there.
    """
    for batch in batches:
        index = batch.schema.get_field_index("payload")
        yield batch if index < 0 else _parse_payloads(batch, index)


def _parse_payloads(batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
    variants = map(VariantVal.parseJson, batch.column(index).to_pylist())
    rows = [
        {"value": bytes(variant.value), "metadata": bytes(variant.metadata)} for variant in variants
    ]
    field = pa.field("payload", _VARIANT_TYPE, nullable=False)
    return batch.set_column(index, field, pa.array(rows, _VARIANT_TYPE))


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
    # Last: a watermark exists only if every event before it was read.
    yield make_watermark(spec.columns, part.after, part.until)

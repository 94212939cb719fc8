"""Lenient reads of a log for an audit, which tolerate missing and repeated positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.pipeline.archive.segment_tasks import PositionRange
from seriatim.pipeline.columns import EVENT_COLUMNS, build_spark_schema
from seriatim.pipeline.scan.scanner import Interval, ScanSpec, scan

TASK_EVENTS = 250_000

# Every event was recorded after this time. It filters out nothing, but a filtered scan does not
# require that every position of its range exists.
_ANY_TIME = Interval(after=-(1 << 62))


def read_log_frame(
    spark: SparkSession, url: str, head: int, columns: tuple[str, ...] = EVENT_COLUMNS
) -> DataFrame:
    """Return a DataFrame with columns of every event up to a position."""
    parts = max(1, -(-head // TASK_EVENTS))
    read = _make_reader(url, columns, head, parts)
    return spark.range(0, parts, 1, parts).mapInArrow(read, build_spark_schema(columns))


def _make_reader(
    url: str, columns: tuple[str, ...], head: int, parts: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                after, until = head * part // parts, head * (part + 1) // parts
                yield from scan_leniently(url, columns, after, until)

    return read


def scan_leniently(
    url: str, columns: tuple[str, ...], after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """Scan a range (after, until] without requiring that every position exists once."""
    return scan(url, ScanSpec(columns=columns, recorded=_ANY_TIME), after, until)


def split_log(spark: SparkSession, head: int) -> list[PositionRange]:
    """Split the positions up to the head into ranges, at least one per parallel task."""
    parts = max(spark.sparkContext.defaultParallelism, -(-head // TASK_EVENTS))
    bounds = [head * part // parts for part in range(parts + 1)]
    return [PositionRange(low + 1, high) for low, high in pairwise(bounds) if high > low]

"""The rows of a log for an audit, which reads also what is out of order or missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.pipeline.archive.tasks import Span
from seriatim.pipeline.columns import NAMES, spark_schema
from seriatim.pipeline.scan import Scan, Window, scan

PART_EVENTS = 250_000

# Every event was recorded after this: with a condition, a read does not insist on finding all.
_EVER = Window(after=-(1 << 62))


def rows_of_log(
    spark: SparkSession, url: str, head: int, columns: tuple[str, ...] = NAMES
) -> DataFrame:
    """Return columns of every event up to a position."""
    parts = max(1, -(-head // PART_EVENTS))
    read = _reader(url, columns, head, parts)
    return spark.range(0, parts, 1, parts).mapInArrow(read, spark_schema(columns))


def _reader(
    url: str, columns: tuple[str, ...], head: int, parts: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                after, until = head * part // parts, head * (part + 1) // parts
                yield from read_leniently(url, columns, after, until)

    return read


def read_leniently(
    url: str, columns: tuple[str, ...], after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """Read what is there of a range, be it less or more than it should be."""
    return scan(url, Scan(columns=columns, recorded=_EVER), after, until)


def spans_of(spark: SparkSession, head: int) -> list[Span]:
    """Cut a log to ranges that tasks read in order."""
    parts = max(spark.sparkContext.defaultParallelism, -(-head // PART_EVENTS))
    bounds = [head * part // parts for part in range(parts + 1)]
    return [Span(low + 1, high) for low, high in pairwise(bounds) if high > low]

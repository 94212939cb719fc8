"""Ranges of the log partitioned by stream: one task reads all events of a stream, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.core.event import EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.patterns import NameFilter
from seriatim.pipeline.project.job import DRIVER_FOLD_MAX_EVENTS
from seriatim.pipeline.project.key_partitions import MAX_PARTITIONS
from seriatim.pipeline.record_batches import decode_records
from seriatim.pipeline.scan.options import ALL_EVENTS, KeyPartition, ScanSpec
from seriatim.pipeline.scan.scanner import scan

BatchTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_STREAM_COLUMNS = ("tenant_id", "stream_type", "stream_id")


class PartitionedRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the log, and the number of partitions its streams are hashed to.

    Attributes:
        url: The URL of the log.
        tenant_id: The tenant to read, None for all tenants.
        after: The position before the range.
        until: The last position of the range.
        partition_count: The number of partitions.
    """

    url: str
    tenant_id: str | None
    after: int
    until: int
    partition_count: int

    def events(self, nth: int, spec: ScanSpec = ALL_EVENTS) -> Iterator[EventRecord]:
        """Yield the events of one partition, in the order of positions.

        Args:
            nth: The index of the partition, from 0.
            spec: Further filters.
        """
        partition_spec = msgspec.structs.replace(
            spec, key_partition=KeyPartition(_STREAM_COLUMNS, nth, self.partition_count)
        )
        if self.tenant_id is not None:
            partition_spec = msgspec.structs.replace(
                partition_spec, tenants=NameFilter((self.tenant_id,))
            )
        for batch in scan(self.url, partition_spec, self.after, self.until):
            yield from decode_records(batch)


def choose_partition_count(spark: SparkSession, events: int) -> int:
    """Return the number of partitions for a range: one if it is small, else one per core.

    Every partition is a scan of its own for the database, so their number is bounded.
    """
    if events <= DRIVER_FOLD_MAX_EVENTS:
        return 1
    return min(MAX_PARTITIONS, spark.sparkContext.defaultParallelism)


def run_partitions(
    spark: SparkSession, partition_count: int, task: BatchTask, schema: str
) -> DataFrame:
    """Run a task for each partition; it receives a batch with the index of its partition.

    Args:
        spark: The session.
        partition_count: The number of partitions.
        task: A function from batches of partition indexes to batches of results.
        schema: The schema of the results, as a Spark DDL string.
    """
    return spark.range(0, partition_count, 1, partition_count).mapInArrow(task, schema)


def find_zero_based_kinds(rules: Rules) -> frozenset[str]:
    """Return the stream types whose first sequence number is 0."""
    return frozenset(name for name, kind in rules.kinds.items() if kind.first_seq == 0)

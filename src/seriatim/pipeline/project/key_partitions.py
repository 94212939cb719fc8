"""Fold without a shuffle: each task reads the events of its own partition of the keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from seriatim.core.ids import compose_key
from seriatim.core.projection import Projection
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.project.fold_outcome import (
    SPARK_OUTCOME_SCHEMA,
    encode_count,
    to_record_batches,
)
from seriatim.pipeline.project.fold_tasks import KEY_COLUMN, FoldTask, key_fields
from seriatim.pipeline.scan.options import KeyPartition, ScanSpec
from seriatim.pipeline.scan.scanner import scan
from seriatim.pipeline.source.partition_reader import freeze_imports

# Every partition is a scan of the whole range, in which the database skips the other keys.
MAX_PARTITIONS = 16
# Columns that the databases store as text unchanged, so that they can hash them.
_COLUMNS = {field.name for field in EVENT_SCHEMA if pa.types.is_string(field.type)} - {
    *("event_id", "occurred_text", "payload", "payload_hash")
}


def find_key_columns(projection: Projection) -> tuple[str, ...] | None:
    """Return the columns that form a projection's key, or None if no columns do."""
    fields = key_fields(projection)
    return fields if fields and _COLUMNS.issuperset(fields) else None


class PartitionFoldTask(msgspec.Struct, frozen=True, kw_only=True):
    """Folds one partition of the keys from a range of the log."""

    task: FoldTask
    url: str
    scan_spec: ScanSpec
    columns: tuple[str, ...]
    after: int
    until: int
    partitions: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the partitions with the given numbers, and yield their outcomes."""
        freeze_imports()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                # Events without a key are not folded, but they count as read.
                keyless: list[int] = []
                yield from self.task(self._events(nth, keyless))
                yield from to_record_batches([encode_count(sum(keyless))])

    def _events(self, nth: int, keyless: list[int]) -> Iterator[pa.RecordBatch]:
        partition = KeyPartition(("tenant_id", *self.columns), nth, self.partitions)
        scan_spec = msgspec.structs.replace(self.scan_spec, key_partition=partition)
        for batch in scan(self.url, scan_spec, self.after, self.until):
            keyed = self._drop_keyless(batch)
            keyless.append(batch.num_rows - keyed.num_rows)
            yield keyed.append_column(KEY_COLUMN, _compose_keys(keyed, self.columns))

    def _drop_keyless(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.columns:
            if batch.column(name).null_count:
                batch = batch.filter(pc.is_valid(batch.column(name)))
        return batch


def _compose_keys(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.Array:
    if len(columns) == 1:
        return batch.column(columns[0])
    parts = (batch.column(name).to_pylist() for name in columns)
    return pa.array(map(compose_key, *parts), pa.string())


def fold_partitions(spark: SparkSession, folder: PartitionFoldTask) -> DataFrame:
    """Fold every partition in a task of its own."""
    numbers = spark.range(0, folder.partitions, 1, folder.partitions)
    return numbers.mapInArrow(folder, SPARK_OUTCOME_SCHEMA)

"""Fold without a shuffle: each task reads the events of its own partition of the keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from seriatim.core.ids import compose
from seriatim.core.projection import Projection
from seriatim.pipeline.columns import EVENTS
from seriatim.pipeline.project.folding import KEY, Folder, key_fields
from seriatim.pipeline.project.outcome import SPARK_OUTCOME, batches_of, count_line
from seriatim.pipeline.reading import settle
from seriatim.pipeline.scan import scan
from seriatim.pipeline.wanted import Scan, Share

MOST = 16  # partitions: each is a separate scan of the range in the database
# Columns that the databases store as text unchanged, so that they can hash them.
_COLUMNS = {field.name for field in EVENTS if pa.types.is_string(field.type)} - {
    *("event_id", "occurred_text", "payload", "payload_hash")
}


def key_columns(projection: Projection) -> tuple[str, ...] | None:
    """Return the columns that form a projection's key, or None if no columns do."""
    fields = key_fields(projection)
    return fields if fields and _COLUMNS.issuperset(fields) else None


class ShareFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Folds one partition of the keys from a range of the log."""

    folder: Folder
    url: str
    wanted: Scan
    columns: tuple[str, ...]
    after: int
    until: int
    shares: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the partitions with the given numbers, and yield their outcomes."""
        settle()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                # Events without a key are not folded, but they count as read.
                keyless: list[int] = []
                yield from self.folder(self._events(nth, keyless))
                yield from batches_of([count_line(sum(keyless))])

    def _events(self, nth: int, keyless: list[int]) -> Iterator[pa.RecordBatch]:
        share = Share(("tenant_id", *self.columns), nth, self.shares)
        scan_spec = msgspec.structs.replace(self.wanted, share=share)
        for batch in scan(self.url, scan_spec, self.after, self.until):
            keyed = self._drop_keyless(batch)
            keyless.append(batch.num_rows - keyed.num_rows)
            yield keyed.append_column(KEY, _compose_keys(keyed, self.columns))

    def _drop_keyless(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.columns:
            if batch.column(name).null_count:
                batch = batch.filter(pc.is_valid(batch.column(name)))
        return batch


def _compose_keys(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.Array:
    if len(columns) == 1:
        return batch.column(columns[0])
    parts = (batch.column(name).to_pylist() for name in columns)
    return pa.array(map(compose, *parts), pa.string())


def folded(spark: SparkSession, folder: ShareFolder) -> DataFrame:
    """Fold every partition in a task of its own."""
    numbers = spark.range(0, folder.shares, 1, folder.shares)
    return numbers.mapInArrow(folder, SPARK_OUTCOME)

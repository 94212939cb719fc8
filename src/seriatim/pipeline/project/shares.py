"""A fold without a shuffle: every task reads the events of its own share of the keys."""

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

MOST = 16  # shares: each of them is a scan of its own for the database
# What the databases keep as it is shown, and can tell shares by.
_COLUMNS = {field.name for field in EVENTS if pa.types.is_string(field.type)} - {
    *("event_id", "occurred_text", "payload", "payload_hash")
}


def key_columns(projection: Projection) -> tuple[str, ...] | None:
    """Return the columns that make up a projection's key, None if the database has none."""
    fields = key_fields(projection)
    return fields if fields and _COLUMNS.issuperset(fields) else None


class ShareFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Folds one share of the keys from a range of the log."""

    folder: Folder
    url: str
    wanted: Scan
    columns: tuple[str, ...]
    after: int
    until: int
    shares: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the numbers of shares, and give what came of their events."""
        settle()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                keyless: list[int] = []
                yield from self.folder(self._events(nth, keyless))
                yield from batches_of([count_line(sum(keyless))])

    def _events(self, nth: int, keyless: list[int]) -> Iterator[pa.RecordBatch]:
        share = Share(("tenant_id", *self.columns), nth, self.shares)
        mine = msgspec.structs.replace(self.wanted, share=share)
        for batch in scan(self.url, mine, self.after, self.until):
            kept = self._with_key(batch)
            keyless.append(batch.num_rows - kept.num_rows)
            yield kept.append_column(KEY, _keys(kept, self.columns))

    def _with_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.columns:
            if batch.column(name).null_count:
                batch = batch.filter(pc.is_valid(batch.column(name)))
        return batch


def _keys(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.Array:
    if len(columns) == 1:
        return batch.column(columns[0])
    parts = (batch.column(name).to_pylist() for name in columns)
    return pa.array(map(compose, *parts), pa.string())


def folded(spark: SparkSession, folder: ShareFolder) -> DataFrame:
    """Fold every share in a task of its own."""
    numbers = spark.range(0, folder.shares, 1, folder.shares)
    return numbers.mapInArrow(folder, SPARK_OUTCOME)

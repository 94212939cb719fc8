"""From events to what they do to a read model, as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from seriatim.core.errors import InvalidArgument
from seriatim.core.projection import STREAM, Projection, Table, is_path
from seriatim.pipeline.columns import NAMES, spark_schema
from seriatim.pipeline.marks import MARK_TYPE
from seriatim.pipeline.project.folding import KEY, Folder, FrameLoader, Keyer, kept_rows, key_fields
from seriatim.pipeline.project.outcome import SPARK_OUTCOME, Coder, batches_of
from seriatim.pipeline.records import RECORD, batch_of, records_of
from seriatim.store.readmodel.port import EVERY_TENANT

_MERGES: dict[str, Callable[[str], Column]] = {"sum": f.sum, "min": f.min, "max": f.max}
_TYPES: dict[type, tuple[type[t.DataType], ...]] = {
    str: (t.StringType,),
    int: (t.IntegralType,),
    float: (t.FractionalType, t.IntegralType),
    bool: (t.BooleanType,),
    datetime: (t.TimestampType,),
}


def folded(events: DataFrame, folder: Folder, *, spread: int) -> DataFrame:
    """Fold events in tasks, each key's in one of them and in ascending position."""
    # Marks have no key, and go where they may.
    parts = ready(events, folder.projection).repartition(spread, "tenant_id", KEY)
    return parts.sortWithinPartitions("position").mapInArrow(folder, SPARK_OUTCOME)


def needed(projection: Projection) -> Sequence[str]:
    """Return the columns that a fold is prepared with, beside whole records."""
    always = ("position", "tenant_id", "event_type")
    return tuple(dict.fromkeys((*always, *key_fields(projection))))


def ready(events: DataFrame, projection: Projection) -> DataFrame:
    """Return the events that have a key, with it, and the marks."""
    if KEY in events.columns:  # a stream is prepared once
        return events
    found = keyed(events, projection).where(f.col(KEY).isNotNull() | is_mark())
    packed = RECORD in events.columns
    return found.select("position", "tenant_id", KEY, RECORD) if packed else found


def is_mark() -> Column:
    """Tell marks from events."""
    return f.col("event_type") == MARK_TYPE


def keyed(events: DataFrame, projection: Projection) -> DataFrame:
    """Add the key column."""
    key = projection.key
    if not isinstance(key, str) or (is_path(key) and projection.upcasters):
        schema = t.StructType([*events.schema.fields, t.StructField(KEY, t.StringType())])
        return events.mapInArrow(Keyer(projection), schema)
    if is_path(key):
        path = "$" + "".join(f"['{part}']" for part in key.split(".")[1:])
        return events.withColumn(KEY, f.get_json_object("payload", path))
    if key == STREAM:
        return events.withColumn(
            KEY, f.concat(_part("stream_type"), f.lit(":"), _part("stream_id"))
        )
    return events.withColumn(KEY, f.col(key).cast("string"))


def _part(column: str) -> Column:
    """Escape a part of a key as `seriatim.core.ids.compose` does."""
    escaped = f.replace(f.col(column), f.lit("%"), f.lit("%25"))
    return f.replace(escaped, f.lit(":"), f.lit("%3A"))


def transformed(events: DataFrame, projection: Projection, tenant_id: str) -> DataFrame:
    """Return the rows of a DataFrame projection: one for each key, checked and named."""
    assert projection.transform is not None  # noqa: S101 - for the type checker
    given = events.where(~is_mark())
    if projection.upcasters:
        given = given.mapInArrow(_Upcaster(projection), spark_schema(tuple(given.columns)))
    table = projection.tables[0]
    rows = projection.transform(given)
    if not isinstance(rows, DataFrame):
        raise _bad(projection, f"returned {type(rows).__name__}, not a DataFrame")
    if "tenant_id" not in rows.columns:
        if tenant_id == EVERY_TENANT:
            raise _bad(projection, "keeps no tenant_id: a run over every tenant needs that column")
        rows = rows.withColumn("tenant_id", f.lit(tenant_id))
    _check_columns(projection, table, rows)
    merged = [_MERGES[rule](column).alias(column) for column, rule in table.merge.items()]
    return rows.groupBy("tenant_id", *table.key).agg(*merged)


def sent(rows: DataFrame, projection: Projection, until: int) -> DataFrame:
    """Return the rows of a DataFrame projection as tasks send them."""
    return rows.mapInArrow(_Sender(projection.tables[0], until), SPARK_OUTCOME)


def stored(rows: DataFrame, loader: FrameLoader) -> DataFrame:
    """Store the rows of a DataFrame projection from where they are."""
    return rows.mapInArrow(loader, SPARK_OUTCOME)


def _check_columns(projection: Projection, table: Table, rows: DataFrame) -> None:
    found = {field.name: field.dataType for field in rows.schema.fields}
    missing = [name for name in table.fields if name not in found]
    if missing:
        raise _bad(projection, f"lacks the declared column {missing[0]}")
    unknown = [name for name in found if name not in table.fields and name != "tenant_id"]
    if unknown:
        raise _bad(projection, f"has the undeclared column {unknown[0]}")
    for name, kind in table.fields.items():
        if not isinstance(found[name], _TYPES[kind]):
            shown = found[name].simpleString()
            raise _bad(projection, f"has {shown} in column {name}, declared as {kind.__name__}")


def _bad(projection: Projection, problem: str) -> InvalidArgument:
    msg = f"the transformation of projection {projection.name} {problem}"
    return InvalidArgument(msg, details={"projection": projection.name})


class _Upcaster(msgspec.Struct, frozen=True):
    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = batch_of([self.projection.upcast(event) for event in records_of(batch)])
            yield made.select([name for name in NAMES if name in batch.schema.names])


class _Sender(msgspec.Struct, frozen=True):
    table: Table
    until: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        coder = Coder(self.table)
        for batch in batches:
            yield from batches_of(
                ("row", self.table.name, kept.tenant_id, None, kept.position, coder.text(kept.row))
                for kept in kept_rows(self.table, batch, self.until)
                if kept.row is not None
            )

"""DataFrames from events to rows of a read model: keys, folds and transformations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql import types as t

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import InvalidArgument, ProjectionFailed, SeriatimError
from seriatim.core.projection import STREAM_KEY, UPCAST_SAFE_FIELDS, Projection, Table
from seriatim.core.tenants import ALL_TENANTS
from seriatim.core.times import EARLIEST_US, LATEST_US
from seriatim.pipeline.columns import EVENT_COLUMNS, build_spark_schema
from seriatim.pipeline.project.fold_outcome import (
    SPARK_OUTCOME_SCHEMA,
    OutcomeRow,
    RowCodec,
    to_record_batches,
)
from seriatim.pipeline.project.fold_tasks import (
    KEY_COLUMN,
    FoldTask,
    FrameLoadTask,
    KeyTask,
    convert_rows,
    key_fields,
    prepare_for_tasks,
)
from seriatim.pipeline.record_batches import RECORD_COLUMN, build_batch, decode_records
from seriatim.pipeline.source.watermarks import WATERMARK_TYPE
from seriatim.pipeline.spark_errors import SPARK_ERRORS, annotate_errors

_SPARK_TEXT_FIELDS = UPCAST_SAFE_FIELDS - {"occurred_at", "recorded_at"}
_MERGES: dict[str, Callable[[str], Column]] = {"sum": f.sum, "min": f.min, "max": f.max}
_TYPES: dict[type, tuple[type[t.DataType], ...]] = {
    str: (t.StringType,),
    int: (t.IntegralType,),
    float: (t.FractionalType, t.IntegralType),
    bool: (t.BooleanType,),
    datetime: (t.TimestampType,),
}


class KeylessCount:
    """Counts the events without a key while Spark filters them out, without a second read.

    If Spark repeats a stage, its events are counted again: the number may be too high.
    """

    def __init__(self) -> None:
        self._observation = Observation()

    def observe(self, events: DataFrame) -> DataFrame:
        """Return the events with the counter attached."""
        keyless = f.count(f.when(f.col(KEY_COLUMN).isNull(), 1))
        return events.observe(self._observation, keyless.alias("events"))

    def result(self) -> int | None:
        """Return the number after the events were read.

        It is None if no event had a key: Spark then removes the counter from its plan.
        """
        try:
            return int(self._observation.get["events"])
        except Py4JJavaError:  # Spark fails an assertion about a row without columns
            return None


def fold_events(
    events: DataFrame, folder: FoldTask, *, partitions: int, keyless: KeylessCount | None = None
) -> DataFrame:
    """Fold events in tasks, all events of a key in one task in ascending order of position."""
    # Watermarks have no key; it does not matter which task receives them. A dictionary per task
    # folds several times faster than Spark's grouped functions, which are called once per key.
    parts = prepare_events(events, folder.projection, keyless).repartition(
        partitions, "tenant_id", KEY_COLUMN
    )
    return parts.sortWithinPartitions("position").mapInArrow(folder, SPARK_OUTCOME_SCHEMA)


def required_columns(projection: Projection) -> Sequence[str]:
    """Return the columns that are needed besides the encoded records to prepare a fold."""
    always = ("position", "tenant_id", "event_type")
    return tuple(dict.fromkeys((*always, *key_fields(projection))))


def prepare_events(
    events: DataFrame, projection: Projection, keyless: KeylessCount | None = None
) -> DataFrame:
    """Add keys to events; keep those that have one, and the watermarks."""
    if KEY_COLUMN in events.columns:  # a stream is prepared when it starts
        return events
    keyed = add_key_column(events, projection)
    if keyless is not None:
        keyed = keyless.observe(keyed)
    selected = keyed.where(f.col(KEY_COLUMN).isNotNull() | is_watermark())
    has_records = RECORD_COLUMN in events.columns
    return (
        selected.select("position", "tenant_id", KEY_COLUMN, RECORD_COLUMN)
        if has_records
        else selected
    )


def is_watermark() -> Column:
    """Return the condition that selects watermarks."""
    return f.col("event_type") == WATERMARK_TYPE


def add_key_column(events: DataFrame, projection: Projection) -> DataFrame:
    """Add the key column, as `seriatim.core.projection` defines it.

    Spark's expressions are used only for keys whose text they reproduce exactly: strings and
    integers. Times, floats and nested values would depend on the session or on Java.
    """
    key = projection.key
    if not isinstance(key, str) or key not in _SPARK_TEXT_FIELDS:
        schema = t.StructType([*events.schema.fields, t.StructField(KEY_COLUMN, t.StringType())])
        return events.mapInArrow(KeyTask(projection), schema)
    if key == STREAM_KEY:
        return events.withColumn(
            KEY_COLUMN,
            f.concat(_escape_key_part("stream_type"), f.lit(":"), _escape_key_part("stream_id")),
        )
    return events.withColumn(KEY_COLUMN, f.col(key).cast("string"))


def _escape_key_part(column: str) -> Column:
    """Escape a part of a key as `seriatim.core.ids.compose_key` does."""
    escaped = f.replace(f.col(column), f.lit("%"), f.lit("%25"))
    return f.replace(escaped, f.lit(":"), f.lit("%3A"))


def transform_events(events: DataFrame, projection: Projection, tenant_id: str) -> DataFrame:
    """Run a DataFrame projection and merge its rows by key.

    Args:
        events: The events, possibly with watermarks.
        projection: The projection.
        tenant_id: The tenant of the run, or `*`.

    Raises:
        InvalidArgument: The transformation returned something else than the declared table.
        ProjectionFailed: The transformation raised an error.

    """
    selected = events.where(~is_watermark())
    if projection.upcasters:
        selected = selected.mapInArrow(
            _Upcaster(prepare_for_tasks(projection)), build_spark_schema(tuple(selected.columns))
        )
    if "occurred_at" in selected.columns:
        selected = selected.withColumn("occurred_at", _clamp_time(f.col("occurred_at")))
    table = projection.tables[0]
    rows = _call_transform(projection, selected)
    if not isinstance(rows, DataFrame):
        raise _invalid(projection, f"returned {type(rows).__name__}, not a DataFrame")
    if "tenant_id" not in rows.columns:
        if tenant_id == ALL_TENANTS:
            raise _invalid(
                projection, "returned no column tenant_id, which a run over all tenants needs"
            )
        rows = rows.withColumn("tenant_id", f.lit(tenant_id))
    _check_columns(projection, table, rows)
    merged = [_MERGES[rule](column).alias(column) for column, rule in table.merge.items()]
    return rows.groupBy("tenant_id", *table.key).agg(*merged)


def _clamp_time(moment: Column) -> Column:
    """Clamp a time to the range of Python's datetime, which earlier versions did not enforce."""
    earliest, latest = (f.timestamp_micros(f.lit(us)) for us in (EARLIEST_US, LATEST_US))
    return f.least(f.greatest(moment, earliest), latest)


def _call_transform(projection: Projection, events: DataFrame) -> object:
    """Call the user's transformation; convert its errors to `ProjectionFailed`."""
    assert projection.transform is not None  # noqa: S101 - for the type checker
    try:
        return projection.transform(events)
    except (SeriatimError, *SPARK_ERRORS):
        raise
    except Exception as error:
        raise _transform_error(projection, error) from error


def _transform_error(projection: Projection, error: Exception) -> ProjectionFailed:
    msg = f"the transformation of projection {projection.name} failed with {summarize_error(error)}"
    return ProjectionFailed(msg, details={"projection": projection.name})


def encode_rows(rows: DataFrame, projection: Projection, until: int) -> DataFrame:
    """Encode the rows of a DataFrame projection as outcome rows, in tasks."""
    return rows.mapInArrow(_RowEncoder(projection.tables[0], until), SPARK_OUTCOME_SCHEMA)


def store_rows(rows: DataFrame, loader: FrameLoadTask) -> DataFrame:
    """Write the rows of a DataFrame projection to the shadow, in tasks."""
    return rows.mapInArrow(loader, SPARK_OUTCOME_SCHEMA)


def _check_columns(projection: Projection, table: Table, rows: DataFrame) -> None:
    types = {field.name: field.dataType for field in rows.schema.fields}
    missing = [name for name in table.fields if name not in types]
    if missing:
        raise _invalid(projection, f"lacks the declared column {missing[0]}")
    unknown = [name for name in types if name not in table.fields and name != "tenant_id"]
    if unknown:
        raise _invalid(projection, f"has the undeclared column {unknown[0]}")
    for name, declared in table.fields.items():
        if not isinstance(types[name], _TYPES[declared]):
            actual = types[name].simpleString()
            problem = f"has {actual} in column {name}, declared as {declared.__name__}"
            raise _invalid(projection, problem)


def _invalid(projection: Projection, problem: str) -> InvalidArgument:
    msg = f"the transformation of projection {projection.name} {problem}"
    return InvalidArgument(msg, details={"projection": projection.name})


class _Upcaster(msgspec.Struct, frozen=True):
    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            upcast = build_batch([self.projection.upcast(event) for event in decode_records(batch)])
            yield upcast.select([name for name in EVENT_COLUMNS if name in batch.schema.names])


class _RowEncoder(msgspec.Struct, frozen=True):
    table: Table
    until: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with annotate_errors():
            for batch in batches:
                yield from to_record_batches(self._lines(batch))

    def _lines(self, batch: pa.RecordBatch) -> Iterator[OutcomeRow]:
        codec, name = RowCodec(self.table), self.table.name
        for model_row in convert_rows(self.table, batch, self.until):
            if model_row.row is not None:
                yield (
                    "row",
                    name,
                    model_row.tenant_id,
                    None,
                    model_row.position,
                    codec.encode(model_row.row),
                )

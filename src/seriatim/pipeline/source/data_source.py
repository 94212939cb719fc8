"""The Spark data source `seriatim`: `spark.read`, `spark.readStream` and `df.write`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from seriatim.core.errors import InvalidArgument
from seriatim.pipeline.archive.catalog import open_archive
from seriatim.pipeline.columns import EVENT_COLUMNS, build_spark_schema
from seriatim.pipeline.record_batches import RECORD_COLUMN
from seriatim.pipeline.scan.options import (
    MAX_POSITION,
    SourceOptions,
    option_error,
    parse_source_options,
)
from seriatim.pipeline.scan.scanner import read_log_state
from seriatim.pipeline.sink.frame_writer import SinkWriter, parse_sink_options
from seriatim.pipeline.source.partition_reader import (
    RangePartition,
    plan_partitions,
    read_partition,
)
from seriatim.pipeline.source.pushdown import BoundedScan, push_filters
from seriatim.pipeline.source.stream_reader import StreamReader

PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class SeriatimSource(ds.DataSource):
    """The data source of the format `seriatim`.

    Register it once per session with `seriatim.spark.register`. Spark calls its methods.

    Example:
        register(spark)
        spark.read.format("seriatim").option("url", "sqlite:///app.db").load()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "seriatim"

    def schema(self) -> t.StructType:
        """Return the schema of the selected columns."""
        return build_schema(parse_source_options(self.options))

    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        """Return the reader of a batch."""
        return BatchReader(_apply_schema(parse_source_options(self.options), schema))

    def streamReader(self, schema: t.StructType) -> ds.DataSourceStreamReader:
        """Return the reader of a stream."""
        return StreamReader(_apply_schema(parse_source_options(self.options), schema))

    def writer(self, schema: t.StructType, overwrite: bool) -> ds.DataSourceWriter:
        """Return the writer that appends the rows of a DataFrame."""
        return SinkWriter(parse_sink_options(self.options), schema, overwrite)


def build_schema(options: SourceOptions) -> t.StructType:
    """Return the Spark schema of a read with these options."""
    fields = list(build_spark_schema(options.scan.columns))
    if options.payload == "variant":
        variant = t.StructField("payload", t.VariantType(), nullable=False)
        fields = [variant if field.name == "payload" else field for field in fields]
    if options.record_column:
        fields.append(t.StructField(RECORD_COLUMN, t.BinaryType(), nullable=False))
    return t.StructType(fields)


def _apply_schema(options: SourceOptions, schema: t.StructType) -> SourceOptions:
    """Select the columns of the caller's schema, or raise if it is not a schema of events."""
    columns = tuple(name for name in schema.names if name != RECORD_COLUMN)
    known = tuple(name for name in columns if name in EVENT_COLUMNS)
    scan = msgspec.structs.replace(options.scan, columns=known)
    selected = msgspec.structs.replace(options, scan=scan)
    types = {field.name: field.dataType for field in build_schema(selected)}
    for field in schema:
        if types.get(field.name) != field.dataType:
            msg = (
                f"the schema has the column {field.name!r:.80} of type "
                f"{field.dataType.simpleString():.80}, which is no column of events: omit the "
                "schema, or select columns by the option columns"
            )
            raise InvalidArgument(msg, details={"column": field.name})
    return selected


class _FilterPush:
    """The `pushFilters` method of a reader, disguised as the base class's own.

    If push-down is disabled, Spark rejects every reader that overrides `pushFilters`, although
    Spark could apply the filters itself. Spark recognizes an override by `__func__`, so this
    callable has that of the base class.
    """

    __func__ = staticmethod(ds.DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        return self._reader.push_filters(filters)


class BatchReader(ds.DataSourceReader):
    """Reads the log up to its head at planning time, or up to the ending position."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = BoundedScan(options.scan)

    @property
    def pushFilters(self) -> _FilterPush:
        """Accept the filters that the log applies itself."""
        return _FilterPush(self)

    def push_filters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Narrow the scan by filters, and return those that Spark must still apply."""
        self._pushed, remaining = push_filters(self._pushed, filters)
        return remaining

    def partitions(self) -> list[ds.InputPartition]:
        """Split the range of the read, up to the present head, into partitions.

        Raises:
            InvalidArgument: An option is only valid for streams.
            LogIdentityChanged: The archive does not belong to this log.
        """
        options = self._options
        if options.max_batch_events is not None:
            raise option_error("maxEventsPerBatch", "is only valid for streams; use endingPosition")
        if options.starting_position == "latest":
            raise option_error("startingPosition", "can be latest only for streams")
        archive = None if options.archive is None else open_archive(options.archive)
        state = read_log_state(options.url, archive.end if archive else 0)
        if archive is not None:
            archive.check_log(*state.identity_and_head, state.event_id_at)
        starting = 0 if options.starting_position == "earliest" else options.starting_position
        ending = MAX_POSITION if options.ending_position is None else options.ending_position
        after = max(starting, self._pushed.after)
        # The head is fixed here, so that all tasks read one state of the log.
        until = min(ending, self._pushed.until, state.head)
        # Spark requires at least one partition, even for an empty range.
        return [*plan_partitions(archive, after, until, options.partitions)] or [
            RangePartition(after, after)
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition; Spark calls this in a task."""
        if not isinstance(partition, RangePartition):
            msg = f"a partition of the format seriatim, not {type(partition).__name__}, is required"
            raise TypeError(msg)
        if partition.after == partition.until:
            return iter(())
        return read_partition(self._options, self._pushed.scan, partition)


def register(spark: SparkSession) -> None:
    """Register the format `seriatim` with a session.

    Spark disables filter push-down for Python data sources by default. This enables it, unless
    the session has set `spark.sql.python.filterPushdown.enabled` itself.

    Args:
        spark: The session.

    Example:
        register(spark)
        frame = spark.read.format("seriatim").option("url", "sqlite:///app.db").load()
    """
    if spark.conf.get(PUSHDOWN_SETTING, None) is None:
        spark.conf.set(PUSHDOWN_SETTING, "true")
    with _activate(spark):
        spark.dataSource.register(SeriatimSource)


@contextmanager
def _activate(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread for a block.

    Spark refuses to register a format in a session while another, active session has it.
    """
    before = SparkSession.getActiveSession()
    sessions: Any = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]  # noqa: SLF001 - Python has no setter
    if before is None:
        yield
        return
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        sessions.setActiveSession(before._jsparkSession)  # noqa: SLF001 - as above

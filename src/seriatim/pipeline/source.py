"""The log as a Spark source: `spark.read.format("seriatim")`, and `readStream` likewise."""

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
from seriatim.pipeline.columns import NAMES, spark_schema
from seriatim.pipeline.options import Options, bad, source_options
from seriatim.pipeline.planning import Range
from seriatim.pipeline.pushdown import Pushed, push
from seriatim.pipeline.reading import read_part
from seriatim.pipeline.records import RECORD
from seriatim.pipeline.scan import look
from seriatim.pipeline.sealed import plan
from seriatim.pipeline.sink import SinkWriter, sink_options
from seriatim.pipeline.streaming import StreamReader
from seriatim.pipeline.wanted import END

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class SeriatimSource(ds.DataSource):
    """The format `seriatim`: register it once a session, by `seriatim.pipeline.register`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "seriatim"

    def schema(self) -> t.StructType:
        """Return the columns that were asked for."""
        return schema_of(source_options(self.options))

    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        """Make the reader of a batch."""
        return BatchReader(_fitted(source_options(self.options), schema))

    def streamReader(self, schema: t.StructType) -> ds.DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream."""
        return StreamReader(_fitted(source_options(self.options), schema))

    def writer(self, schema: t.StructType, overwrite: bool) -> ds.DataSourceWriter:
        """Make the writer that appends a frame."""
        return SinkWriter(sink_options(self.options), schema, overwrite)


def schema_of(options: Options) -> t.StructType:
    """Return the Spark schema of a read."""
    fields = list(spark_schema(options.scan.columns))
    if options.payload == "variant":
        variant = t.StructField("payload", t.VariantType(), nullable=False)
        fields = [variant if field.name == "payload" else field for field in fields]
    if options.packed:
        fields.append(t.StructField(RECORD, t.BinaryType(), nullable=False))
    return t.StructType(fields)


def _fitted(options: Options, schema: t.StructType) -> Options:
    """Read the columns of a schema that the caller gave, if they are those of events."""
    columns = tuple(name for name in schema.names if name != RECORD)
    if set(columns) <= set(NAMES):
        scan = msgspec.structs.replace(options.scan, columns=columns)
        fitted = msgspec.structs.replace(options, scan=scan)
        known = {field.name: field.dataType for field in schema_of(fitted)}
        if all(known.get(field.name) == field.dataType for field in schema):
            return fitted
    msg = "the schema that was given is not that of events: leave it out, or use option columns"
    raise InvalidArgument(msg)


class _FilterPush:
    """The method by which Spark hands filters to a reader.

    Where push-down is disabled, Spark refuses every reader that has a method of its own, although
    its filters are then applied by Spark with the same result. So this one passes for Spark's.
    """

    __func__ = staticmethod(ds.DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        return self._reader.narrow(filters)


class BatchReader(ds.DataSourceReader):
    """Reads the log as it is at planning, up to its head or the ending position."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = Pushed(options.scan)

    @property
    def pushFilters(self) -> _FilterPush:  # noqa: N802
        """Take over the filters that the log answers itself."""
        return _FilterPush(self)

    def narrow(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Read fewer events by these filters, and return those that Spark must apply."""
        self._pushed, kept = push(self._pushed, filters)
        return kept

    def partitions(self) -> list[ds.InputPartition]:
        """Cut the range that is wanted, as far as the log goes now."""
        options = self._options
        if options.max_events is not None:
            raise bad("maxEventsPerBatch", "is for streams; a batch ends at endingPosition")
        if options.starting == "latest":
            raise bad("startingPosition", "can be latest in streams only")
        archive = None if options.archive is None else open_archive(options.archive)
        seen = look(options.url, archive.end if archive else 0)
        if archive is not None:
            archive.check_log(*seen.identity_and_head, seen.tip_at)
        first = 0 if options.starting == "earliest" else options.starting
        last = END if options.ending is None else options.ending
        after = max(first, self._pushed.after)
        until = min(last, self._pushed.until, seen.head)
        # Spark wants a part, even of nothing.
        return [*plan(archive, after, until, options.partitions)] or [Range(after, after)]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        if not isinstance(partition, Range):
            raise TypeError(type(partition).__name__)
        if partition.after == partition.until:
            return iter(())
        return read_part(self._options, self._pushed.scan, partition)


def register(spark: SparkSession) -> None:
    """Make the format `seriatim` known to a session.

    Filters are pushed down to the log if the session allows it: Spark does not by default, so the
    setting is made unless the user has made it.
    """
    if spark.conf.get(PUSHDOWN, None) is None:
        spark.conf.set(PUSHDOWN, "true")
    with _active(spark):
        spark.dataSource.register(SeriatimSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the thread's active one for a block.

    Spark refuses to register a format in one session while another active one has it.
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

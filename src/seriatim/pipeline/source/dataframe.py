"""Events of a log as a DataFrame, from the archive and the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from seriatim.config import Settings, available_cores
from seriatim.core.patterns import NameFilter
from seriatim.factory import absolute_url, open_store
from seriatim.pipeline.archive.catalog import Archive, check_segments, open_archive
from seriatim.pipeline.archive.manifest import Segment
from seriatim.pipeline.columns import EVENT_COLUMNS, build_spark_schema
from seriatim.pipeline.object_storage import FolderStorage, open_storage
from seriatim.pipeline.scan.options import NAME_COLUMNS, Interval, ScanSpec, parse_source_options
from seriatim.pipeline.scan.scanner import read_log_state
from seriatim.pipeline.source.data_source import register
from seriatim.pipeline.spark_errors import annotate_errors

# Options of Spark's Parquet reader that make it fail on damage; a session may have others.
_STRICT_PARQUET = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
}
_GLOB_CHARACTERS = re.compile(r"([\\\[\]{}*?,])")


def events(
    spark: SparkSession,
    url: str,
    *,
    after: int = 0,
    until: int | None = None,
    tenant: str | None = None,
    types: Sequence[str] | None = None,
    stream_types: Sequence[str] | None = None,
    stream_id: str | None = None,
    occurred_after: str | None = None,
    occurred_until: str | None = None,
    recorded_after: str | None = None,
    recorded_until: str | None = None,
    columns: Sequence[str] | None = None,
    payload: Literal["json", "variant"] = "json",
    archive: str | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """Return events of a log as a DataFrame, which Spark reads from the log when it is used.

    Args:
        spark: The session; the format `seriatim` is registered with it.
        url: The URL of the log.
        after: The position before the first event.
        until: The last position; by default the head when Spark plans the query.
        tenant: Only events of this tenant.
        types: Only these event types; a pattern may end in `*`.
        stream_types: Only these stream types; a pattern may end in `*`.
        stream_id: Only this stream id.
        occurred_after: Only events that occurred after this time (RFC 3339).
        occurred_until: Only events that occurred at or before this time.
        recorded_after: Only events that were recorded after this time.
        recorded_until: Only events that were recorded at or before this time.
        columns: The columns to read; by default all.
        payload: Payloads as JSON text, or as VARIANT values, which Spark parses.
        archive: The location of an archive, from which sealed positions are read.
        partitions: The number of partitions; by default it depends on the size of the range.

    Raises:
        InvalidArgument: An argument is invalid.
        NotFound: There is no archive at the location.
        LogIdentityChanged: The archive does not belong to this log.

    Example:
        frame = events(spark, "sqlite:///app.db", types=["order.placed"])
        frame.groupBy("tenant_id").count().show()
    """
    register(spark)
    values = {
        "url": absolute_url(url),
        "startingPosition": str(after),
        "endingPosition": None if until is None else str(until),
        "tenant": tenant,
        "types": encode_names(types),
        "streamType": encode_names(stream_types),
        "streamId": stream_id,
        "occurredAfter": occurred_after,
        "occurredUntil": occurred_until,
        "recordedAfter": recorded_after,
        "recordedUntil": recorded_until,
        "columns": encode_names(columns),
        "archive": archive,
        "partitions": None if partitions is None else str(partitions),
    }
    options = {name: value for name, value in values.items() if value is not None}
    frame = _load(spark, options, after, until)
    return _parse_payloads(frame) if payload == "variant" else frame


def _parse_payloads(frame: DataFrame) -> DataFrame:
    # Not by the source's option payload: Spark parses faster than the Python of the source.
    if "payload" not in frame.columns:
        return frame
    return frame.withColumn("payload", f.parse_json("payload"))


def encode_names(names: Iterable[str] | None) -> str | None:
    """Encode names as an option of the data source: a JSON list, since names may contain commas."""
    return None if names is None else msgspec.json.encode(list(names)).decode()


def _load(spark: SparkSession, options: dict[str, str], after: int, until: int | None) -> DataFrame:
    spec = parse_source_options(options).scan
    storage = open_storage(options["archive"]) if "archive" in options else None
    # For a bucket, Spark's Parquet reader would need Hadoop's S3 libraries: tasks read it instead.
    if isinstance(storage, FolderStorage):
        return _read_archive_and_log(spark, options, storage, spec, after, until)
    return spark.read.format("seriatim").options(**options).load()


def _read_archive_and_log(
    spark: SparkSession,
    options: dict[str, str],
    storage: FolderStorage,
    spec: ScanSpec,
    after: int,
    until: int | None,
) -> DataFrame:
    """Read sealed positions with Spark's own Parquet reader, and later ones from the log."""
    archive = open_archive(storage)
    archive.check_log(*_read_state(options["url"], archive.end))
    end = archive.end if until is None else min(until, archive.end)
    live_options = {name: value for name, value in options.items() if name != "archive"}
    live_options["startingPosition"] = str(max(after, end))
    live = spark.read.format("seriatim").options(**live_options).load()
    if after >= end:
        return live
    sealed = _read_segments(spark, storage, archive, spec, after, end)
    return sealed if until is not None and until <= end else sealed.unionByName(live)


def _read_state(url: str, position: int) -> tuple[str, int, int, str | None]:
    """Return log id, epoch and head of a log, and the id of its event at a position.

    This process may have a SQLite log open. A second SQLite library (the one of ADBC's driver)
    in the same process would release its file locks, so SQLite is read through the store.
    """
    if not url.startswith("sqlite:"):
        state = read_log_state(url, position)
        return *state.identity_and_head, state.event_id_at
    with closing(open_store(url, Settings(), create=False)) as store:
        identity = store.identity()
        event_id = store.event_id_at(position) if position else None
        return identity.log_id, identity.epoch, store.head(), event_id


def _read_segments(
    spark: SparkSession,
    storage: FolderStorage,
    archive: Archive,
    spec: ScanSpec,
    after: int,
    until: int,
) -> DataFrame:
    segments = [
        segment for segment in archive.segments if segment.last > after and segment.first <= until
    ]
    check_segments(storage, segments)
    folder = _GLOB_CHARACTERS.sub(r"\\\1", storage.path)
    paths = [f"file:{folder}/{segment.file}" for segment in segments]
    frame = (
        spark.read.options(**_STRICT_PARQUET)
        .schema(build_spark_schema(EVENT_COLUMNS))
        .parquet(*paths)
    )
    if segments[0].first <= after:
        frame = frame.where(f.col("position") > after)
    if segments[-1].last > until:
        frame = frame.where(f.col("position") <= until)
    for condition in _build_conditions(spec):
        frame = frame.where(condition)
    checks = _check_when_read(spark, storage, segments, spec)
    return checks.unionByName(frame.select(*spec.columns))


def _check_when_read(
    spark: SparkSession, storage: FolderStorage, segments: Sequence[Segment], spec: ScanSpec
) -> DataFrame:
    """Return a frame without rows that fails, when it is read, if a segment is damaged.

    A DataFrame may be used long after it was created, and files may be replaced in between.
    """
    tasks = min(len(segments), available_cores())
    numbers = spark.range(0, tasks, 1, tasks)
    check = _SealCheck(storage, tuple(segments), tasks)
    return numbers.mapInArrow(check, build_spark_schema(spec.columns))


class _SealCheck(msgspec.Struct, frozen=True):
    """Compares segments with their seals; task n of N takes every N-th segment from the n-th."""

    storage: FolderStorage
    segments: tuple[Segment, ...]
    tasks: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check the segments of the given task numbers, and yield nothing."""
        with annotate_errors():
            for batch in batches:
                for nth in batch.column(0).to_pylist():
                    check_segments(self.storage, self.segments[nth :: self.tasks])
        yield from ()


def _build_conditions(spec: ScanSpec) -> Iterable[Column]:
    """Yield the filters of a scan as Spark expressions."""
    for field, column in NAME_COLUMNS.items():
        names: NameFilter | None = getattr(spec, field)
        if names is not None:
            matches = f.col(column).isin(list(names.values))
            for prefix in names.prefixes:
                matches = matches | f.col(column).startswith(prefix)
            yield matches
    for interval, column in ((spec.occurred, "occurred_at"), (spec.recorded, "recorded_at")):
        yield from _bound_column(interval, f.col(column))


def _bound_column(interval: Interval, column: Column) -> Iterable[Column]:
    if interval.after is not None:
        yield column > f.timestamp_micros(f.lit(interval.after))
    if interval.until is not None:
        yield column <= f.timestamp_micros(f.lit(interval.until))

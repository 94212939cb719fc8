"""The events of a log as a DataFrame: the way our own jobs read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from seriatim.config import Settings, cores
from seriatim.core.patterns import Names
from seriatim.opening import absolute_url, open_store
from seriatim.pipeline.archive.catalog import Archive, check_segments, open_archive
from seriatim.pipeline.archive.place import Folder, open_place
from seriatim.pipeline.archive.seals import Segment
from seriatim.pipeline.columns import NAMES, spark_schema
from seriatim.pipeline.failures import noted_errors
from seriatim.pipeline.options import source_options
from seriatim.pipeline.scan import look
from seriatim.pipeline.source import register
from seriatim.pipeline.wanted import NAMED, Scan, Window

# Options of Spark's Parquet reader that a user's session may have set otherwise.
_EXACT = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
}
_GLOB = re.compile(r"([\\\[\]{}*?,])")


def events(  # noqa: PLR0913 - what is read
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
    """Return the events after one position and up to another, or the log's end.

    With an archive, positions that it has sealed are read from there. A payload may be had as
    VARIANT, which Spark itself parses.
    """
    register(spark)
    given = {
        "url": absolute_url(url),
        "startingPosition": str(after),
        "endingPosition": None if until is None else str(until),
        "tenant": tenant,
        "types": name_list(types),
        "streamType": name_list(stream_types),
        "streamId": stream_id,
        "occurredAfter": occurred_after,
        "occurredUntil": occurred_until,
        "recordedAfter": recorded_after,
        "recordedUntil": recorded_until,
        "columns": name_list(columns),
        "archive": archive,
        "partitions": None if partitions is None else str(partitions),
    }
    options = {name: value for name, value in given.items() if value is not None}
    wanted = source_options(options).scan
    place = None if archive is None else open_place(archive)
    if isinstance(place, Folder):
        frame = _crossing(spark, options, place, wanted, after, until)
    else:
        frame = spark.read.format("seriatim").options(**options).load()
    if payload == "variant" and "payload" in frame.columns:
        return frame.withColumn("payload", f.parse_json("payload"))
    return frame


def name_list(names: Iterable[str] | None) -> str | None:
    """Write names as an option of the source: a JSON list, in which a comma is only a comma."""
    return None if names is None else msgspec.json.encode(list(names)).decode()


def _crossing(  # noqa: PLR0913 - a range, and where it lies
    spark: SparkSession,
    options: dict[str, str],
    place: Folder,
    wanted: Scan,
    after: int,
    until: int | None,
) -> DataFrame:
    """Read a folder's sealed part by Spark's own Parquet reader, and the rest from the log."""
    archive = open_archive(place)
    archive.check_log(*_state(options["url"], archive.end))
    end = archive.end if until is None else min(until, archive.end)
    live = {name: value for name, value in options.items() if name != "archive"}
    live["startingPosition"] = str(max(after, end))
    rest = spark.read.format("seriatim").options(**live).load()
    if after >= end:
        return rest
    sealed = _sealed(spark, place, archive, wanted, after, end)
    return sealed if until is not None and until <= end else sealed.unionByName(rest)


def _state(url: str, position: int) -> tuple[str, int, int, str | None]:
    """Return a log's identity, its head and the id of its event at a position.

    The driver may hold a SQLite log open, and two SQLite libraries in one process would break each
    other's locks: here it is read by the log's own.
    """
    if not url.startswith("sqlite:"):
        seen = look(url, position)
        return *seen.identity_and_head, seen.tip_at
    with closing(open_store(url, Settings(), create=False)) as store:
        identity = store.identity()
        tip = store.event_id_at(position) if position else None
        return identity.log_id, identity.epoch, store.head(), tip


def _sealed(  # noqa: PLR0913 - a range of an archive
    spark: SparkSession, place: Folder, archive: Archive, wanted: Scan, after: int, until: int
) -> DataFrame:
    inside = [one for one in archive.segments if one.last > after and one.first <= until]
    check_segments(place, inside)
    folder = _GLOB.sub(r"\\\1", place.path)
    paths = [f"file:{folder}/{one.file}" for one in inside]
    frame = spark.read.options(**_EXACT).schema(spark_schema(NAMES)).parquet(*paths)
    if inside[0].first <= after:
        frame = frame.where(f.col("position") > after)
    if inside[-1].last > until:
        frame = frame.where(f.col("position") <= until)
    for condition in _conditions(wanted):
        frame = frame.where(condition)
    return _checks(spark, place, inside, wanted).unionByName(frame.select(*wanted.columns))


def _checks(
    spark: SparkSession, place: Folder, segments: Sequence[Segment], wanted: Scan
) -> DataFrame:
    """Return no events, and fail when it is read while a segment differs from its seal.

    A DataFrame may be used long after it was made, and files be replaced meanwhile.
    """
    tasks = min(len(segments), cores())
    numbers = spark.range(0, tasks, 1, tasks)
    check = _SealCheck(place, tuple(segments), tasks)
    return numbers.mapInArrow(check, spark_schema(wanted.columns))


class _SealCheck(msgspec.Struct, frozen=True):
    """Compares segments with their seals in a task, which takes each so many-th of them."""

    place: Folder
    segments: tuple[Segment, ...]
    tasks: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the numbers of tasks, and yield nothing."""
        with noted_errors():
            for batch in batches:
                for nth in batch.column(0).to_pylist():
                    check_segments(self.place, self.segments[nth :: self.tasks])
        yield from ()


def _conditions(wanted: Scan) -> Iterable[Column]:
    for part, column in NAMED.items():
        names: Names | None = getattr(wanted, part)
        if names is not None:
            ways = f.col(column).isin(list(names.values))
            for prefix in names.prefixes:
                ways = ways | f.col(column).startswith(prefix)
            yield ways
    for window, column in ((wanted.occurred, "occurred_at"), (wanted.recorded, "recorded_at")):
        yield from _inside(window, f.col(column))


def _inside(window: Window, column: Column) -> Iterable[Column]:
    if window.after is not None:
        yield column > f.timestamp_micros(f.lit(window.after))
    if window.until is not None:
        yield column <= f.timestamp_micros(f.lit(window.until))

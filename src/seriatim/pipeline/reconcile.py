"""The proof that topics hold the log: nothing missing, doubled, moved, changed, or foreign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from seriatim.core.errors import NotFound
from seriatim.opening import absolute_url
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import offsets, spark_options
from seriatim.pipeline.kafka.messages import HEADER, value_of
from seriatim.pipeline.records import records_of
from seriatim.pipeline.scan import look
from seriatim.pipeline.source import register

_EXAMPLES = 10
_COLUMNS = ["position", "event_id", "tenant_id", "stream_type", "stream_id"]
_EVENTS = (
    "position bigint, event_id string, tenant_id string, stream_type string, stream_id string, "
    "value_hash string"
)
_MESSAGES = (
    "place string, partition int, offset bigint, position bigint, event_id string, hash string, "
    "ours boolean"
)


class Found(msgspec.Struct, frozen=True):
    """How many there are of one kind, and some of their positions or places."""

    count: int
    examples: tuple[str, ...]


class Reconciled(msgspec.Struct, frozen=True):
    """What a comparison found."""

    events: int
    messages: int
    findings: dict[str, Found]

    @property
    def equal(self) -> bool:
        """Whether every event is there, in order, unchanged; repeats are allowed for."""
        bad = ("missing", "reordered", "changed", "foreign")
        return not any(self.findings[name].count for name in bad)


def reconcile(
    spark: SparkSession,
    url: str,
    target: Target,
    *,
    tenant_id: str | None = None,
    until: int | None = None,
) -> Reconciled:
    """Compare what topics hold with the log, up to its present end."""
    register(spark)
    place = absolute_url(url)
    seen = look(place)
    end = seen.head if until is None else min(until, seen.head)
    log = _published(spark, place, tenant_id, end).cache()
    topics = sorted(
        {target.topic(row.tenant_id, row.stream_type) for row in _places(log)}
        if target.one_topic is None
        else {target.one_topic}
    )
    messages = _messages(spark, target, topics, seen.identity.log_id, tenant_id).cache()
    try:
        return _compared(log, messages.where(f.coalesce("position", f.lit(0)) <= end))
    finally:
        log.unpersist()
        messages.unpersist()


def _published(spark: SparkSession, url: str, tenant_id: str | None, until: int) -> DataFrame:
    """Return the events of the log, and the hash of the value that a message of each has."""
    options = {"url": url, "endingPosition": str(until), "columns": ",".join(_COLUMNS)}
    if tenant_id is not None:
        options["tenant"] = tenant_id
    reader = spark.read.format("seriatim").options(**options, packed="true")
    return reader.load().mapInArrow(_hashed, _EVENTS)


def _hashed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        hashes = [sha256(value_of(event)).hexdigest() for event in records_of(batch)]
        yield batch.select(_COLUMNS).append_column("value_hash", pa.array(hashes, pa.string()))


def _places(log: DataFrame) -> list[Row]:
    return log.select("tenant_id", "stream_type").distinct().collect()


def _header(name: str) -> Column:
    found = f.filter(f.col("headers"), lambda one: one["key"] == f"{HEADER}{name}")
    return f.get(found, f.lit(0))["value"].cast("string")


def _messages(
    spark: SparkSession, target: Target, topics: list[str], log_id: str, tenant_id: str | None
) -> DataFrame:
    there = []
    for topic in topics:
        try:
            offsets(target, [topic])
        except NotFound:
            continue
        there.append(topic)
    if not there:
        return spark.createDataFrame([], _MESSAGES)
    frame = (
        spark.read.format("kafka")
        .options(**spark_options(target))
        .option("subscribe", ",".join(there))
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )
    made = frame.select(
        f.concat_ws("/", "topic", "partition", "offset").alias("place"),
        "partition",
        "offset",
        _header("position").cast("bigint").alias("position"),
        _header("event-id").alias("event_id"),
        f.sha2("value", 256).alias("hash"),
        (f.coalesce(_header("log"), f.lit("")) == log_id).alias("ours"),
        _header("tenant").alias("tenant"),
    )
    if tenant_id is not None:
        made = made.where((f.col("tenant") == tenant_id) | f.col("tenant").isNull())
    return made.drop("tenant")


def _compared(log: DataFrame, messages: DataFrame) -> Reconciled:
    ours = messages.where("ours")
    both = ours.alias("m").join(log.alias("e"), ["position", "event_id"], "left")
    known = both.where("e.value_hash is not null")
    foreign = both.where("e.value_hash is null").select(f.col("place").alias("at"))
    foreign = foreign.union(messages.where("not ours").select("place"))
    stream = Window.partitionBy("tenant_id", "stream_type", "stream_id", "partition")
    firsts = known.groupBy(
        "position", "event_id", "tenant_id", "stream_type", "stream_id", "m.partition"
    ).agg(f.min("offset").alias("first"))
    moved = (
        firsts.where("stream_id is not null")
        .withColumn(
            "before",
            f.max("first").over(
                stream.orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
            ),
        )
        .where("first < before")
    )
    findings = {
        "missing": _found(log.join(ours, ["position", "event_id"], "left_anti"), "position"),
        "duplicates": _doubled(known),
        "reordered": _found(moved, "position"),
        "changed": _found(known.where("hash <> value_hash"), "place"),
        "foreign": _found(foreign, "at"),
    }
    return Reconciled(log.count(), messages.count(), findings)


def _doubled(known: DataFrame) -> Found:
    counted = known.groupBy("position").count().where("count > 1")
    total = counted.agg(f.sum(f.col("count") - 1)).first()
    examples = counted.orderBy("position").limit(_EXAMPLES).collect()
    count = 0 if total is None or total[0] is None else int(total[0])
    return Found(count, tuple(str(row.position) for row in examples))


def _found(rows: DataFrame, column: str) -> Found:
    count = rows.count()
    if not count:
        return Found(0, ())
    examples = rows.select(column).orderBy(column).limit(_EXAMPLES).collect()
    return Found(count, tuple(str(row[0]) for row in examples))

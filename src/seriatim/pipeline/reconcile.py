"""The proof that topics hold the log: nothing missing, doubled, moved, changed, or foreign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import sha256

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from seriatim.config import Settings
from seriatim.core.errors import NotFound
from seriatim.core.event import LogIdentity
from seriatim.opening import absolute_url, open_store
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import offsets, spark_options, topics_of
from seriatim.pipeline.kafka.messages import HEADER, Headers, key_of, own_headers, value_of
from seriatim.pipeline.records import records_of
from seriatim.pipeline.scan import look
from seriatim.pipeline.source import register
from seriatim.pipeline.spread import zero_based

_EXAMPLES = 10
_COLUMNS = ["position", "event_id", "tenant_id", "stream_type", "stream_id"]
_EVENTS = (
    "position bigint, event_id string, tenant_id string, stream_type string, stream_id string, "
    "value_hash string, key_hash string, event_headers string, event_topic string"
)
_MESSAGES = (
    "place string, topic string, partition int, offset bigint, position bigint, event_id string, "
    "hash string, message_key string, message_headers string, tenant string, log_id string, "
    "epoch bigint"
)
# Repeats are what delivery at least once allows; everything else makes topics differ.
_ALLOWED = ("duplicates",)


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
        """Whether every event is there, in order, unchanged, and nothing else; repeats may be."""
        return not any(found.count for name, found in self.findings.items() if name not in _ALLOWED)


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
    with closing(open_store(url, Settings(), create=False)) as store:
        kinds = zero_based(store.rules())
    log = _published(spark, place, target, tenant_id, end, seen.identity, kinds).cache()
    topics = {row.event_topic for row in log.select("event_topic").distinct().collect()}
    alike = topics_of(target, tenant_id) - topics
    messages = _messages(spark, target, sorted(topics | alike), tenant_id)
    # A topic that only looks like one of the template's may be somebody else's.
    others = f.col("topic").isin(*alike) & ~f.col("log_id").eqNullSafe(seen.identity.log_id)
    messages = messages.where(~others).cache()
    try:
        count = messages.count()  # now they are read: the log has grown further, if it has
        head = look(place).head
        return _compared(log, messages, seen.identity, end, max(head, seen.head), count)
    finally:
        log.unpersist()
        messages.unpersist()


def _published(  # noqa: PLR0913 - what is compared
    spark: SparkSession,
    url: str,
    target: Target,
    tenant_id: str | None,
    until: int,
    log: LogIdentity,
    zero_based: frozenset[str],
) -> DataFrame:
    """Return the events of the log, and what the message of each must be."""
    options = {"url": url, "endingPosition": str(until), "columns": ",".join(_COLUMNS)}
    if tenant_id is not None:
        options["tenant"] = tenant_id
    reader = spark.read.format("seriatim").options(**options, packed="true")
    # Without its settings: a task needs the template alone.
    plain = Target(target.servers, target.template)
    return reader.load().mapInArrow(_Expected(plain, log, zero_based), _EVENTS)


class _Expected(msgspec.Struct, frozen=True):
    """Adds to events what their messages must be."""

    target: Target
    log: LogIdentity
    zero_based: frozenset[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        headers = Headers(self.log, self.zero_based)
        for batch in batches:
            values: list[str] = []
            keys: list[str] = []
            heads: list[str] = []
            topics: list[str] = []
            for event in records_of(batch):
                values.append(sha256(value_of(event)).hexdigest())
                keys.append(sha256(key_of(event)).hexdigest())
                heads.append(own_headers(headers.of(event)))
                topics.append(self.target.topic(event.tenant_id, event.stream_type))
            made = batch.select(_COLUMNS)
            for name, column in (
                ("value_hash", values),
                ("key_hash", keys),
                ("event_headers", heads),
                ("event_topic", topics),
            ):
                made = made.append_column(name, pa.array(column, pa.string()))
            yield made


def _header(name: str) -> Column:
    found = f.filter(f.col("headers"), lambda one: one["key"] == f"{HEADER}{name}")
    return f.get(found, f.lit(0))["value"].cast("string")


def _own_headers() -> Column:
    """Return the headers as `own_headers` writes them; None for a message that has none."""
    own = f.filter(f.col("headers"), lambda one: one["key"].startswith(HEADER))
    lines = f.transform(
        own, lambda one: f.concat(one["key"], f.lit("="), f.lower(f.hex(one["value"])))
    )
    return f.array_join(f.array_sort(lines), "\n")


def _messages(
    spark: SparkSession, target: Target, topics: list[str], tenant_id: str | None
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
        "topic",
        "partition",
        "offset",
        _header("position").try_cast("bigint").alias("position"),
        _header("event-id").alias("event_id"),
        f.sha2("value", 256).alias("hash"),
        f.sha2("key", 256).alias("message_key"),
        _own_headers().alias("message_headers"),
        _header("tenant").alias("tenant"),
        _header("log").alias("log_id"),
        _header("epoch").try_cast("bigint").alias("epoch"),
    )
    if tenant_id is not None:
        made = made.where((f.col("tenant") == tenant_id) | f.col("tenant").isNull())
    return made


def _compared(  # noqa: PLR0913 - both sides, and where the log ends
    log: DataFrame,
    messages: DataFrame,
    identity: LogIdentity,
    end: int,
    head: int,
    count: int,
) -> Reconciled:
    nulls = messages.where("hash is null")
    whole = messages.where("hash is not null")
    ours = f.coalesce(f.col("log_id") == identity.log_id, f.lit(False))
    present = f.coalesce(f.col("epoch") == identity.epoch, f.lit(False))
    # What was appended after the comparison began is no matter of it.
    compared = whole.where(ours & present & (f.coalesce("position", f.lit(0)) <= end))
    both = compared.alias("m").join(log.alias("e"), ["position", "event_id"], "left")
    known = both.where("e.value_hash is not null")
    strangers = both.where("e.value_hash is null").select("place")
    findings = {
        "missing": _found(log.join(compared, ["position", "event_id"], "left_anti"), "position"),
        "duplicates": _doubled(known),
        "reordered": _found(_reordered(known), "position"),
        "changed": _found(
            known.where("hash <> value_hash or not (message_headers <=> event_headers)"), "place"
        ),
        "wrong_keys": _found(known.where("not (message_key <=> key_hash)"), "place"),
        "spread": _found(_spread(known), "stream"),
        "misplaced": _found(known.where("topic <> event_topic"), "place"),
        "nulls": _found(nulls, "place"),
        "foreign": _found(strangers.union(whole.where(~ours).select("place")), "place"),
        "other_epoch": _found(whole.where(ours & ~present), "place"),
        "beyond_end": _found(whole.where(ours & present & (f.col("position") > head)), "place"),
    }
    return Reconciled(log.count(), count, findings)


def _reordered(known: DataFrame) -> DataFrame:
    """Return events whose first message comes before that of an earlier event of their stream."""
    stream = Window.partitionBy("tenant_id", "stream_type", "stream_id", "topic", "partition")
    firsts = known.groupBy(
        "position", "event_id", "tenant_id", "stream_type", "stream_id", "topic", "partition"
    ).agg(f.min("offset").alias("first"))
    earlier = stream.orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    return (
        firsts.where("stream_id is not null")
        .withColumn("before", f.max("first").over(earlier))
        .where("first < before")
    )


def _spread(known: DataFrame) -> DataFrame:
    """Return streams whose messages lie in several partitions, where no order holds."""
    return (
        known.where("stream_id is not null")
        .groupBy("tenant_id", "stream_type", "stream_id")
        .agg(f.countDistinct("topic", "partition").alias("places"))
        .where("places > 1")
        .select(f.concat_ws("/", "tenant_id", "stream_type", "stream_id").alias("stream"))
    )


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

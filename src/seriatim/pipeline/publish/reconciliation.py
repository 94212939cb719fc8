"""Reconciliation of Kafka topics with the log: missing, duplicate, changed or foreign messages."""

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
from seriatim.factory import absolute_url, open_store
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import find_topics, get_offsets, spark_options
from seriatim.pipeline.kafka.messages import (
    HEADER_PREFIX,
    HeaderBuilder,
    encode_key,
    encode_value,
    format_own_headers,
)
from seriatim.pipeline.object_storage import ObjectStorage
from seriatim.pipeline.project.stream_partitions import find_zero_based_kinds
from seriatim.pipeline.publish.reconciliation_record import keep_record, name_target
from seriatim.pipeline.record_batches import decode_records
from seriatim.pipeline.scan.scanner import read_log_state
from seriatim.pipeline.source.data_source import register

_MAX_EXAMPLES = 10
_EVENT_COLUMNS = ["position", "event_id", "tenant_id", "stream_type", "stream_id"]
_EVENT_SCHEMA = (
    "position bigint, event_id string, tenant_id string, stream_type string, stream_id string, "
    "value_hash string, key_hash string, event_headers string, event_topic string"
)
_MESSAGE_SCHEMA = (
    "place string, topic string, partition int, offset bigint, position bigint, event_id string, "
    "hash string, message_key string, message_headers string, tenant string, log_id string, "
    "epoch bigint"
)
# At-least-once delivery allows duplicates; every other finding is a difference.
_ALLOWED = ("duplicates",)


class ReconciliationFinding(msgspec.Struct, frozen=True):
    """The number of findings of one kind, and positions or message places of the first ones."""

    count: int
    examples: tuple[str, ...]


class ReconciliationReport(msgspec.Struct, frozen=True):
    """The result of a reconciliation.

    Attributes:
        events: The number of events of the log that were compared.
        messages: The number of messages that were read.
        findings: The findings of each kind, also of kinds without any.
    """

    events: int
    messages: int
    findings: dict[str, ReconciliationFinding]

    @property
    def equal(self) -> bool:
        """Whether the topics hold exactly the log, in order and unchanged, duplicates aside."""
        return not any(found.count for name, found in self.findings.items() if name not in _ALLOWED)


def reconcile(
    spark: SparkSession,
    url: str,
    target: Target,
    *,
    tenant_id: str | None = None,
    until: int | None = None,
    checkpoints: str | ObjectStorage | None = None,
) -> ReconciliationReport:
    """Compare the messages of topics with the events of a log.

    Args:
        spark: A session.
        url: The URL of the log.
        target: The Kafka servers and the topic, or the template of topics.
        tenant_id: Compare only this tenant; None compares all tenants.
        until: The last position to compare; by default the present head.
        checkpoints: Where the publisher stores its checkpoints: the result is kept beside them, and
            displayed by a service that shows them.

    Returns:
        Counts and examples of every kind of difference.

    Raises:
        BackendFailure: Kafka, Spark or the database failed.

    Example:
        report = reconcile(spark, "sqlite:///app.db", parse_target("kafka://localhost:9092/events"))
        assert report.equal
    """
    register(spark)
    log_url = absolute_url(url)
    state = read_log_state(log_url)
    end = state.head if until is None else min(until, state.head)
    with closing(open_store(url, Settings(), create=False)) as store:
        kinds = find_zero_based_kinds(store.rules())
    log = _read_log(spark, log_url, target, tenant_id, end, state.identity, zero_based=kinds)
    # Cached, because every kind of finding is a query of its own over both sides.
    log = log.cache()
    topics = {row.event_topic for row in log.select("event_topic").distinct().collect()}
    similar = find_topics(target, tenant_id) - topics
    messages = _read_messages(spark, target, sorted(topics | similar), tenant_id)
    # A topic whose name matches the template may belong to somebody else: there, only messages
    # of this log count.
    foreign = f.col("topic").isin(*similar) & ~f.col("log_id").eqNullSafe(state.identity.log_id)
    messages = messages.where(~foreign).cache()
    try:
        # Count first: it reads the topics. A head read afterwards covers every message published
        # meanwhile, so none of them is reported as beyond the end of the log.
        count = messages.count()
        head = read_log_state(log_url).head
        report = _compare(log, messages, state.identity, end, max(head, state.head), count)
    finally:
        log.unpersist()
        messages.unpersist()
    if checkpoints is not None:
        keep_record(
            checkpoints,
            name_target(target, tenant_id),
            state.identity,
            end,
            equal=report.equal,
            events=report.events,
            messages=report.messages,
            findings={name: found.count for name, found in report.findings.items()},
        )
    return report


def _read_log(
    spark: SparkSession,
    url: str,
    target: Target,
    tenant_id: str | None,
    until: int,
    log: LogIdentity,
    *,
    zero_based: frozenset[str],
) -> DataFrame:
    """Return the events of the log, each with the hashes of the message it must have."""
    options = {"url": url, "endingPosition": str(until), "columns": ",".join(_EVENT_COLUMNS)}
    if tenant_id is not None:
        options["tenant"] = tenant_id
    reader = spark.read.format("seriatim").options(**options, records="true")
    # Tasks need the template alone: do not send them the client settings, which may hold secrets.
    bare = Target(target.servers, target.topic_template)
    return reader.load().mapInArrow(_ExpectedMessages(bare, log, zero_based), _EVENT_SCHEMA)


class _ExpectedMessages(msgspec.Struct, frozen=True):
    """Adds hashes, headers and topic of the expected message to each event."""

    target: Target
    log: LogIdentity
    zero_based: frozenset[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        headers = HeaderBuilder(self.log, self.zero_based)
        for batch in batches:
            values: list[str] = []
            keys: list[str] = []
            header_texts: list[str] = []
            topics: list[str] = []
            for event in decode_records(batch):
                values.append(sha256(encode_value(event)).hexdigest())
                keys.append(sha256(encode_key(event)).hexdigest())
                header_texts.append(format_own_headers(headers.build(event)))
                topics.append(self.target.topic_for(event.tenant_id, event.stream_type))
            result = batch.select(_EVENT_COLUMNS)
            for name, column in (
                ("value_hash", values),
                ("key_hash", keys),
                ("event_headers", header_texts),
                ("event_topic", topics),
            ):
                result = result.append_column(name, pa.array(column, pa.string()))
            yield result


def _get_header(name: str) -> Column:
    matches = f.filter(f.col("headers"), lambda header: header["key"] == f"{HEADER_PREFIX}{name}")
    return f.get(matches, f.lit(0))["value"].cast("string")


def _encode_own_headers() -> Column:
    """Return the headers as `format_own_headers` formats them, null if there are no headers."""
    own = f.filter(f.col("headers"), lambda header: header["key"].startswith(HEADER_PREFIX))
    lines = f.transform(
        own, lambda header: f.concat(header["key"], f.lit("="), f.lower(f.hex(header["value"])))
    )
    return f.array_join(f.array_sort(lines), "\n")


def _read_messages(
    spark: SparkSession, target: Target, topics: list[str], tenant_id: str | None
) -> DataFrame:
    """Return all messages of the topics that exist, with the fields of their headers."""
    existing = []
    for topic in topics:
        try:
            get_offsets(target, [topic])
        except NotFound:
            continue
        existing.append(topic)
    if not existing:
        return spark.createDataFrame([], _MESSAGE_SCHEMA)
    frame = (
        spark.read.format("kafka")
        .options(**spark_options(target))
        .option("subscribe", ",".join(existing))
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )
    messages = frame.select(
        f.concat_ws("/", "topic", "partition", "offset").alias("place"),
        "topic",
        "partition",
        "offset",
        _get_header("position").try_cast("bigint").alias("position"),
        _get_header("event-id").alias("event_id"),
        f.sha2("value", 256).alias("hash"),
        f.sha2("key", 256).alias("message_key"),
        _encode_own_headers().alias("message_headers"),
        _get_header("tenant").alias("tenant"),
        _get_header("log").alias("log_id"),
        _get_header("epoch").try_cast("bigint").alias("epoch"),
    )
    if tenant_id is not None:
        messages = messages.where((f.col("tenant") == tenant_id) | f.col("tenant").isNull())
    return messages


def _compare(
    log: DataFrame,
    messages: DataFrame,
    identity: LogIdentity,
    end: int,
    head: int,
    count: int,
) -> ReconciliationReport:
    nulls = messages.where("hash is null")
    valued = messages.where("hash is not null")
    own_log = f.coalesce(f.col("log_id") == identity.log_id, f.lit(False))
    own_epoch = f.coalesce(f.col("epoch") == identity.epoch, f.lit(False))
    # Events appended after the reconciliation started are not compared.
    compared = valued.where(own_log & own_epoch & (f.coalesce("position", f.lit(0)) <= end))
    joined = compared.alias("m").join(log.alias("e"), ["position", "event_id"], "left")
    matched = joined.where("e.value_hash is not null")
    unmatched = joined.where("e.value_hash is null").select("place")
    findings = {
        "missing": _find(log.join(compared, ["position", "event_id"], "left_anti"), "position"),
        "duplicates": _find_duplicates(matched),
        "reordered": _find(_find_reordered(matched), "position"),
        "changed": _find(
            matched.where("hash <> value_hash or not (message_headers <=> event_headers)"), "place"
        ),
        "wrong_keys": _find(matched.where("not (message_key <=> key_hash)"), "place"),
        "spread": _find(_find_spread_streams(matched), "stream"),
        "misplaced": _find(matched.where("topic <> event_topic"), "place"),
        "nulls": _find(nulls, "place"),
        "foreign": _find(unmatched.union(valued.where(~own_log).select("place")), "place"),
        "other_epoch": _find(valued.where(own_log & ~own_epoch), "place"),
        "beyond_end": _find(
            valued.where(own_log & own_epoch & (f.col("position") > head)), "place"
        ),
    }
    return ReconciliationReport(log.count(), count, findings)


def _find_reordered(matched: DataFrame) -> DataFrame:
    """Return events whose first message precedes that of an earlier event of their stream."""
    stream = Window.partitionBy("tenant_id", "stream_type", "stream_id", "topic", "partition")
    firsts = matched.groupBy(
        "position", "event_id", "tenant_id", "stream_type", "stream_id", "topic", "partition"
    ).agg(f.min("offset").alias("first"))
    earlier = stream.orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    return (
        firsts.where("stream_id is not null")
        .withColumn("before", f.max("first").over(earlier))
        .where("first < before")
    )


def _find_spread_streams(matched: DataFrame) -> DataFrame:
    """Return streams with messages in several partitions, between which Kafka has no order."""
    return (
        matched.where("stream_id is not null")
        .groupBy("tenant_id", "stream_type", "stream_id")
        .agg(f.countDistinct("topic", "partition").alias("places"))
        .where("places > 1")
        .select(f.concat_ws("/", "tenant_id", "stream_type", "stream_id").alias("stream"))
    )


def _find_duplicates(matched: DataFrame) -> ReconciliationFinding:
    """Count messages beyond the first one of each event."""
    counted = matched.groupBy("position").count().where("count > 1")
    total = counted.agg(f.sum(f.col("count") - 1)).first()
    examples = counted.orderBy("position").limit(_MAX_EXAMPLES).collect()
    count = 0 if total is None or total[0] is None else int(total[0])
    return ReconciliationFinding(count, tuple(str(row.position) for row in examples))


def _find(rows: DataFrame, column: str) -> ReconciliationFinding:
    """Count rows, and return the lowest values of a column as examples."""
    count = rows.count()
    if not count:
        return ReconciliationFinding(0, ())
    examples = rows.select(column).orderBy(column).limit(_MAX_EXAMPLES).collect()
    return ReconciliationFinding(count, tuple(str(row[0]) for row in examples))

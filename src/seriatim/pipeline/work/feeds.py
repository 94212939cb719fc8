"""Feeds: the sources of a worker's events, read in batches by cursor; here, the log."""

from __future__ import annotations

from typing import Protocol

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from seriatim.core.errors import BackendFailure, InvalidArgument, LogIdentityChanged
from seriatim.delivery.log_source import LogSource
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import get_cluster_id, get_offsets, spark_options
from seriatim.pipeline.kafka.messages import HEADER_PREFIX
from seriatim.pipeline.project.stream_partitions import (
    PartitionedRange,
    choose_partition_count,
    run_partitions,
)
from seriatim.pipeline.work.tasks import COUNTS_SCHEMA, KafkaTask, LogTask, TaskSpec
from seriatim.store.port import Store


class FeedBatch(msgspec.Struct, frozen=True):
    """A batch of events to handle.

    Attributes:
        job: The Spark job that handles them and returns counts.
        cursor: The cursor to store when the job is done.
        events: The number of events.
        lag: The number of events after the batch.

    """

    job: DataFrame
    cursor: str
    events: int
    lag: int


class Feed(Protocol):
    """A source of events; `name` identifies its cursor in the registry."""

    name: str

    def next_batch(self, spec: TaskSpec, cursor: str | None) -> FeedBatch | None:
        """Return the batch after a cursor, or None if there are no further events yet."""
        ...


class LogFeed:
    """Reads ranges of the log; each task reads the events of its partition of the streams."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        store: Store,
        *,
        tenant_id: str | None,
        batch_events: int,
    ) -> None:
        self._spark = spark
        self._url = url
        self._tenant_id = tenant_id
        self._source = LogSource(store, tenant_id, batch_events)
        self.name = self._source.name

    def next_batch(self, spec: TaskSpec, cursor: str | None) -> FeedBatch | None:
        """Return the next range of the log.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.

        """
        new = self._source.next_range(spec.handler, cursor)
        if new is None:
            return None
        part = PartitionedRange(
            url=self._url,
            tenant_id=self._tenant_id,
            after=new.after,
            until=new.until,
            partition_count=choose_partition_count(self._spark, new.events),
        )
        job = run_partitions(
            self._spark,
            part.partition_count,
            LogTask(spec=spec, part=part, log=new.log),
            COUNTS_SCHEMA,
        )
        next_cursor = self._source.make_cursor(new.log, new.until)
        return FeedBatch(job, next_cursor, new.events, new.head - new.until)


class KafkaFeed:
    """Reads ranges of offsets of a topic; each partition is one task, in offset order."""

    def __init__(
        self, spark: SparkSession, target: Target, *, tenant_id: str | None, batch_events: int
    ) -> None:
        self._spark = spark
        self._target = target
        self._tenant_id = tenant_id
        self._batch_events = batch_events
        if target.single_topic is None:
            msg = (
                f"a worker reads one topic: name it without {{tenant}} or {{stream_type}}, not as "
                f"{target.topic_template!r:.80}"
            )
            raise InvalidArgument(msg, details={"argument": "from"})
        self._topic = target.single_topic
        tenant = "*" if tenant_id is None else tenant_id
        self.name = f"kafka:{get_cluster_id(target)}:{self._topic}:{tenant}"

    def next_batch(self, spec: TaskSpec, cursor: str | None) -> FeedBatch | None:
        """Return the next range of offsets of every partition.

        Raises:
            BackendFailure: The topic has deleted messages that were not handled.
            LogIdentityChanged: The topic was created again.

        """
        bounds = get_offsets(self._target, [self._topic])[self._topic]
        offsets = {} if cursor is None else msgspec.json.decode(cursor, type=dict[str, int])
        # The cursor of a partition that was added later is missing: it starts at its first offset.
        begin = {
            partition: offsets.get(str(partition), first)
            for partition, (first, _) in bounds.items()
        }
        self._check_offsets(begin, bounds)
        remaining = {partition: end - begin[partition] for partition, (_, end) in bounds.items()}
        if not any(count > 0 for count in remaining.values()):
            return None
        batch_share = max(1, self._batch_events // len(remaining))
        until = {
            partition: begin[partition] + min(max(0, count), batch_share)
            for partition, count in remaining.items()
        }
        # Fixed offsets on both sides: the cursor in the registry decides, not a consumer group.
        frame = (
            self._spark.read.format("kafka")
            .options(**spark_options(self._target))
            .option("subscribe", self._topic)
            .option("startingOffsets", self._encode_offsets(begin))
            .option("endingOffsets", self._encode_offsets(until))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .load()
        )
        task = KafkaTask(spec=spec, tenant_id=self._tenant_id)
        job = self._select_columns(frame).mapInArrow(task, COUNTS_SCHEMA)
        events = sum(until[partition] - begin[partition] for partition in until)
        next_cursor = msgspec.json.encode({str(key): offset for key, offset in until.items()})
        lag = sum(max(0, count) for count in remaining.values()) - events
        return FeedBatch(job, next_cursor.decode(), events, lag)

    def _check_offsets(self, begin: dict[int, int], bounds: dict[int, tuple[int, int]]) -> None:
        for partition, (first, end) in bounds.items():
            if begin[partition] < first:
                msg = (
                    f"topic {self._topic} has deleted messages that were not handled: partition "
                    f"{partition} begins at offset {first}, the worker is at {begin[partition]}. "
                    "Run the worker on the log, which has all events"
                )
                raise BackendFailure(msg, details={"partition": partition}, retryable=False)
            if begin[partition] > end:
                msg = (
                    f"topic {self._topic} was deleted and created again: partition {partition} "
                    f"ends at offset {end}, the worker is at {begin[partition]}. Publish to a "
                    "topic of another name, and run the worker on that"
                )
                raise LogIdentityChanged(msg, details={"partition": partition})

    def _encode_offsets(self, offsets: dict[int, int]) -> str:
        """Return offsets in the JSON form of Spark's Kafka source."""
        by_topic = {self._topic: {str(partition): offset for partition, offset in offsets.items()}}
        return msgspec.json.encode(by_topic).decode()

    def _select_columns(self, frame: DataFrame) -> DataFrame:
        return frame.select(
            "topic",
            "partition",
            "offset",
            "value",
            _get_header("first-seq").alias("first_seq"),
            _get_header("log").cast("string").alias("log_id"),
            # try_cast: a value that is not a number becomes null, and the task refuses the message.
            _get_header("epoch").cast("string").try_cast("bigint").alias("epoch"),
        )


def _get_header(name: str) -> Column:
    """Return the value of the first header of a name, null if there is none."""
    matches = f.filter(f.col("headers"), lambda header: header["key"] == f"{HEADER_PREFIX}{name}")
    return f.get(matches, f.lit(0))["value"]

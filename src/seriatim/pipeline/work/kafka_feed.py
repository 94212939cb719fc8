"""A worker's events from a Kafka topic: ranges of offsets, one task a partition."""

from __future__ import annotations

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from seriatim.core.errors import BackendFailure, InvalidArgument, LogIdentityChanged
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import cluster_id, offsets, spark_options
from seriatim.pipeline.kafka.messages import HEADER
from seriatim.pipeline.work.feeds import Batch
from seriatim.pipeline.work.tasks import TALLY, KafkaTask, Work


class KafkaFeed:
    """A topic: ranges of offsets, one task a partition, in the order of the partition."""

    def __init__(
        self, spark: SparkSession, target: Target, *, tenant_id: str | None, batch_events: int
    ) -> None:
        self._spark = spark
        self._target = target
        self._tenant_id = tenant_id
        self._batch_events = batch_events
        if target.one_topic is None:
            msg = "a worker reads one topic: name it without {tenant} or {stream_type}"
            raise InvalidArgument(msg, details={"argument": "from"})
        self._topic = target.one_topic
        whose = "*" if tenant_id is None else tenant_id
        self.name = f"kafka:{cluster_id(target)}:{self._topic}:{whose}"

    def next(self, work: Work, cursor: str | None) -> Batch | None:
        """Return the next offsets of every partition."""
        bounds = offsets(self._target, [self._topic])[self._topic]
        seen = {} if cursor is None else msgspec.json.decode(cursor, type=dict[str, int])
        begin = {one: seen.get(str(one), first) for one, (first, _) in bounds.items()}
        self._check(begin, bounds)
        left = {one: end - begin[one] for one, (_, end) in bounds.items()}
        if not any(count > 0 for count in left.values()):
            return None
        share = max(1, self._batch_events // len(left))
        until = {one: begin[one] + min(max(0, left[one]), share) for one in left}
        frame = (
            self._spark.read.format("kafka")
            .options(**spark_options(self._target))
            .option("subscribe", self._topic)
            .option("startingOffsets", self._offsets(begin))
            .option("endingOffsets", self._offsets(until))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .load()
        )
        task = KafkaTask(work=work, tenant_id=self._tenant_id)
        job = self._read(frame).mapInArrow(task, TALLY)
        events = sum(until[one] - begin[one] for one in until)
        behind = msgspec.json.encode({str(one): at for one, at in until.items()}).decode()
        return Batch(job, behind, events, sum(max(0, one) for one in left.values()) - events)

    def _check(self, begin: dict[int, int], bounds: dict[int, tuple[int, int]]) -> None:
        for one, (first, end) in bounds.items():
            if begin[one] < first:
                msg = (
                    f"topic {self._topic} has lost messages that were not handled: partition {one} "
                    f"begins at {first}, the worker is at {begin[one]}; the log has them all"
                )
                raise BackendFailure(msg, details={"partition": one}, retryable=False)
            if begin[one] > end:
                msg = (
                    f"topic {self._topic} was made anew: partition {one} ends at {end}, the worker "
                    f"is at {begin[one]}; work from a topic of another name"
                )
                raise LogIdentityChanged(msg, details={"partition": one})

    def _offsets(self, at: dict[int, int]) -> str:
        named = {self._topic: {str(one): offset for one, offset in at.items()}}
        return msgspec.json.encode(named).decode()

    def _read(self, frame: DataFrame) -> DataFrame:
        return frame.select(
            "topic",
            "partition",
            "offset",
            "value",
            _header("first-seq").alias("first_seq"),
            _header("log").cast("string").alias("log_id"),
            # What is no number is no epoch.
            _header("epoch").cast("string").try_cast("bigint").alias("epoch"),
        )


def _header(name: str) -> Column:
    found = f.filter(f.col("headers"), lambda one: one["key"] == f"{HEADER}{name}")
    return f.get(found, f.lit(0))["value"]

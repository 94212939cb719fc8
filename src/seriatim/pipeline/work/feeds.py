"""Where a worker's events come from: the log, or a Kafka topic; a batch at a time, by a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.log.cursors import problem_with
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import offsets, spark_options
from seriatim.pipeline.kafka.messages import HEADER
from seriatim.pipeline.project.job import SMALL_EVENTS
from seriatim.pipeline.project.shares import MOST
from seriatim.pipeline.work.tasks import TALLY, KafkaTask, LogTask, Work
from seriatim.store.port import Store

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Batch(msgspec.Struct, frozen=True):
    """Events to handle, as a job that handles them, and the cursor behind them."""

    job: DataFrame
    cursor: str
    events: int
    lag: int


class Feed(Protocol):
    """A source of events."""

    name: str

    def next(self, work: Work, cursor: str | None) -> Batch | None:
        """Return the batch behind a cursor, None when there is none yet."""
        ...


class LogCursor(msgspec.Struct, frozen=True):
    """How far a log was read, and by which event it is known again."""

    log_id: str
    epoch: int
    position: int
    tip: str


class LogFeed:
    """The log itself: ranges of positions, in which each task reads its share of the streams."""

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
        self._store = store
        self._tenant_id = tenant_id
        self._batch_events = batch_events
        self.name = f"log:{store.identity().log_id}:{'*' if tenant_id is None else tenant_id}"

    def next(self, work: Work, cursor: str | None) -> Batch | None:
        """Return the next range of the log."""
        identity = self._store.identity()
        after = self._position(work, cursor)
        head = self._store.head()
        until = min(head, after + self._batch_events)
        if until <= after:
            return None
        shares = 1
        if until - after > SMALL_EVENTS:
            shares = min(MOST, self._spark.sparkContext.defaultParallelism)
        task = LogTask(
            work=work,
            url=self._url,
            tenant_id=self._tenant_id,
            after=after,
            until=until,
            shares=shares,
        )
        tip = self._store.event_id_at(until) or ""
        behind = LogCursor(identity.log_id, identity.epoch, until, tip)
        numbers = self._spark.range(0, shares, 1, shares)
        job = numbers.mapInArrow(task, TALLY)
        return Batch(job, msgspec.json.encode(behind).decode(), until - after, head - until)

    def _position(self, work: Work, cursor: str | None) -> int:
        if cursor is None:
            return min(work.handler.start, self._store.head())
        seen = msgspec.json.decode(cursor, type=LogCursor)
        known = LogIdentity(seen.log_id, seen.epoch)
        problem = problem_with(self._store, known, seen.position, seen.tip)
        if problem is not None:
            msg = (
                f"handler {work.handler.name}'s cursor {problem}: the log was restored or "
                "replaced; what its effects were made of may be gone"
            )
            raise LogIdentityChanged(msg, details={"handler": work.handler.name})
        return seen.position


class KafkaFeed:
    """A topic: ranges of offsets, one task a partition, in the order of the partition."""

    def __init__(
        self, spark: SparkSession, target: Target, *, tenant_id: str | None, batch_events: int
    ) -> None:
        self._spark = spark
        self._target = target
        self._tenant_id = tenant_id
        self._batch_events = batch_events
        self._topic = target.topic("", None) if target.one_topic is None else target.one_topic
        self.name = f"kafka:{self._topic}:{'*' if tenant_id is None else tenant_id}"

    def next(self, work: Work, cursor: str | None) -> Batch | None:
        """Return the next offsets of every partition."""
        bounds = offsets(self._target, [self._topic])[self._topic]
        seen = {} if cursor is None else msgspec.json.decode(cursor, type=dict[str, int])
        begin = {one: max(first, seen.get(str(one), first)) for one, (first, _) in bounds.items()}
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

    def _offsets(self, at: dict[int, int]) -> str:
        named = {self._topic: {str(one): offset for one, offset in at.items()}}
        return msgspec.json.encode(named).decode()

    def _read(self, frame: DataFrame) -> DataFrame:
        first = f.filter(f.col("headers"), lambda one: one["key"] == f"{HEADER}first-seq")
        value = f.get(first, f.lit(0))["value"]
        return frame.select("topic", "partition", "offset", "value", value.alias("first_seq"))

"""Feeds: the sources of a worker's events, read in batches by cursor; here, the log."""

from __future__ import annotations

from typing import Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.delivery.reset import LogCursor
from seriatim.log.cursors import find_cursor_problem
from seriatim.pipeline.project.stream_partitions import (
    PartitionedRange,
    choose_partition_count,
    run_partitions,
)
from seriatim.pipeline.work.tasks import COUNTS_SCHEMA, LogTask, TaskSpec
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
        self._store = store
        self._tenant_id = tenant_id
        self._batch_events = batch_events
        # A reset finds the cursors of a log by this name: see `seriatim.delivery.reset`.
        self.name = f"log:{store.identity().log_id}:{'*' if tenant_id is None else tenant_id}"

    def next_batch(self, spec: TaskSpec, cursor: str | None) -> FeedBatch | None:
        """Return the next range of the log.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.

        """
        after = self._position(spec, cursor)
        head = self._store.head()
        identity = self._store.identity()  # of the log whose head was just read
        until = min(head, after + self._batch_events)
        if until <= after:
            return None
        part = PartitionedRange(
            url=self._url,
            tenant_id=self._tenant_id,
            after=after,
            until=until,
            partition_count=choose_partition_count(self._spark, until - after),
        )
        last_event_id = self._store.event_id_at(until) or ""
        next_cursor = LogCursor(identity.log_id, identity.epoch, until, last_event_id)
        job = run_partitions(
            self._spark,
            part.partition_count,
            LogTask(spec=spec, part=part, log=identity),
            COUNTS_SCHEMA,
        )
        return FeedBatch(
            job, msgspec.json.encode(next_cursor).decode(), until - after, head - until
        )

    def _position(self, work: TaskSpec, cursor: str | None) -> int:
        """Return the position of a cursor, or the handler's start if there is none."""
        if cursor is None:
            return min(work.handler.start, self._store.head())
        stored = msgspec.json.decode(cursor, type=LogCursor)
        identity = LogIdentity(stored.log_id, stored.epoch)
        problem = find_cursor_problem(self._store, identity, stored.position, stored.last_event_id)
        if problem is not None:
            msg = (
                f"the cursor of handler {work.handler.name} {problem}: the log was restored or "
                "replaced. Compare the handler's effects with the log, then run seriatim registry "
                f"reset {work.handler.name} --reason …"
            )
            raise LogIdentityChanged(msg, details={"handler": work.handler.name})
        return stored.position

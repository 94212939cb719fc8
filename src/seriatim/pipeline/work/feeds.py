"""Where a worker's events come from: a batch at a time, by a cursor; here, from the log."""

from __future__ import annotations

from typing import Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.delivery.reset import LogCursor
from seriatim.log.cursors import problem_with
from seriatim.pipeline.spread import Part, over_shares, shares_for
from seriatim.pipeline.work.tasks import TALLY, LogTask, Work
from seriatim.store.port import Store


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
        after = self._position(work, cursor)
        head = self._store.head()
        identity = self._store.identity()  # as it was when the head was looked up
        until = min(head, after + self._batch_events)
        if until <= after:
            return None
        part = Part(
            url=self._url,
            tenant_id=self._tenant_id,
            after=after,
            until=until,
            shares=shares_for(self._spark, until - after),
        )
        tip = self._store.event_id_at(until) or ""
        behind = LogCursor(identity.log_id, identity.epoch, until, tip)
        job = over_shares(
            self._spark, part.shares, LogTask(work=work, part=part, log=identity), TALLY
        )
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

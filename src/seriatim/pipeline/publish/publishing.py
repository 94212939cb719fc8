"""The publisher: step by step along the log, each step sent, then remembered."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
from pyspark.sql import SparkSession

from seriatim.config import Settings
from seriatim.config.delivery import Publishing
from seriatim.core.errors import BackendFailure, LeaseLost
from seriatim.core.event import INFRASTRUCTURE_TENANT, LogIdentity
from seriatim.core.ids import hash_key
from seriatim.core.tenants import check_tenant
from seriatim.core.times import format_us
from seriatim.opening import absolute_url, open_store
from seriatim.pipeline.archive.place import open_place
from seriatim.pipeline.events import events
from seriatim.pipeline.failures import translated
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import make_topics
from seriatim.pipeline.project.job import Report, Watcher
from seriatim.pipeline.publish.checkpoint import Checkpoint, Checkpoints
from seriatim.pipeline.publish.lookback import Lookback
from seriatim.pipeline.publish.sending import SENT, ShareSender
from seriatim.pipeline.spread import Part, over_shares, shares_for, zero_based
from seriatim.store.port import Lease
from seriatim.telemetry import tracing

logger = logging.getLogger("seriatim")

LEASE_S = 10.0
_POLL_S = 1.0
_PATIENCE_S = 30.0


class Published(msgspec.Struct):
    """What a publisher has done since it began."""

    position: int = 0
    sent: int = 0
    skipped: int = 0
    steps: int = 0


class Publisher:
    """Publishes one log to one target; another one of the same waits until this one ends."""

    def __init__(  # noqa: PLR0913 - where everything is
        self,
        spark: SparkSession,
        url: str,
        target: Target,
        checkpoints: str,
        *,
        tenant_id: str | None = None,
        settings: Publishing | None = None,
        create_topics: tuple[int, int] | None = None,
        lease_s: float = LEASE_S,
        watcher: Watcher | None = None,
    ) -> None:
        self._spark = spark
        self._url = absolute_url(url)
        self._target = target
        self._settings = settings or Publishing()
        self._tenant_id = None if tenant_id is None else check_tenant(tenant_id)
        self._create = create_topics
        self._lease_s = lease_s
        self._watcher = watcher or (lambda _: None)
        self._store = open_store(url, Settings(), create=False)
        self._what = f"{target} of {'every tenant' if tenant_id is None else tenant_id}"
        self._checkpoints = Checkpoints(open_place(checkpoints), self._what)
        self._lookback = Lookback(self._store, self._settings, tenant_id)
        self._name = f"publish:{hash_key(str(target), tenant_id or '').hex()}"
        self._last: Checkpoint | None = None
        self._lease: Lease | None = None
        self._lease_ended = threading.Event()
        self._failed = 0
        self._told = time.monotonic()
        self._began = (time.monotonic(), 0)
        self.done = Published()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def run(self, *, live: bool = False, until: Callable[[], bool] = lambda: False) -> Published:
        """Publish up to the log's end, or go on from there; wait while another one does."""
        while not until():
            try:
                with self._leased(until) as leased:
                    if leased:
                        self._follow(live=live, until=until)
                break
            except LeaseLost:
                continue
            except BackendFailure as error:
                if not live or not error.retryable:
                    raise
                self._failed += 1
                self._pause(error, min(_PATIENCE_S, 0.25 * 2**self._failed), until)
        return self.done

    def _follow(self, *, live: bool, until: Callable[[], bool]) -> None:
        position = self._start()
        self._began = (time.monotonic(), position)
        while not until():
            head = self._store.head()
            self._check_log(head)
            while position < head and not until():
                position = self._traced_step(position, head)
                self._tell(head)
            if not live:
                return
            self._store.wait(position, _POLL_S)

    def _start(self) -> int:
        """Return where to go on: behind the checkpoint, or at the beginning if there is none."""
        self._last = last = self._checkpoints.last()
        position = 0
        if last is not None:
            self._check_log(self._store.head())
            position = last.position
            self._lookback.remember(last.delivered)
        self.done.position = position
        if self._create is not None and self._target.one_topic is not None:
            make_topics(self._target, [self._target.one_topic], *self._create)
        return position

    def _check_log(self, head: int) -> LogIdentity:
        """Return the log's identity; raise if it is another log than that of the checkpoint."""
        log = self._store.identity()
        if self._last is not None:
            at = self._last.position
            tip = self._store.event_id_at(at) if at else None
            self._checkpoints.check(self._last, log, head, tip)
        return log

    def _traced_step(self, after: int, head: int) -> int:
        sent, skipped = self.done.sent, self.done.skipped
        with tracing.span("seriatim.publish", "producer") as span:
            reached = self._step(after, min(head, after + self._settings.step_events))
            span.set(
                {
                    "seriatim.tenant": self._tenant_id or "*",
                    "seriatim.target": str(self._target),
                    "seriatim.after": after,
                    "seriatim.until": reached,
                    "seriatim.sent": self.done.sent - sent,
                    "seriatim.skipped": self.done.skipped - skipped,
                }
            )
        return reached

    def _step(self, after: int, until: int) -> int:
        """Send a part of the log, and remember that it was delivered."""
        log = self._check_log(self._store.head())  # it may have been restored since the last step
        begin, known = self._lookback.before(after)
        if self._create is not None and self._target.one_topic is None:
            self._make_topics(begin, until)
        sender = ShareSender(
            target=self._target,
            part=Part(
                url=self._url,
                tenant_id=self._tenant_id,
                after=begin,
                until=until,
                shares=shares_for(self._spark, until - begin),
            ),
            log=log,
            zero_based=zero_based(self._store.rules()),
            settings=self._settings,
            known=known,
        )
        with translated():
            rows = over_shares(self._spark, sender.part.shares, sender, SENT).collect()
        self._check_lease()
        refused = min(
            (row for row in rows if row.position is not None),
            key=lambda row: row.position,
            default=None,
        )
        # Every share is delivered up to the first event that the broker refused.
        reached = until if refused is None else refused.position - 1
        if reached > after:
            self._move(log, after, reached)
        self.done.sent += sum(row.sent for row in rows)
        self.done.skipped += sum(row.skipped for row in rows)
        if refused is not None:
            event_id = self._store.event_id_at(refused.position)
            raise _refused(refused.position, event_id, refused.reason)
        return until

    def _move(self, log: LogIdentity, after: int, reached: int) -> None:
        """Remember that everything up to a position was delivered."""
        self._lookback.passed(after, reached)
        made = Checkpoint(
            log_id=log.log_id,
            epoch=log.epoch,
            target=self._what,
            position=reached,
            tip=self._store.event_id_at(reached) or "",
            written_at=format_us(time.time_ns() // 1000),
            delivered=self._lookback.kept,
        )
        self._checkpoints.move(made)
        self._last = made
        self._failed = 0
        self.done.position = reached
        self.done.steps += 1

    def _make_topics(self, after: int, until: int) -> None:
        """Make the topics of a template that a part of the log needs."""
        assert self._create is not None  # noqa: S101 - the caller looked
        found = events(
            self._spark,
            self._url,
            after=after,
            until=until,
            tenant=self._tenant_id,
            columns=["tenant_id", "stream_type"],
        ).distinct()
        topics = {self._target.topic(row.tenant_id, row.stream_type) for row in found.collect()}
        make_topics(self._target, topics, *self._create)

    # -- one at a time

    @contextmanager
    def _leased(self, until: Callable[[], bool]) -> Iterator[bool]:
        lease = self._claimed(until)
        if lease is None:
            yield False
            return
        self._lease = lease
        self._lease_ended.clear()
        done = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(lease, done), daemon=True)
        keeper.start()
        try:
            yield True
        finally:
            done.set()
            keeper.join()
            if not self._lease_ended.is_set():
                self._store.release_lease(lease)

    def _claimed(self, until: Callable[[], bool]) -> Lease | None:
        owner = uuid.uuid4().hex
        told = False
        while not until():
            lease = self._store.claim_lease(INFRASTRUCTURE_TENANT, self._name, owner, self._lease_s)
            if lease is not None:
                return lease
            if not told:
                told = True
                self._watcher(Report("publisher", "waits for another publisher", 0, 0, 0.0))
            time.sleep(min(_POLL_S, self._lease_s / 4))
        return None

    def _check_lease(self) -> None:
        """Raise `LeaseLost` if another publisher has the lease.

        The database is asked: a process that was stopped for longer than the lease goes on here
        before the thread that renews it has noticed.
        """
        assert self._lease is not None  # noqa: S101 - steps are made within `_leased`
        if self._lease_ended.is_set() or not self._store.renew_lease(self._lease, self._lease_s):
            self._lease_ended.set()
            msg = "another publisher has the lease now; what was sent may be sent again by it"
            raise LeaseLost(msg)

    def _keep(self, lease: Lease, done: threading.Event) -> None:
        while not done.wait(self._lease_s / 3):
            try:
                if not self._store.renew_lease(lease, self._lease_s):
                    self._lease_ended.set()
                    return
            except BackendFailure as error:
                logger.warning("the publisher's lease could not be renewed: %s", error.message)

    # -- what is told

    def _tell(self, head: int) -> None:
        since, at = self._began
        pace = (self.done.position - at) / max(time.monotonic() - since, 1e-6)
        self._watcher(Report("publisher", "publish", self.done.position, head, pace))
        if time.monotonic() - self._told >= self._settings.metrics_log_interval_s:
            self._told = time.monotonic()
            logger.info(
                "published up to %d of %d: %d sent, %d left out, %d steps, %.0f events/s",
                self.done.position,
                head,
                self.done.sent,
                self.done.skipped,
                self.done.steps,
                pace,
            )

    def _pause(self, error: BackendFailure, seconds: float, until: Callable[[], bool]) -> None:
        logger.warning("the publisher waits %.1f s: %s", seconds, error.message)
        self._watcher(Report("publisher", f"waits {seconds:.0f} s ({error.code})", 0, 0, 0.0))
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not until():
            time.sleep(min(0.2, seconds))


def _refused(position: int, event_id: str | None, reason: str) -> BackendFailure:
    """Make the error for an event that is too large for its topic."""
    msg = (
        f"Kafka refuses event {event_id} at position {position}, {reason}; raise "
        "max.message.bytes of the topic (and message.max.bytes, if you set it), then publish "
        "again: everything before it is delivered"
    )
    details = {"position": position, "event_id": event_id, "kafka": "MSG_SIZE_TOO_LARGE"}
    return BackendFailure(msg, details=details, retryable=False)

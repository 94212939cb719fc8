"""The publisher: send the log in steps, and store a checkpoint after each."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from seriatim.config import Settings
from seriatim.config.delivery import PublisherSettings
from seriatim.core.backoff import Backoff
from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import BackendFailure, LeaseLost
from seriatim.core.event import INFRASTRUCTURE_TENANT, EventRecord, LogIdentity
from seriatim.core.ids import hash_key
from seriatim.core.tenants import check_tenant
from seriatim.core.times import format_us, parse_us
from seriatim.factory import absolute_url, open_store
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import (
    SEND_ALONE_BYTES,
    MessageSender,
    MessageTooLarge,
    create_topics,
)
from seriatim.pipeline.kafka.messages import HeaderBuilder, encode_key, encode_value
from seriatim.pipeline.object_storage import open_storage
from seriatim.pipeline.project.stream_partitions import (
    PartitionedRange,
    choose_partition_count,
    find_zero_based_kinds,
    run_partitions,
)
from seriatim.pipeline.publish.checkpoint import Checkpoint, CheckpointStore
from seriatim.pipeline.publish.reconciliation_record import name_target
from seriatim.pipeline.source.dataframe import events
from seriatim.pipeline.source.partition_reader import freeze_imports
from seriatim.pipeline.spark_errors import translate_spark_errors
from seriatim.runs.job_loop import JobLoop, ProgressCallback, ProgressReporter
from seriatim.store.lease_keeper import LeaseKeeper, wait_for_lease
from seriatim.store.port import Lease, ReadSpec, Store
from seriatim.telemetry import tracer

EventKey = tuple[str, str]  # tenant id and event id: an event id is unique within its tenant only

_PAGE_EVENTS = 10_000


class Lookback:
    """Moves the start of a step back by a configured time and number of events.

    It is off by default, as a gapless log has no late arrivals; then it does nothing.
    """

    def __init__(
        self, store: Store, settings: PublisherSettings, tenant_id: str | None = None
    ) -> None:
        self._store = store
        self._settings = settings
        self._tenant_id = tenant_id
        self._recent: deque[EventKey] = deque(maxlen=settings.dedup_max_events)

    @property
    def _enabled(self) -> bool:
        return self._settings.lookback_s > 0 and self._settings.lookback_max_keys > 0

    @property
    def checkpoint_keys(self) -> tuple[EventKey, ...]:
        """The delivered events to store in a checkpoint."""
        maximum = self._settings.dedup_checkpoint_max_events
        return tuple(self._recent)[-maximum:] if maximum else ()

    def remember(self, ids: Iterable[EventKey]) -> None:
        """Add the delivered events that a checkpoint contains."""
        self._recent.extend(ids)

    def find_start(self, after: int) -> tuple[int, frozenset[EventKey]]:
        """Return the position to start after instead, and the delivered events to skip."""
        if not self._enabled or not after:
            return after, frozenset()
        since = time.time_ns() // 1000 - int(self._settings.lookback_s * 1_000_000)
        begin = max(0, after - self._settings.lookback_max_keys)
        for event in self._events(begin, after):
            if (parse_us(event.recorded_at) or 0) >= since:
                return event.position - 1, frozenset(self._recent)
        return after, frozenset()

    def remember_range(self, after: int, until: int) -> None:
        """Remember the last events of a delivered step."""
        if not self._enabled or not self._recent.maxlen:
            return
        after = max(after, until - self._recent.maxlen)
        self._recent.extend(
            (event.tenant_id, event.event_id) for event in self._events(after, until)
        )

    def _events(self, after: int, until: int) -> Iterator[EventRecord]:
        """Read the events of a range that this publisher sends, page by page."""
        while after < until:
            page = self._store.read(
                ReadSpec(tenant_id=self._tenant_id, limit=_PAGE_EVENTS, after=after, until=until)
            )
            if not page:
                return
            yield from page
            after = page[-1].position


SEND_RESULT_SCHEMA = "sent bigint, skipped bigint, position bigint, reason string"
_RESULT_SCHEMA = pa.schema(
    [
        ("sent", pa.int64()),
        ("skipped", pa.int64()),
        ("position", pa.int64()),
        ("reason", pa.string()),
    ]
)


class SendResult(msgspec.Struct):
    """The number of events sent and skipped, and the refused event that ended the task, if any."""

    sent: int = 0
    skipped: int = 0
    position: int | None = None
    reason: str | None = None


class SendTask(msgspec.Struct, frozen=True, kw_only=True):
    """Sends one partition of a range of the log."""

    target: Target
    part: PartitionedRange
    log: LogIdentity
    zero_based: frozenset[str]
    settings: PublisherSettings
    skip_keys: frozenset[EventKey] = frozenset()  # delivered events, not sent again

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the partitions with the given numbers, and yield one result for each."""
        freeze_imports()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                result = self._send_partition(nth)
                values = [[getattr(result, name)] for name in _RESULT_SCHEMA.names]
                yield pa.RecordBatch.from_pydict(
                    dict(zip(_RESULT_SCHEMA.names, values, strict=True)), schema=_RESULT_SCHEMA
                )

    def _send_partition(self, nth: int) -> SendResult:
        """Send a partition up to its end or to the first event that is too large."""
        result = SendResult()
        try:
            try:
                self._send(nth, self.part, result, SEND_ALONE_BYTES)
            except MessageTooLarge as refused:
                if refused.sent_alone:
                    raise
                # Either the batch or one of its messages was too large: send them again one by one.
                rest = msgspec.structs.replace(self.part, after=refused.number - 1)
                self._send(nth, rest, result, 0)
        except MessageTooLarge as refused:
            result.position, result.reason = refused.number, str(refused)
        return result

    def _send(self, nth: int, part: PartitionedRange, result: SendResult, alone_bytes: int) -> None:
        sender = MessageSender(self.target, self.settings.flush_timeout_s, alone_bytes=alone_bytes)
        headers = HeaderBuilder(self.log, self.zero_based)
        flush_every = self.settings.flush_batch_size or self.settings.batch_size
        for event in part.events(nth):
            if (event.tenant_id, event.event_id) in self.skip_keys:
                result.skipped += 1
                continue
            time_ms = (parse_us(event.recorded_at) or 0) // 1000
            topic = sender.topic_for(event.tenant_id, event.stream_type)
            message = encode_key(event), encode_value(event), headers.build(event)
            sender.send(topic, *message, time_ms, event.position)
            result.sent += 1
            if not result.sent % flush_every:
                sender.flush()
            elif not result.sent % self.settings.batch_size:
                sender.poll()  # reports of delivery stay in the client's queue until then
        sender.flush()


logger = logging.getLogger("seriatim")

LEASE_S = 10.0
_POLL_S = 1.0
# Half a second, as most failures are short: a broker that elects a leader, a lost connection.
_BACKOFF = Backoff(first_s=0.5, cap_s=30.0)


class PublishReport(msgspec.Struct):
    """The result of a run of a publisher.

    Attributes:
        position: The position of the last checkpoint.
        sent: The number of events sent.
        skipped: The number of events that a lookback did not send again.
        steps: The number of checkpoints written.

    """

    position: int = 0
    sent: int = 0
    skipped: int = 0
    steps: int = 0


class Publisher:
    """Publishes one log to one target; a second publisher of the same waits for the lease.

    Example:
        target = parse_target("kafka://broker:9092/orders")
        with Publisher(spark, "postgresql://…/shop", target, "s3://bucket/publisher") as publisher:
            report = publisher.run()

    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        target: Target,
        checkpoints: str,
        *,
        tenant_id: str | None = None,
        settings: PublisherSettings | None = None,
        create_topics: tuple[int, int] | None = None,
        lease_s: float = LEASE_S,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Open the log and the place of checkpoints.

        Args:
            spark: The session that runs the tasks.
            url: The log.
            target: The Kafka cluster and topic.
            checkpoints: A folder or a bucket for checkpoints.
            tenant_id: The tenant to publish; None for all.
            settings: Batches, flushes and lookback.
            create_topics: The number of partitions and of replicas of topics to create; None
                creates no topics.
            lease_s: The duration of the lease that keeps other publishers waiting.
            on_progress: Called with a `RunReport` after each step.

        """
        self._spark = spark
        self._url = absolute_url(url)
        self._target = target
        self._settings = settings or PublisherSettings()
        self._tenant_id = None if tenant_id is None else check_tenant(tenant_id)
        self._topic_layout = create_topics
        self._lease_s = lease_s
        self._progress = ProgressReporter("publisher", on_progress)
        self._store = open_store(url, Settings(), create=False)
        self._target_name = name_target(target, tenant_id)
        self._checkpoints = CheckpointStore(open_storage(checkpoints), self._target_name)
        self._lookback = Lookback(self._store, self._settings, tenant_id)
        self._name = f"publish:{hash_key(str(target), tenant_id or '').hex()}"
        self._last: Checkpoint | None = None
        self._keeper: LeaseKeeper | None = None
        self._logged_at = time.monotonic()
        self.report = PublishReport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def run(
        self, *, live: bool = False, until: Callable[[], bool] = lambda: False
    ) -> PublishReport:
        """Publish up to the head of the log, or with `live` continue from there.

        Args:
            live: Whether to follow the log. Retryable failures of Kafka and of the log are then
                retried with backoff.
            until: Ends the run when it returns true.

        Returns:
            The counts of sent and skipped events, and the position that was reached.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the last checkpoint.
            BackendFailure: The log or Kafka failed, or Kafka refuses an event.

        Example:
            report = publisher.run()
            print(report.position, report.sent)
        """
        loop = JobLoop("the publisher", self._progress, backoff=_BACKOFF, live=live, until=until)
        loop.run(lambda: self._run_once(loop))
        return self.report

    def _run_once(self, loop: JobLoop) -> bool:
        """Publish under one lease; return whether the run is complete."""
        lease = self._claim_lease(loop)
        if lease is None:
            return True
        try:
            with self._keep_lease(lease) as self._keeper:
                self._publish(loop)
        except LeaseLost:
            # Wait for the lease again, and load the checkpoint of the other publisher.
            return False
        return True

    def _publish(self, loop: JobLoop) -> None:
        position = self._start()
        self._progress.start(position)
        while not loop.stopped:
            head = self._store.head()
            self._check_log(head)
            while position < head and not loop.stopped:
                position = self._run_step(position, head)
                loop.reset_backoff()
                self._report(head)
            if not loop.live:
                return
            # A missed wake-up costs one interval.
            self._store.wait(position, _POLL_S)

    def _start(self) -> int:
        """Load the checkpoint and return its position, or 0 if there is none."""
        self._last = last = self._checkpoints.load_last()
        position = 0
        if last is not None:
            self._check_log(self._store.head())
            position = last.position
            self._lookback.remember(last.delivered)
        self.report.position = position
        if self._topic_layout is not None and self._target.single_topic is not None:
            create_topics(self._target, [self._target.single_topic], *self._topic_layout)
        return position

    def _check_log(self, head: int) -> LogIdentity:
        """Return the log's identity; raise `LogIdentityChanged` unless the checkpoint matches."""
        log = self._store.identity()
        if self._last is not None:
            at = self._last.position
            last_event_id = self._store.event_id_at(at) if at else None
            self._checkpoints.check(self._last, log, head, last_event_id)
        return log

    def _run_step(self, after: int, head: int) -> int:
        """Send the next step in a span, and return its end."""
        sent, skipped = self.report.sent, self.report.skipped
        with tracer.span("seriatim.publish", "producer") as span:
            reached = self._send_step(after, min(head, after + self._settings.step_events))
            span.set(
                {
                    "seriatim.tenant": self._tenant_id or "*",
                    "seriatim.target": str(self._target),
                    "seriatim.after": after,
                    "seriatim.until": reached,
                    "seriatim.sent": self.report.sent - sent,
                    "seriatim.skipped": self.report.skipped - skipped,
                }
            )
        return reached

    def _send_step(self, after: int, until: int) -> int:
        """Send a range of the log and store a checkpoint; return the end of the range."""
        # The log may have been restored since the last step.
        log = self._check_log(self._store.head())
        begin, skip_keys = self._lookback.find_start(after)
        if self._topic_layout is not None and self._target.single_topic is None:
            self._create_topics(begin, until, self._topic_layout)
        task = SendTask(
            target=self._target,
            part=PartitionedRange(
                url=self._url,
                tenant_id=self._tenant_id,
                after=begin,
                until=until,
                partition_count=choose_partition_count(self._spark, until - begin),
            ),
            log=log,
            zero_based=find_zero_based_kinds(self._store.rules()),
            settings=self._settings,
            skip_keys=skip_keys,
        )
        # A step ends before the next begins, and one task sends all events of a stream: so the
        # order per stream survives parallel tasks.
        with translate_spark_errors():
            rows = run_partitions(
                self._spark, task.part.partition_count, task, SEND_RESULT_SCHEMA
            ).collect()
        # Before the checkpoint, which no token fences: another publisher may own it by now.
        assert self._keeper is not None  # noqa: S101 - steps run within `_run_once`
        self._keeper.confirm()
        refused = min(
            (row for row in rows if row.position is not None),
            key=lambda row: row.position,
            default=None,
        )
        # Every partition is delivered up to the first event that the broker refused.
        reached = until if refused is None else refused.position - 1
        if reached > after:
            self._store_checkpoint(log, after, reached)
        self.report.sent += sum(row.sent for row in rows)
        self.report.skipped += sum(row.skipped for row in rows)
        if refused is not None:
            event_id = self._store.event_id_at(refused.position)
            raise _refused_error(refused.position, event_id, refused.reason)
        return until

    def _store_checkpoint(self, log: LogIdentity, after: int, reached: int) -> None:
        """Store that everything up to a position was delivered."""
        self._lookback.remember_range(after, reached)
        checkpoint = Checkpoint(
            log_id=log.log_id,
            epoch=log.epoch,
            target=self._target_name,
            position=reached,
            last_event_id=self._store.event_id_at(reached) or "",
            written_at=format_us(time.time_ns() // 1000),
            delivered=self._lookback.checkpoint_keys,
        )
        self._checkpoints.advance(checkpoint)
        self._last = checkpoint
        self.report.position = reached
        self.report.steps += 1

    def _create_topics(self, after: int, until: int, layout: tuple[int, int]) -> None:
        """Create the topics of a template that the events of a range need."""
        streams = events(
            self._spark,
            self._url,
            after=after,
            until=until,
            tenant=self._tenant_id,
            columns=["tenant_id", "stream_type"],
        ).distinct()
        topics = {
            self._target.topic_for(row.tenant_id, row.stream_type) for row in streams.collect()
        }
        create_topics(self._target, topics, *layout)

    # -- the lease

    def _claim_lease(self, loop: JobLoop) -> Lease | None:
        """Wait for the lease; return None if the run is stopped first."""
        owner = uuid.uuid4().hex
        return wait_for_lease(
            lambda: self._store.claim_lease(
                INFRASTRUCTURE_TENANT, self._name, owner, self._lease_s
            ),
            stopped=lambda: loop.stopped,
            interval_s=min(_POLL_S, self._lease_s / 4),
            on_wait=lambda: self._progress.report_wait("waiting for another publisher"),
        )

    def _keep_lease(self, lease: Lease) -> LeaseKeeper:
        def warn(error: Exception) -> None:
            logger.warning("renewing the publisher's lease failed: %s", summarize_error(error))

        return LeaseKeeper(
            lambda: self._store.renew_lease(lease, self._lease_s),
            self._lease_s / 3,  # so that one failed renewal does not lose the lease
            name="the publisher's lease",
            on_error=warn,
            release=lambda: self._store.release_lease(lease),
        )

    # -- reports

    def _report(self, head: int) -> None:
        """Report the progress to the callback, and from time to time to the log file."""
        reported = self._progress.advance("publish", self.report.position, head)
        if time.monotonic() - self._logged_at >= self._settings.metrics_log_interval_s:
            self._logged_at = time.monotonic()
            logger.info(
                "published up to position %d of %d: %d sent, %d skipped, %d steps, %.0f events/s",
                self.report.position,
                head,
                self.report.sent,
                self.report.skipped,
                self.report.steps,
                reported.events_per_s,
            )


def _refused_error(position: int, event_id: str | None, reason: str) -> BackendFailure:
    """Build the error for an event that is too large for its topic."""
    msg = (
        f"Kafka refuses event {event_id} at position {position}: {reason}. Raise "
        "max.message.bytes of the topic (and message.max.bytes, if you set it), then publish "
        "again; all events before it are delivered"
    )
    details = {"position": position, "event_id": event_id, "kafka": "MSG_SIZE_TOO_LARGE"}
    return BackendFailure(msg, details=details, retryable=False)

"""The worker: handle due deferred events, then new ones, in batches on Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.config.delivery import RegistrySettings
from seriatim.core.backoff import Backoff
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.handler import Delivery, Handler
from seriatim.core.tenants import check_tenant
from seriatim.delivery.handler_loop import Counts, handler_stopped_error
from seriatim.delivery.registry import Registry
from seriatim.factory import absolute_url, open_registry, open_store, registry_url
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.project.stream_partitions import find_zero_based_kinds
from seriatim.pipeline.spark_errors import translate_spark_errors
from seriatim.pipeline.work.feeds import Feed, LogFeed
from seriatim.pipeline.work.tasks import COUNTS_SCHEMA, DeferredTask, TaskSpec
from seriatim.runs.job_loop import JobLoop, ProgressCallback, ProgressReporter
from seriatim.telemetry import tracer
from seriatim.telemetry.metrics import JobMetrics
from seriatim.telemetry.span_export import current_span_export

_INTERVAL_S = 2.0


@contextmanager
def report_registry_metrics(
    registry: Registry, handler: str, metrics: JobMetrics | None
) -> Iterator[None]:
    """Report the state of the registry to metrics while a block runs.

    This happens in a thread, so that an outage is reported while tasks wait for the registry.
    """
    if metrics is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_report_state,
        args=(registry, handler, metrics, ended),
        name="seriatim-monitor",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report_state(
    registry: Registry, handler: str, metrics: JobMetrics, ended: threading.Event
) -> None:
    clone: Registry | None = None
    while True:
        try:
            # A separate connection, as the worker's thread uses the other one.
            clone = clone or registry.clone(on_outage="fail_fast")
            counts = {
                state.status: state.count for state in clone.counts() if state.handler == handler
            }
            metrics.set_registry(handler, counts, unavailable=False)
        except BackendFailure:
            metrics.set_registry(handler, {}, unavailable=True)
        if ended.wait(_INTERVAL_S):
            break
    if clone is not None:
        clone.close()


BATCH_EVENTS = 50_000
_DUE_LIMIT = 10_000
_POLL_S = 0.5
# Half a second, as most failures are short: a broker that elects a leader, a lost connection.
_BACKOFF = Backoff(first_s=0.5, cap_s=30.0)


class Worker:
    """Runs one handler; several workers of a handler may run at once, in any processes.

    Example:
        with Worker(spark, receipts, url="postgresql://…/shop") as worker:
            counts = worker.run()

    """

    def __init__(
        self,
        spark: SparkSession,
        handler: Handler,
        *,
        url: str | None = None,
        source: Target | None = None,
        registry: str | None = None,
        tenant_id: str | None = None,
        settings: RegistrySettings | None = None,
        dead_letters: Target | None = None,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        on_progress: ProgressCallback | None = None,
        metrics: JobMetrics | None = None,
    ) -> None:
        """Open the log and the registry, and declare the handler.

        Args:
            spark: The session that runs the tasks.
            handler: The handler.
            url: The log. Required unless `source` and `registry` are given.
            source: The Kafka topic to read instead of the log.
            registry: The URL of the registry; by default it is beside the log.
            tenant_id: The tenant whose events are handled; None for all.
            settings: Leases and the behaviour in an outage.
            dead_letters: The topic to which dead letters are sent besides the registry.
            batch_events: How many events a batch has at most.
            redeclare: Whether to replace a different declaration of the handler.
            on_progress: Called with a `RunReport` after each batch.
            metrics: Where to report outcomes and the state of the registry.

        Raises:
            InvalidArgument: The options contradict each other.
            Conflict: The handler is declared differently.

        """
        settings = settings or RegistrySettings()
        if tenant_id is not None:
            check_tenant(tenant_id)
        _check_options(handler, url, source, registry, settings, dead_letters)
        registry_at = absolute_url(registry or registry_url(url or ""))
        self._spark = spark
        self._handler = handler
        self._progress = ProgressReporter(handler.name, on_progress)
        self._metrics = metrics
        self._store = None if url is None else open_store(url, Settings(), create=False)
        self._registry = open_registry(registry_at, settings)
        self._registry.declare(handler, replace=redeclare)
        self._spec = TaskSpec(
            handler=handler,
            registry_url=registry_at,
            settings=settings,
            log_url=None if url is None else absolute_url(url),
            zero_based=frozenset()
            if self._store is None
            else find_zero_based_kinds(self._store.rules()),
            dead_letters=dead_letters,
            span_export=current_span_export(),
        )
        self._feed = self._make_feed(source, tenant_id, batch_events)
        self._handled_events = 0
        self.counts = Counts()

    def _make_feed(self, source: Target | None, tenant_id: str | None, batch_events: int) -> Feed:
        if source is not None:
            from seriatim.pipeline.work.feeds import KafkaFeed  # noqa: PLC0415 - an extra

            return KafkaFeed(self._spark, source, tenant_id=tenant_id, batch_events=batch_events)
        assert self._store is not None  # noqa: S101 - checked by _check_options
        assert self._spec.log_url is not None  # noqa: S101 - set together with the store
        return LogFeed(
            self._spark,
            self._spec.log_url,
            self._store,
            tenant_id=tenant_id,
            batch_events=batch_events,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._registry.close()
        if self._store is not None:
            self._store.close()

    def run(self, *, live: bool = False, until: Callable[[], bool] = lambda: False) -> Counts:
        """Handle all events up to the end of the source, or with `live` continue from there.

        Args:
            live: Whether to follow the source. Retryable failures are then retried with backoff.
            until: Ends the run when it returns true.

        Returns:
            The number of events by outcome.

        Raises:
            Conflict: The handler is stopped, or paused and the run is not live.
            LogIdentityChanged: The log was restored or replaced.
            BackendFailure: The log, the registry or Kafka failed.

        Example:
            counts = worker.run()
            print(counts.done, counts.failed, counts.dead)
        """
        with report_registry_metrics(self._registry, self._handler.name, self._metrics):
            return self._run(live=live, until=until)

    def _run(self, *, live: bool, until: Callable[[], bool]) -> Counts:
        loop = JobLoop("the worker", self._progress, backoff=_BACKOFF, live=live, until=until)
        loop.run(lambda: self._run_step(loop))
        return self.counts

    def _run_step(self, loop: JobLoop) -> bool:
        """Run a round, and pause if there was nothing to do; return whether the run is complete."""
        # The state is read before every round, so that a pause takes effect between two batches.
        idle = self._is_paused(live=loop.live) or self._run_round()
        loop.reset_backoff()
        if idle and loop.live:
            loop.pause(_POLL_S)
        return idle and not loop.live

    def _run_round(self) -> bool:
        """Handle due deferred events and one batch of new ones; return whether there were none."""
        # The feed first, as it stops at a restored log: deferred events may no longer be in it.
        cursor = self._registry.cursor(self._handler, self._feed.name)
        batch = self._feed.next_batch(self._spec, cursor)
        due = self._registry.due(self._handler, _DUE_LIMIT)
        if due:
            self._run_job(self._build_deferred_job(due))
        if batch is None:
            return not due
        attributes: tracer.Attributes = {
            "seriatim.handler": self._handler.name,
            "seriatim.count": batch.events,
        }
        with tracer.span("seriatim.work", "consumer", attributes):
            self._run_job(batch.job)
        # Last: after a crash before this line the batch is repeated, and its events are duplicates.
        self._registry.move_cursor(self._handler, self._feed.name, batch.cursor)
        self._handled_events += batch.events
        done = self._handled_events
        self._progress.advance("work", done, done + batch.lag)
        return False

    def _is_paused(self, *, live: bool) -> bool:
        """Return whether a live worker must wait; raise `Conflict` if the handler has stopped."""
        reason = self._registry.inactive_reason(self._handler)
        if reason is None:
            return False
        if live and reason.startswith("paused"):
            self._progress.report_wait(reason)
            return True
        raise handler_stopped_error(self._handler, reason)

    def _build_deferred_job(self, due: list[Delivery]) -> DataFrame:
        """Return the job that handles deferred events, those of a stream in one task, in order."""
        # Spark does not keep the order of rows in a shuffle: number them, and sort by the number.
        parts = min(self._spark.sparkContext.defaultParallelism, len(due))
        streams = [str(delivery.ordered_stream or delivery.key) for delivery in due]
        table = pa.table(
            {
                "nth": pa.array(range(len(due)), pa.int64()),
                "stream": streams,
                "delivery": [msgspec.json.encode(delivery).decode() for delivery in due],
            }
        )
        frame = self._spark.createDataFrame(table)
        spread = frame.repartition(parts, "stream").sortWithinPartitions("nth")
        return spread.select("delivery").mapInArrow(DeferredTask(spec=self._spec), COUNTS_SCHEMA)

    def _run_job(self, job: DataFrame) -> None:
        """Run a job, and add its counts."""
        with translate_spark_errors():
            rows = job.collect()
        for row in rows:
            self.counts += Counts(**row.asDict())
        if self._metrics is not None:
            self._metrics.set_outcomes(self._handler.name, msgspec.structs.asdict(self.counts))


def _check_options(
    handler: Handler,
    url: str | None,
    source: Target | None,
    registry: str | None,
    settings: RegistrySettings,
    dead_letters: Target | None,
) -> None:
    if url is None and source is None:
        raise _invalid("url", "name the log to read, or a Kafka topic as source")
    if url is None and registry is None:
        raise _invalid("registry", "the registry must be named if the worker has no log")
    if url is None and handler.start and handler.mode == "strict":
        raise _invalid(
            "url",
            f"the strict handler {handler.name} starts at position {handler.start} and must see "
            "the log to look up earlier sequence numbers: name the log, start at 0, or use the "
            "mode latest_wins",
        )
    if not settings.enabled and handler.effect == "transactional":
        raise _invalid(
            "enabled",
            f"the transactional handler {handler.name} writes in the registry's transaction, so "
            "the registry must be enabled",
        )
    if settings.on_outage == "dlq" and dead_letters is None:
        raise _invalid(
            "on_outage",
            "dlq needs a dead-letter topic, outside the registry's database: name one "
            "(--dead-letters)",
        )


def _invalid(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{argument}: {problem}", details={"argument": argument})

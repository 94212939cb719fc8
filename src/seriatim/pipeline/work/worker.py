"""The worker: handle due deferred events, then new ones, in batches on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import InvalidArgument
from seriatim.core.handler import Delivery, Handler
from seriatim.core.tenants import check_tenant
from seriatim.delivery.handler_loop import Counts
from seriatim.delivery.handler_runner import (
    BatchOutcome,
    HandlerJob,
    Stopped,
    check_outage_options,
    run_handler,
)
from seriatim.factory import absolute_url, open_registry, open_store, registry_url
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.project.stream_partitions import find_zero_based_kinds
from seriatim.pipeline.spark_errors import translate_spark_errors
from seriatim.pipeline.work.feeds import Feed, FeedBatch, LogFeed
from seriatim.pipeline.work.tasks import COUNTS_SCHEMA, DeferredTask, TaskSpec
from seriatim.runs.job_loop import ProgressCallback
from seriatim.telemetry.metrics import JobMetrics
from seriatim.telemetry.span_export import current_span_export

BATCH_EVENTS = 50_000


class Worker(HandlerJob[FeedBatch]):
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
        super().__init__(
            handler, open_registry(registry_at, settings), on_progress=on_progress, metrics=metrics
        )
        self._spark = spark
        self._store = None if url is None else open_store(url, Settings(), create=False)
        self.registry.declare(handler, replace=redeclare)
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
        self.source = self._feed.name

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
        self.registry.close()
        if self._store is not None:
            self._store.close()

    def run(self, *, live: bool = False, until: Callable[[], bool] | None = None) -> Counts:
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
        return run_handler(self, live=live, until=until)

    def next_batch(self, cursor: str | None) -> FeedBatch | None:
        """Return the next batch of the source."""
        return self._feed.next_batch(self._spec, cursor)

    def handle_batch(self, batch: FeedBatch, stopped: Stopped) -> BatchOutcome:
        """Handle a whole batch on Spark."""
        del stopped  # a Spark job ends with its batch
        return BatchOutcome(
            counts=self._run_job(batch.job),
            cursor=batch.cursor,
            events=batch.events,
            lag=batch.lag,
        )

    def handle_due(self, due: list[Delivery], stopped: Stopped) -> Counts:
        """Handle deferred events on Spark."""
        del stopped
        return self._run_job(self._build_deferred_job(due))

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

    def _run_job(self, job: DataFrame) -> Counts:
        """Run a job, and return its counts."""
        with translate_spark_errors():
            rows = job.collect()
        counts = Counts()
        for row in rows:
            counts += Counts(**row.asDict())
        return counts


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
    check_outage_options(handler, settings, has_dead_letter_target=dead_letters is not None)


def _invalid(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{argument}: {problem}", details={"argument": argument})

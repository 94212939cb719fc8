"""A worker: what waited and is due, then what is new, batch by batch on Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.config.delivery import Registering
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.handling import Delivery, Handler
from seriatim.core.tenants import check_tenant
from seriatim.delivery.loop import Tally, stopped
from seriatim.opening import absolute_url, open_registry, open_store, registry_url
from seriatim.pipeline.failures import translated
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.project.job import Report, Watcher
from seriatim.pipeline.spread import zero_based
from seriatim.pipeline.work.feeds import Feed, LogFeed
from seriatim.pipeline.work.monitor import watched
from seriatim.pipeline.work.tasks import TALLY, KeptTask, Work
from seriatim.telemetry import tracing
from seriatim.telemetry.exporting import current
from seriatim.telemetry.job_metrics import JobMetrics

logger = logging.getLogger("seriatim")

BATCH_EVENTS = 50_000
_DUE = 10_000
_POLL_S = 0.5
_PATIENCE_S = 30.0


class Worker:
    """Runs one handler; several workers of it may run at once, in any number of processes."""

    def __init__(  # noqa: PLR0913 - where everything is
        self,
        spark: SparkSession,
        handler: Handler,
        *,
        url: str | None = None,
        source: Target | None = None,
        registry: str | None = None,
        tenant_id: str | None = None,
        settings: Registering | None = None,
        letters: Target | None = None,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        watcher: Watcher | None = None,
        metrics: JobMetrics | None = None,
    ) -> None:
        known = settings or Registering()
        if tenant_id is not None:
            check_tenant(tenant_id)
        _check(handler, url, source, registry, known, letters)
        place = absolute_url(registry or registry_url(url or ""))
        self._spark = spark
        self._handler = handler
        self._watcher = watcher or (lambda _: None)
        self._metrics = metrics
        self._store = None if url is None else open_store(url, Settings(), create=False)
        self._registry = open_registry(place, known)
        self._registry.declare(handler, replace=redeclare)
        self._work = Work(
            handler=handler,
            registry=place,
            settings=known,
            log=None if url is None else absolute_url(url),
            zero_based=frozenset() if self._store is None else zero_based(self._store.rules()),
            letters=letters,
            exporting=current(),
        )
        self._feed = self._fed_by(source, tenant_id, batch_events)
        self._began = time.monotonic()
        self._seen = 0
        self.done = Tally()

    def _fed_by(self, source: Target | None, tenant_id: str | None, batch_events: int) -> Feed:
        if source is not None:
            from seriatim.pipeline.work.kafka_feed import KafkaFeed  # noqa: PLC0415 - an extra

            return KafkaFeed(self._spark, source, tenant_id=tenant_id, batch_events=batch_events)
        assert self._store is not None  # noqa: S101 - checked above
        assert self._work.log is not None  # noqa: S101 - the same
        return LogFeed(
            self._spark,
            self._work.log,
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

    def run(self, *, live: bool = False, until: Callable[[], bool] = lambda: False) -> Tally:
        """Handle everything up to the source's end, or go on from there."""
        with watched(self._registry, self._handler.name, self._metrics):
            return self._run(live=live, until=until)

    def _run(self, *, live: bool, until: Callable[[], bool]) -> Tally:
        failed = 0
        while not until():
            try:
                idle = self._paused(live=live) or self._round()
                failed = 0
            except BackendFailure as error:
                if not live or not error.retryable:
                    raise
                failed += 1
                self._pause(error, min(_PATIENCE_S, 0.25 * 2**failed), until)
                continue
            if idle and not live:
                break
            if idle:
                time.sleep(_POLL_S)
        return self.done

    def _round(self) -> bool:
        """Handle what is due and one batch of what is new; tell whether there was nothing."""
        # First the feed, which stops at a restored log: what was kept may be of its lost future.
        cursor = self._registry.cursor(self._handler, self._feed.name)
        batch = self._feed.next(self._work, cursor)
        due = self._registry.due(self._handler, _DUE)
        if due:
            self._handled(self._waited(due))
        if batch is None:
            return not due
        told: tracing.Attributes = {
            "seriatim.handler": self._handler.name,
            "seriatim.count": batch.events,
        }
        with tracing.span("seriatim.work", "consumer", told):
            self._handled(batch.job)
        self._registry.move_cursor(self._handler, self._feed.name, batch.cursor)
        self._seen += batch.events
        pace = self._seen / max(time.monotonic() - self._began, 1e-6)
        self._watcher(Report(self._handler.name, "work", self._seen, self._seen + batch.lag, pace))
        return False

    def _paused(self, *, live: bool) -> bool:
        """Tell whether a live worker has to wait; raise if the handler has stopped."""
        reason = self._registry.held_up(self._handler)
        if reason is None:
            return False
        if live and reason.startswith("paused"):
            self._watcher(Report(self._handler.name, reason, 0, 0, 0.0))
            return True
        raise stopped(self._handler, reason)

    def _waited(self, due: list[Delivery]) -> DataFrame:
        """Make the job that handles what waited, the events of a stream in one task."""
        parts = min(self._spark.sparkContext.defaultParallelism, len(due))
        lines = [str(one.line or one.key) for one in due]
        table = pa.table(
            {
                "nth": pa.array(range(len(due)), pa.int64()),
                "line": lines,
                "delivery": [msgspec.json.encode(one).decode() for one in due],
            }
        )
        frame = self._spark.createDataFrame(table)
        spread = frame.repartition(parts, "line").sortWithinPartitions("nth")
        return spread.select("delivery").mapInArrow(KeptTask(work=self._work), TALLY)

    def _handled(self, job: DataFrame) -> None:
        with translated():
            rows = job.collect()
        for row in rows:
            self.done += Tally(**row.asDict())
        if self._metrics is not None:
            self._metrics.outcomes(self._handler.name, msgspec.structs.asdict(self.done))

    def _pause(self, error: BackendFailure, seconds: float, until: Callable[[], bool]) -> None:
        logger.warning("the worker waits %.1f s: %s", seconds, error.message)
        name = self._handler.name
        self._watcher(Report(name, f"waits {seconds:.0f} s ({error.code})", 0, 0, 0.0))
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not until():
            time.sleep(min(0.2, seconds))


def _check(  # noqa: PLR0913 - what must fit together
    handler: Handler,
    url: str | None,
    source: Target | None,
    registry: str | None,
    settings: Registering,
    letters: Target | None,
) -> None:
    if url is None and source is None:
        raise _bad("url", "name the log that feeds the worker, or a Kafka topic")
    if url is None and registry is None:
        raise _bad("registry", "without a log beside it, the registry must be named")
    if url is None and handler.start and handler.mode == "strict":
        raise _bad(
            "url",
            "a strict handler that starts in mid-log must see the log, which knows what lies "
            "before; name it, start at 0, or choose latest_wins",
        )
    if not settings.enabled and handler.effect == "transactional":
        raise _bad("enabled", "a transactional effect is written in the registry's transaction")
    if settings.on_outage == "dlq" and letters is None:
        raise _bad(
            "on_outage",
            "dlq needs a dead-letter topic outside the registry's database: name one",
        )


def _bad(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{argument}: {problem}", details={"argument": argument})

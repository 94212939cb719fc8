"""The metrics of a log: counters from its telemetry events, gauges read on each scrape."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from seriatim.core.errors import SeriatimError
from seriatim.core.event import DEFAULT_TENANT
from seriatim.telemetry import metric_families
from seriatim.telemetry.event_bus import Telemetry, TelemetryEvent
from seriatim.telemetry.metrics import (
    LABEL_VALUES_MAX,
    OTHER_LABEL,
    BoundedLabels,
    GaugeReading,
    Metrics,
)

_WINDOW_S = 60.0


class ObservedLog(Protocol):
    """The part of a log that its metrics use."""

    telemetry: Telemetry
    store: Any

    @property
    def projections(self) -> Any:
        """The projections of the log."""
        ...

    def head(self) -> int:
        """Return the last position."""
        ...

    def for_tenant(self, tenant_id: str) -> ObservedLog:
        """Return the log for another tenant."""
        ...


class LogGauges:
    """Read the gauges of one log, and cache them for `cache_s` seconds."""

    def __init__(
        self, log: ObservedLog, tenants: Callable[[], Iterable[str]], names_max: int, cache_s: float
    ) -> None:
        self._log = log
        self._tenants = tenants
        self._names_max = names_max
        self._cache_s = cache_s
        self._lock = threading.Lock()
        self._heads: deque[tuple[float, int]] = deque()
        self._cached: list[GaugeReading] = []
        self._read_at = float("-inf")

    def read(self) -> list[GaugeReading]:
        """Return all gauges; a log that cannot be read is reported as down."""
        # The lock is held while reading: concurrent scrapes wait for one read and share it.
        with self._lock:
            if time.monotonic() - self._read_at >= self._cache_s:
                self._cached = self._read()
                self._read_at = time.monotonic()
            return self._cached

    def _read(self) -> list[GaugeReading]:
        try:
            head = self._log.head()
        except SeriatimError:
            return [GaugeReading(metric_families.LOG_UP, (), 0)]
        readings = [
            GaugeReading(metric_families.LOG_UP, (), 1),
            GaugeReading(metric_families.LOG_HEAD, (), head),
            GaugeReading(metric_families.LOG_GROWTH, (), self._compute_growth_rate(head)),
        ]
        for tenant in islice(self._tenants(), self._names_max):
            view = self._log.for_tenant(tenant)
            for read in (self._projections, self._consumers):
                try:
                    readings += islice(read(view, tenant, head), 3 * self._names_max)
                except SeriatimError:  # there is no read model, or it is unavailable
                    continue
        return readings

    def _compute_growth_rate(self, head: int) -> float:
        """Return the mean rate of the last minute, independent of how often metrics are read."""
        now = time.monotonic()
        while self._heads and now - self._heads[0][0] > _WINDOW_S:
            self._heads.popleft()
        self._heads.append((now, head))
        since, first = self._heads[0]
        return max(0, head - first) / (now - since) if now > since else 0.0

    def _projections(self, view: ObservedLog, tenant: str, _head: int) -> Iterator[GaugeReading]:
        for standing in view.projections.status():
            labels = tenant, standing.name
            yield GaugeReading(metric_families.PROJECTION_LAG, labels, standing.lag)
            yield GaugeReading(metric_families.PROJECTION_FAILURES, labels, standing.failures)
            yield GaugeReading(metric_families.PROJECTION_RUNNING, labels, int(standing.running))

    def _consumers(self, view: ObservedLog, tenant: str, head: int) -> Iterator[GaugeReading]:
        for cursor in view.store.cursors(tenant, "subscription"):
            lag = max(0, head - cursor.position)
            labels = tenant, cursor.name
            attempts = cursor.attempt.attempts if cursor.attempt else 0
            yield GaugeReading(metric_families.CONSUMER_LAG, labels, lag)
            yield GaugeReading(metric_families.SUBSCRIPTION_PARKED, labels, int(cursor.parked))
            yield GaugeReading(metric_families.SUBSCRIPTION_ATTEMPTS, labels, attempts)


ListTenants = Callable[[], Iterable[str]]


class LogMetrics:
    """The metrics of one log; another log in the same process needs its own `Metrics`.

    Example:
        metrics = Metrics()
        LogMetrics(metrics).observe(log)
    """

    def __init__(self, metrics: Metrics, *, names_max: int = LABEL_VALUES_MAX) -> None:
        self._metrics = metrics
        self._names_max = names_max
        self._tenants = BoundedLabels(names_max)
        self._types = BoundedLabels(names_max)
        self._consumers = BoundedLabels(names_max)
        self._appends = metrics.create(metric_families.APPENDS)
        self._events = metrics.create(metric_families.APPEND_EVENTS)
        self._append_seconds = metrics.create(metric_families.APPEND_SECONDS)
        self._reuses = metrics.create(metric_families.REUSES)
        self._batches = metrics.create(metric_families.READ_BATCHES)
        self._records = metrics.create(metric_families.READ_RECORDS)
        self._failures = metrics.create(metric_families.SUBSCRIPTION_FAILURES)
        self._skips = metrics.create(metric_families.SUBSCRIPTION_SKIPS)
        self._read_seconds = metrics.create(metric_families.READ_SECONDS)

    def observe(
        self, log: ObservedLog, tenants: ListTenants | None = None, *, cache_s: float = 5.0
    ) -> Callable[[], None]:
        """Collect the metrics of a log, for all tenants.

        Args:
            log: The log.
            tenants: Returns the tenants whose projections and subscriptions are read; by default
                only the tenant `default`.
            cache_s: How long these readings are cached.

        Returns:
            A function that stops collecting.

        Example:
            stop = LogMetrics(Metrics()).observe(log, lambda: ["default", "acme"], cache_s=1.0)
        """
        gauges = LogGauges(log, tenants or (lambda: (DEFAULT_TENANT,)), self._names_max, cache_s)
        stop_functions = (
            log.telemetry.subscribe(self.record),
            self._metrics.register_reader(gauges.read),
        )

        def stop() -> None:
            for function in stop_functions:
                function()

        return stop

    def record(self, event: TelemetryEvent) -> None:
        """Count one telemetry event; the listener that `observe` registers."""
        tenant = self._tenants.bound(event.metadata["tenant_id"])
        if event.name == "store.append.stop":
            replayed = event.metadata["replayed"]
            self._count_append(tenant, "replayed" if replayed else "stored", event)
            if not replayed:
                kind = self._type_label(tenant, event.metadata["event_type"])
                self._events.labels(tenant, kind).inc(event.measurements["count"])
        elif event.name == "store.append.exception":
            self._count_append(tenant, event.metadata["error_code"], event)
        elif event.name == "store.idempotency.reuse":
            self._reuses.labels(tenant).inc()
        elif event.name == "subscription.exception":
            self._failures.labels(tenant, self._consumer_label(tenant, event)).inc()
        elif event.name == "subscription.skip":
            self._skips.labels(tenant, self._consumer_label(tenant, event)).inc()
        elif event.name == "store.read_batch.stop":
            self._batches.labels(tenant).inc()
            self._records.labels(tenant).inc(event.measurements["count"])
            self._read_seconds.observe(event.measurements["duration_s"])

    def _count_append(self, tenant: str, outcome: str, event: TelemetryEvent) -> None:
        self._appends.labels(tenant, outcome).inc()
        self._append_seconds.labels(outcome).observe(event.measurements["duration_s"])

    def _consumer_label(self, tenant: str, event: TelemetryEvent) -> str:
        name: str = event.metadata["subscription"]
        return name if self._consumers.admit(tenant, name) else OTHER_LABEL

    def _type_label(self, tenant: str, event_type: str) -> str:
        """Return the label of an event type; the pairs of tenant and type are bounded."""
        return event_type if self._types.admit(tenant, event_type) else OTHER_LABEL

"""The metrics of a log: counters from its telemetry events, gauges read on each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seriatim.core.event import DEFAULT_TENANT
from seriatim.telemetry import families
from seriatim.telemetry.bus import TelemetryEvent
from seriatim.telemetry.labels import NAMES_MAX, OTHER, Bounded
from seriatim.telemetry.log_gauges import Gauges, Watched
from seriatim.telemetry.metrics import Metrics

Tenants = Callable[[], Iterable[str]]


class LogMetrics:
    """The metrics of one log; another log in the same process needs its own `Metrics`.

    Example:
        metrics = Metrics()
        LogMetrics(metrics).observe(log)
    """

    def __init__(self, metrics: Metrics, *, names_max: int = NAMES_MAX) -> None:
        self._metrics = metrics
        self._names_max = names_max
        self._tenants = Bounded(names_max)
        self._types = Bounded(names_max)
        self._consumers = Bounded(names_max)
        self._appends = metrics.make(families.APPENDS)
        self._events = metrics.make(families.APPEND_EVENTS)
        self._append_seconds = metrics.make(families.APPEND_SECONDS)
        self._reuses = metrics.make(families.REUSES)
        self._batches = metrics.make(families.READ_BATCHES)
        self._records = metrics.make(families.READ_RECORDS)
        self._failures = metrics.make(families.SUBSCRIPTION_FAILURES)
        self._read_seconds = metrics.make(families.READ_SECONDS)

    def watch(
        self, log: Watched, tenants: Tenants | None = None, *, keep_s: float = 5.0
    ) -> Callable[[], None]:
        """Collect the metrics of a log, for all tenants.

        Args:
            log: The log.
            tenants: Returns the tenants whose projections and subscriptions are read; by default
                only the tenant `default`.
            cache_s: How long these readings are cached.

        Returns:
            A function that stops collecting.
        """
        gauges = Gauges(log, tenants or (lambda: (DEFAULT_TENANT,)), self._names_max, keep_s)
        stop_functions = (
            log.telemetry.subscribe(self.told),
            self._metrics.reads(gauges.readings),
        )

        def stop() -> None:
            for function in stop_functions:
                function()

        return stop

    def told(self, event: TelemetryEvent) -> None:
        """Count one telemetry event; the listener that `observe` registers."""
        tenant = self._tenants.name(event.metadata["tenant_id"])
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
            name = event.metadata["subscription"]
            known = self._consumers.admits(tenant, name)
            self._failures.labels(tenant, name if known else OTHER).inc()
        else:
            self._batches.labels(tenant).inc()
            self._records.labels(tenant).inc(event.measurements["count"])
            self._read_seconds.observe(event.measurements["duration_s"])

    def _count_append(self, tenant: str, outcome: str, event: TelemetryEvent) -> None:
        self._appends.labels(tenant, outcome).inc()
        self._append_seconds.labels(outcome).observe(event.measurements["duration_s"])

    def _type_label(self, tenant: str, event_type: str) -> str:
        """Return the label of an event type; the pairs of tenant and type are bounded."""
        return event_type if self._types.admits(tenant, event_type) else OTHER

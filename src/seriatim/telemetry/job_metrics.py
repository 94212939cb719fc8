"""Metrics of long-running jobs: progress, outcomes and registry entries."""

from __future__ import annotations

from collections.abc import Mapping

from seriatim.telemetry import metric_families
from seriatim.telemetry.metrics import Metrics

_STATUSES = ("claimed", "expired", "failed", "blocked", "dead", "unknown")


class JobMetrics:
    """The metrics of the jobs in one process."""

    def __init__(self, metrics: Metrics) -> None:
        self._position = metrics.create(metric_families.JOB_POSITION)
        self._lag = metrics.create(metric_families.JOB_LAG)
        self._pace = metrics.create(metric_families.JOB_PACE)
        self._done = metrics.create(metric_families.JOB_EVENTS)
        self._open = metrics.create(metric_families.REGISTRY_EVENTS)
        self._outage = metrics.create(metric_families.REGISTRY_OUTAGE)

    def set_progress(self, job: str, position: int, lag: int, pace: float) -> None:
        """Set the position, lag and events per second of a job."""
        self._position.labels(job).set(position)
        self._lag.labels(job).set(lag)
        self._pace.labels(job).set(pace)

    def set_outcomes(self, job: str, counts: Mapping[str, int]) -> None:
        """Set the number of events by outcome."""
        for outcome, count in counts.items():
            self._done.labels(job, outcome).set(count)

    def set_registry(self, handler: str, counts: Mapping[str, int], *, unavailable: bool) -> None:
        """Set the unfinished events of a handler by status, or that the registry is unavailable."""
        self._outage.labels(handler).set(int(unavailable))
        if unavailable:
            return
        for status in _STATUSES:
            self._open.labels(handler, status).set(counts.get(status, 0))

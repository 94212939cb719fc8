"""Metrics of the HTTP service: requests, durations, tails, refusals and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seriatim.telemetry import metric_families
from seriatim.telemetry.metrics import LABEL_VALUES_MAX, OTHER_LABEL, BoundedLabels, Metrics

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_ROUTES_MAX = 200


class ServiceMetrics:
    """The metrics of one service process; `route` is the path of a route, not of a request."""

    def __init__(self, metrics: Metrics, *, names_max: int = LABEL_VALUES_MAX) -> None:
        self._requests = metrics.create(metric_families.HTTP_REQUESTS)
        self._seconds = metrics.create(metric_families.HTTP_SECONDS)
        self._tails = metrics.create(metric_families.HTTP_TAILS)
        self._refusals = metrics.create(metric_families.HTTP_REFUSALS)
        self._bounds = metrics.create(metric_families.HTTP_BOUNDS)
        self._received = metrics.create(metric_families.HTTP_RECEIVED)
        self._sent = metrics.create(metric_families.HTTP_SENT)
        self._routes = BoundedLabels(_ROUTES_MAX)
        self._tenants = BoundedLabels(names_max)
        self._limits = BoundedLabels(names_max)

    def count_request(
        self,
        route: str,
        method: str,
        status: int,
        seconds: float,
        *,
        received: int = 0,
        sent: int = 0,
    ) -> None:
        """Count a completed request."""
        route_label = self._routes.bound(route)
        method_label = method if method in _METHODS else OTHER_LABEL
        self._requests.labels(route_label, method_label, f"{status // 100}xx").inc()
        self._seconds.labels(route_label).observe(seconds)
        self._received.labels(route_label).inc(received)
        self._sent.labels(route_label).inc(sent)

    def count_quota_refusal(self, tenant: str) -> None:
        """Count a request refused because of a quota."""
        self._refusals.labels(self._tenants.bound(tenant)).inc()

    def count_limit_reached(self, limit: str, tenant: str) -> None:
        """Count a request, tail or connection that reached a limit."""
        self._bounds.labels(self._limits.bound(limit), self._tenants.bound(tenant)).inc()

    @contextmanager
    def track_tail(self) -> Iterator[None]:
        """Count a tail as open while a block runs."""
        self._tails.inc()
        try:
            yield
        finally:
            self._tails.dec()

"""Metrics of the HTTP service: requests, durations, tails, refusals and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seriatim.telemetry import families
from seriatim.telemetry.labels import NAMES_MAX, OTHER, Bounded
from seriatim.telemetry.metrics import Metrics

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_ROUTES_MAX = 200


class ServiceMetrics:
    """The metrics of one service process; `route` is the path of a route, not of a request."""

    def __init__(self, metrics: Metrics, *, names_max: int = NAMES_MAX) -> None:
        self._requests = metrics.make(families.HTTP_REQUESTS)
        self._seconds = metrics.make(families.HTTP_SECONDS)
        self._tails = metrics.make(families.HTTP_TAILS)
        self._refusals = metrics.make(families.HTTP_REFUSALS)
        self._bounds = metrics.make(families.HTTP_BOUNDS)
        self._received = metrics.make(families.HTTP_RECEIVED)
        self._sent = metrics.make(families.HTTP_SENT)
        self._routes = Bounded(_ROUTES_MAX)
        self._tenants = Bounded(names_max)
        self._limits = Bounded(names_max)

    def request(  # noqa: PLR0913 - the labels and values of a request
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
        route_label = self._routes.name(route)
        method_label = method if method in _METHODS else OTHER
        self._requests.labels(route_label, method_label, f"{status // 100}xx").inc()
        self._seconds.labels(route_label).observe(seconds)
        self._received.labels(route_label).inc(received)
        self._sent.labels(route_label).inc(sent)

    def refused(self, tenant: str) -> None:
        """Count a request refused because of a quota."""
        self._refusals.labels(self._tenants.name(tenant)).inc()

    def bound_met(self, limit: str, tenant: str) -> None:
        """Count a request, tail or connection that reached a limit."""
        self._bounds.labels(self._limits.name(limit), self._tenants.name(tenant)).inc()

    @contextmanager
    def tail(self) -> Iterator[None]:
        """Count a tail as open while a block runs."""
        self._tails.inc()
        try:
            yield
        finally:
            self._tails.dec()

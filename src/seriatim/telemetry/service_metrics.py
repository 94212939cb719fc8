"""What the HTTP service counts: requests, how long they took, tails, refusals, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seriatim.telemetry import families
from seriatim.telemetry.labels import NAMES_MAX, OTHER, Bounded
from seriatim.telemetry.metrics import Metrics

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_ROUTES_MAX = 200


class ServiceMetrics:
    """The requests of one process; a route is its pattern, such as /v1/events/{event_id}."""

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

    def request(  # noqa: PLR0913 - what is to be known of a request
        self,
        route: str,
        method: str,
        status: int,
        seconds: float,
        *,
        received: int = 0,
        sent: int = 0,
    ) -> None:
        """Count a request that has been answered."""
        named = self._routes.name(route)
        known = method if method in _METHODS else OTHER
        self._requests.labels(named, known, f"{status // 100}xx").inc()
        self._seconds.labels(named).observe(seconds)
        self._received.labels(named).inc(received)
        self._sent.labels(named).inc(sent)

    def refused(self, tenant: str) -> None:
        """Count a request that a quota refused."""
        self._refusals.labels(self._tenants.name(tenant)).inc()

    def bound_met(self, limit: str, tenant: str) -> None:
        """Count a request, tail or connection that met a bound."""
        self._bounds.labels(self._limits.name(limit), self._tenants.name(tenant)).inc()

    @contextmanager
    def tail(self) -> Iterator[None]:
        """Count a tail as open while a block runs."""
        self._tails.inc()
        try:
            yield
        finally:
            self._tails.dec()

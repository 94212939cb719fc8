"""Gauges read from a log on each scrape: head, growth and lag of consumers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from seriatim.core.errors import SeriatimError
from seriatim.telemetry import families
from seriatim.telemetry.bus import Telemetry
from seriatim.telemetry.metrics import Reading

_WINDOW_S = 60.0


class Watched(Protocol):
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

    def for_tenant(self, tenant_id: str) -> Watched:
        """Return the log for another tenant."""
        ...


class Gauges:
    """Read the gauges of one log, and cache them for `keep_s` seconds."""

    def __init__(
        self, log: Watched, tenants: Callable[[], Iterable[str]], names_max: int, keep_s: float
    ) -> None:
        self._log = log
        self._tenants = tenants
        self._names_max = names_max
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._heads: deque[tuple[float, int]] = deque()
        self._cached: list[Reading] = []
        self._read_at = float("-inf")

    def readings(self) -> list[Reading]:
        """Return all gauges; a log that cannot be read is reported as down."""
        # The lock is held while reading: concurrent scrapes wait for one read and share it.
        with self._lock:
            if time.monotonic() - self._read_at >= self._keep_s:
                self._cached = self._read()
                self._read_at = time.monotonic()
            return self._cached

    def _read(self) -> list[Reading]:
        try:
            head = self._log.head()
        except SeriatimError:
            return [Reading(families.LOG_UP, (), 0)]
        readings = [
            Reading(families.LOG_UP, (), 1),
            Reading(families.LOG_HEAD, (), head),
            Reading(families.LOG_GROWTH, (), self._growth(head)),
        ]
        for tenant in islice(self._tenants(), self._names_max):
            view = self._log.for_tenant(tenant)
            for read in (self._projections, self._consumers):
                try:
                    readings += islice(read(view, tenant, head), 3 * self._names_max)
                except SeriatimError:  # there is no read model, or it is unavailable
                    continue
        return readings

    def _growth(self, head: int) -> float:
        """Return the mean rate of the last minute, independent of how often metrics are read."""
        now = time.monotonic()
        while self._heads and now - self._heads[0][0] > _WINDOW_S:
            self._heads.popleft()
        self._heads.append((now, head))
        since, first = self._heads[0]
        return max(0, head - first) / (now - since) if now > since else 0.0

    def _projections(self, view: Watched, tenant: str, _head: int) -> Iterator[Reading]:
        for one in view.projections.status():
            labels = tenant, one.name
            yield Reading(families.PROJECTION_LAG, labels, one.lag)
            yield Reading(families.PROJECTION_FAILURES, labels, one.failures)
            yield Reading(families.PROJECTION_RUNNING, labels, int(one.running))

    def _consumers(self, view: Watched, tenant: str, head: int) -> Iterator[Reading]:
        for one in view.store.cursors(tenant, "subscription"):
            lag = max(0, head - one.position)
            yield Reading(families.CONSUMER_LAG, (tenant, one.name), lag)

"""What a log is asked when somebody looks at its metrics: its head, its growth, who is behind."""

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
    """A log, as far as its metrics need it."""

    telemetry: Telemetry
    store: Any

    @property
    def projections(self) -> Any:
        """Where its projections stand."""
        ...

    def head(self) -> int:
        """Return the last position."""
        ...

    def for_tenant(self, tenant_id: str) -> Watched:
        """Return the log as another tenant sees it."""
        ...


class Gauges:
    """Reads one log, at most once in a while however many look."""

    def __init__(
        self, log: Watched, tenants: Callable[[], Iterable[str]], names_max: int, keep_s: float
    ) -> None:
        self._log = log
        self._tenants = tenants
        self._names_max = names_max
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._heads: deque[tuple[float, int]] = deque()
        self._kept: list[Reading] = []
        self._read_at = float("-inf")

    def readings(self) -> list[Reading]:
        """Return how everything stands; a log that cannot be asked is shown as down."""
        with self._lock:
            if time.monotonic() - self._read_at >= self._keep_s:
                self._kept = self._read()
                self._read_at = time.monotonic()
            return self._kept

    def _read(self) -> list[Reading]:
        try:
            head = self._log.head()
        except SeriatimError:
            return [Reading(families.LOG_UP, (), 0)]
        made = [
            Reading(families.LOG_UP, (), 1),
            Reading(families.LOG_HEAD, (), head),
            Reading(families.LOG_GROWTH, (), self._growth(head)),
        ]
        for tenant in islice(self._tenants(), self._names_max):
            view = self._log.for_tenant(tenant)
            for read in (self._projections, self._consumers):
                try:
                    made += islice(read(view, tenant, head), 3 * self._names_max)
                except SeriatimError:  # it has no place for them, or they cannot be asked now
                    continue
        return made

    def _growth(self, head: int) -> float:
        """Return the mean of the last minute, so that it is the same for all who look."""
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

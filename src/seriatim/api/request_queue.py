"""Start requests on the event loop in a fair order: a short time per iteration, least used first.

Between two iterations the loop looks for new input. A health check or the request of another
tenant therefore waits for that time and one request, however many requests a tenant has sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

START_S = 0.0002  # per iteration; requests that arrive later are queued
ALONE = 10  # times START_S while one tenant is alone: its appends share commits
NEIGHBOUR_S = 1.0  # a tenant counts as active for this long after a request
YIELD_S = 0.005  # that a tenant waits for requests of tenants that have used less time
HALF_LIFE_S = 1.0  # of the processor time that a tenant has used
_TENANTS_MAX = 10_000


class RequestQueue:
    """Queue the requests of tenants while the event loop is busy; used by the event loop alone.

    The tenant that has used the least processor time lately goes first. While a request of such
    a tenant is in progress, tenants that have used more start nothing for up to `YIELD_S`: the
    threads that serve it need the interpreter lock, which a busy event loop rarely leaves to them.
    """

    def __init__(
        self, start_s: float = START_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start_s = start_s
        self._clock = clock
        self._busy_s = time.thread_time  # processor time of the event loop's thread
        self._began = 0.0
        self._scheduled = False  # whether `_start_queued` runs in this iteration or the next
        self._timer: asyncio.TimerHandle | None = None
        self._started: list[str] = []  # the tenants of the requests that this iteration started
        self._cost_s = 0.0  # of one request, about
        self._recent = ("", -NEIGHBOUR_S)  # the last tenant, and since when it is the only one
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        # The tenant and start of each running request, the oldest first.
        self._running: dict[object, tuple[str, float]] = {}
        self._used: dict[str, tuple[float, float]] = {}  # seconds, and when they were added

    async def run(self, tenant_id: str, act: Callable[[], Awaitable[T]]) -> T:
        """Run a request of a tenant, at once if the event loop is not busy.

        Args:
            tenant_id: The tenant.
            act: Runs the request.
        """
        if not self._scheduled:
            self._schedule()
        if tenant_id != self._recent[0]:
            self._recent = tenant_id, self._clock() if self._recent[0] else -NEIGHBOUR_S
        if self._queues or self._busy_s() - self._began >= self._iteration_s():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(tenant_id, deque()).append(waiter)
            await waiter
        key = object()
        self._started.append(tenant_id)
        self._running[key] = tenant_id, self._clock()
        try:
            return await act()
        finally:
            self._running.pop(key, None)
            if self._queues and not self._scheduled:
                self._schedule()  # other tenants may have waited for this request

    def charge(self, tenant_id: str, seconds: float) -> None:
        """Count processor time that was used for a tenant."""
        if len(self._used) >= _TENANTS_MAX:
            self._used.clear()
        self._used[tenant_id] = self.used(tenant_id) + seconds, self._clock()

    def used(self, tenant_id: str) -> float:
        """Return the processor time that a tenant has used lately, in seconds."""
        seconds, charged_at = self._used.get(tenant_id, (0.0, 0.0))
        return seconds * 0.5 ** ((self._clock() - charged_at) / HALF_LIFE_S) if seconds else 0.0

    def _iteration_s(self) -> float:
        """Return the time in which one iteration may start requests."""
        is_alone = self._clock() - self._recent[1] >= NEIGHBOUR_S
        return self._start_s * (ALONE if is_alone else 1)

    def _schedule(self) -> None:
        self._scheduled = True
        self._began = self._busy_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asyncio.get_running_loop().call_soon(self._start_queued)

    def _start_queued(self) -> None:
        """Start the queued requests that fit into the next iteration."""
        self._scheduled = False
        self._charge_iteration()
        left_s, count, wait_s = self._iteration_s(), 0, 0.0
        # At least one per iteration: a costly request must not stop the queue.
        while self._queues and (not count or left_s > 0):
            tenant_id = min(self._queues, key=self.used)
            if wait_s := self._wait_s(tenant_id):
                break
            queue = self._queues[tenant_id]
            waiter = queue.popleft()
            if not queue:
                del self._queues[tenant_id]
            if not waiter.done():  # skip cancelled requests
                waiter.set_result(None)
                count += 1
                left_s -= self._cost_s
        if count:
            self._schedule()
        elif wait_s:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._schedule)

    def _charge_iteration(self) -> None:
        """Charge the iteration to the tenants whose requests it started."""
        if self._started:
            # Requests interleave within an iteration, so its time is divided among them.
            seconds = (self._busy_s() - self._began) / len(self._started)
            for tenant_id in self._started:
                self.charge(tenant_id, seconds)
            self._cost_s += (seconds - self._cost_s) / 8
            self._started.clear()

    def _wait_s(self, tenant_id: str) -> float:
        """Return how long a tenant has to wait for requests of tenants that have used less time."""
        now = self._clock()
        while self._running:
            oldest, (_, since) = next(iter(self._running.items()))
            if now - since < YIELD_S:
                break
            del self._running[oldest]
        used_s = self.used(tenant_id)
        for other, since in self._running.values():
            if other != tenant_id and self.used(other) < used_s:
                return since + YIELD_S - now
        return 0.0

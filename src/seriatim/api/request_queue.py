"""Start requests on the event loop in a fair order: a short time per iteration, least used first.

Between two iterations the loop looks for new input. A health check or the request of another
tenant therefore waits for `START_S` and one request, however many requests a tenant has sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

START_S = 0.0002  # of one iteration, after which the requests that have come are queued
ALONE = 5  # times as long while one tenant is alone: its appends share commits
NEIGHBOUR_S = 1.0  # a tenant that was seen so long ago still counts as active
YIELD_S = 0.005  # that a tenant which has used more waits for the request of one which has less
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
        self._scheduled = False  # whether `_next` runs in this iteration or the next
        self._alarm: asyncio.TimerHandle | None = None
        self._started: list[str] = []  # the tenants of the requests that this iteration started
        self._cost_s = 0.0  # of one request, about
        self._recent = ("", -NEIGHBOUR_S)  # who came last, and since when another does not
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._young: dict[object, tuple[str, float]] = {}  # in progress, since when, oldest first
        self._used: dict[str, tuple[float, float]] = {}  # seconds, and at which time

    async def run(self, tenant_id: str, act: Callable[[], Awaitable[T]]) -> T:
        """Do something for a tenant once it is its turn; at once while the loop is not busy."""
        if not self._scheduled:
            self._schedule()
        if tenant_id != self._recent[0]:
            self._recent = tenant_id, self._clock() if self._recent[0] else -NEIGHBOUR_S
        if self._queues or self._busy_s() - self._began >= self._time_s():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(tenant_id, deque()).append(waiter)
            await waiter
        key = object()
        self._started.append(tenant_id)
        self._young[key] = tenant_id, self._clock()
        try:
            return await act()
        finally:
            self._young.pop(key, None)
            if self._queues and not self._scheduled:
                self._schedule()  # others may have waited for it

    def charge(self, tenant_id: str, seconds: float) -> None:
        """Count processor time that was used for a tenant."""
        if len(self._used) >= _TENANTS_MAX:
            self._used.clear()
        self._used[tenant_id] = self.used(tenant_id) + seconds, self._clock()

    def used(self, tenant_id: str) -> float:
        """Return the processor time that a tenant has used lately, in seconds."""
        seconds, at = self._used.get(tenant_id, (0.0, 0.0))
        return seconds * 0.5 ** ((self._clock() - at) / HALF_LIFE_S) if seconds else 0.0

    def _time_s(self) -> float:
        """Return how long one iteration may start requests."""
        alone = self._clock() - self._recent[1] >= NEIGHBOUR_S
        return self._start_s * (ALONE if alone else 1)

    def _schedule(self) -> None:
        self._scheduled = True
        self._began = self._busy_s()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Let the requests start that have time in the next iteration."""
        self._scheduled = False
        self._account()
        left_s, count, held_s = self._time_s(), 0, 0.0
        while self._queues and (not count or left_s > 0):
            tenant_id = min(self._queues, key=self.used)
            if held_s := self._held_s(tenant_id):
                break
            queue = self._queues[tenant_id]
            waiter = queue.popleft()
            if not queue:
                del self._queues[tenant_id]
            if not waiter.done():  # one that was cancelled has left
                waiter.set_result(None)
                count += 1
                left_s -= self._cost_s
        if count:
            self._schedule()
        elif held_s:
            self._alarm = asyncio.get_running_loop().call_later(held_s, self._schedule)

    def _account(self) -> None:
        """Charge the iteration to the tenants whose requests it started."""
        if self._started:
            seconds = (self._busy_s() - self._began) / len(self._started)
            for tenant_id in self._started:
                self.charge(tenant_id, seconds)
            self._cost_s += (seconds - self._cost_s) / 8
            self._started.clear()

    def _held_s(self, tenant_id: str) -> float:
        """Return how long a tenant waits for requests of those that have used less."""
        now = self._clock()
        while self._young:
            oldest, (_, since) = next(iter(self._young.items()))
            if now - since < YIELD_S:
                break
            del self._young[oldest]
        own = self.used(tenant_id)
        for other, since in self._young.values():
            if other != tenant_id and self.used(other) < own:
                return since + YIELD_S - now
        return 0.0

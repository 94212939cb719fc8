"""Turns: no tenant has more than its share of work under way, the rest of its own waits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

from seriatim.core.errors import LimitExceeded, TimedOut

OTHER_TENANT_S = 1.0  # a tenant that was seen so long ago still counts as there


class TenantLimiter:
    """So many requests of a tenant are under way at once; a bounded number of others waits.

    A tenant alone may have many under way, which share commits. While another is there, each has
    few: whoever comes next waits for a few of a flood's, not for all of them.
    """

    def __init__(self, alone: int, beside: int, waiting: int, what: str = "appends") -> None:
        self._what = what
        self._alone = alone
        self._beside = min(beside, alone)
        self._waiting = waiting
        self._tenants: dict[str, _Tenant] = {}
        self._last = ("", 0.0)  # who came last, and when that was another than before

    def slot(self, tenant_id: str, seconds: float) -> _Turn:
        """Return what holds one turn of a tenant's, once it is had, in so many seconds."""
        return _Turn(self, tenant_id, seconds)

    async def acquire(self, tenant_id: str, seconds: float) -> None:
        """Wait for a turn, or be told that too many wait, or that it took too long."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _Tenant()
        if tenant.under_way < self._at_once(tenant_id):
            tenant.under_way += 1
            return
        if len(tenant.queue) >= self._waiting:
            raise _busy(self._what, self._waiting)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        tenant.queue.append(waiter)
        alarm = loop.call_later(seconds, _too_late, waiter, self._what)
        try:
            await waiter
        except (asyncio.CancelledError, TimedOut):
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(tenant_id)  # it had just been given a turn
            else:
                with suppress(ValueError):  # somebody passed over it already
                    tenant.queue.remove(waiter)
            raise
        finally:
            alarm.cancel()

    def _at_once(self, tenant_id: str) -> int:
        """Return how many a tenant may have under way now."""
        last, changed = self._last
        now = time.monotonic()
        if last != tenant_id:
            changed = now if last else now - OTHER_TENANT_S  # the very first has no neighbour
            self._last = tenant_id, changed
        return self._beside if now - changed < OTHER_TENANT_S else self._alone

    def release(self, tenant_id: str) -> None:
        """Pass a turn on, to as many as may be under way now."""
        tenant = self._tenants[tenant_id]
        tenant.under_way -= 1
        room = self._at_once(tenant_id) if tenant.queue else 0
        while tenant.queue and tenant.under_way < room:
            waiter = tenant.queue.popleft()
            if not waiter.done():
                tenant.under_way += 1
                waiter.set_result(None)
        if not tenant.under_way and not tenant.queue:
            del self._tenants[tenant_id]


class _Tenant:
    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.queue: deque[asyncio.Future[None]] = deque()


class _Turn:
    __slots__ = ("_seconds", "_tenant_id", "_turns")

    def __init__(self, turns: TenantLimiter, tenant_id: str, seconds: float) -> None:
        self._turns = turns
        self._tenant_id = tenant_id
        self._seconds = seconds

    async def __aenter__(self) -> None:
        await self._turns.acquire(self._tenant_id, self._seconds)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns.release(self._tenant_id)


def _too_late(waiter: asyncio.Future[None], what: str) -> None:
    if not waiter.done():
        msg = f"too many {what} of this tenant were before this one; nothing was done"
        waiter.set_exception(TimedOut(msg))


def _busy(what: str, bound: int) -> LimitExceeded:
    msg = f"{bound} {what} of this tenant wait already; try again"
    details = {"limit": "tenant_waiting", "bound": bound, "retry_after_s": 0.1}
    return LimitExceeded(msg, details=details, retryable=True)

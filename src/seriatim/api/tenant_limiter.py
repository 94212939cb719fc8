"""Limit the concurrent requests of each tenant; further requests of that tenant queue."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

from seriatim.core.errors import LimitExceeded, TimedOut

OTHER_TENANT_S = 1.0  # a tenant counts as active for this long after a request


class TenantLimiter:
    """Limit the requests of each tenant that run at once; used by the event loop alone.

    A tenant that is alone may run many requests, which share commits. While another tenant is
    active, each runs few: a request then waits for a few of a busy tenant's, not for all of them.

    Args:
        alone: Concurrent requests of a tenant while no other is active.
        beside: Concurrent requests of each tenant while others are active.
        waiting: Queued requests per tenant.
        kind: The kind of request, for error messages.
    """

    def __init__(self, alone: int, beside: int, waiting: int, kind: str = "appends") -> None:
        self._kind = kind
        self._alone = alone
        self._beside = min(beside, alone)
        self._waiting = waiting
        self._tenants: dict[str, _TenantState] = {}
        self._last = ("", 0.0)  # the last tenant, and since when requests are all of that tenant

    def slot(self, tenant_id: str, seconds: float) -> _Slot:
        """Return a context manager that holds a slot, acquired within `seconds`."""
        return _Slot(self, tenant_id, seconds)

    async def acquire(self, tenant_id: str, seconds: float) -> None:
        """Acquire a slot, which `release` frees.

        Raises:
            LimitExceeded: Too many requests of the tenant are queued.
            TimedOut: No slot became free within `seconds`.
        """
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _TenantState()
        if tenant.running < self._slots(tenant_id):
            tenant.running += 1
            return
        if len(tenant.queue) >= self._waiting:
            raise _queue_error(self._kind, self._waiting)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        tenant.queue.append(waiter)
        timer = loop.call_later(seconds, _expire, waiter, self._kind)
        try:
            await waiter
        except (asyncio.CancelledError, TimedOut):
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(tenant_id)  # a slot was granted just before
            else:
                with suppress(ValueError):  # `release` removed it already
                    tenant.queue.remove(waiter)
            raise
        finally:
            timer.cancel()

    def _slots(self, tenant_id: str) -> int:
        """Return the number of slots that a tenant has now."""
        last, alone_since = self._last
        now = time.monotonic()
        if last != tenant_id:
            alone_since = now if last else now - OTHER_TENANT_S  # the first tenant is alone
            self._last = tenant_id, alone_since
        return self._beside if now - alone_since < OTHER_TENANT_S else self._alone

    def release(self, tenant_id: str) -> None:
        """Free a slot, and start as many queued requests as the tenant has slots now."""
        tenant = self._tenants[tenant_id]
        tenant.running -= 1
        slots = self._slots(tenant_id) if tenant.queue else 0
        while tenant.queue and tenant.running < slots:
            waiter = tenant.queue.popleft()
            if not waiter.done():
                tenant.running += 1
                waiter.set_result(None)
        if not tenant.running and not tenant.queue:
            del self._tenants[tenant_id]


class _TenantState:
    __slots__ = ("queue", "running")

    def __init__(self) -> None:
        self.running = 0
        self.queue: deque[asyncio.Future[None]] = deque()


class _Slot:
    __slots__ = ("_limiter", "_seconds", "_tenant_id")

    def __init__(self, limiter: TenantLimiter, tenant_id: str, seconds: float) -> None:
        self._limiter = limiter
        self._tenant_id = tenant_id
        self._seconds = seconds

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self._tenant_id, self._seconds)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._limiter.release(self._tenant_id)


def _expire(waiter: asyncio.Future[None], kind: str) -> None:
    if not waiter.done():
        msg = f"timed out in the queue of this tenant's {kind}; nothing was done"
        waiter.set_exception(TimedOut(msg))


def _queue_error(kind: str, bound: int) -> LimitExceeded:
    msg = f"{bound} {kind} of this tenant are queued already: try again"
    details = {"limit": "tenant_waiting", "bound": bound, "retry_after_s": 0.1}
    return LimitExceeded(msg, details=details, retryable=True)

"""Turns: no tenant has more than its share of appends under way, the rest of its own wait."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType

from seriatim.core.errors import LimitExceeded


class Turns:
    """So many requests of a tenant are under way at once; a bounded number of others waits."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._waiting = waiting
        self._tenants: dict[str, _Tenant] = {}

    def turn(self, tenant_id: str) -> _Turn:
        """Return what holds one turn of a tenant's."""
        return _Turn(self, tenant_id)

    async def take(self, tenant_id: str) -> None:
        """Wait for a turn, or be told that too many wait."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _Tenant()
        if tenant.under_way < self._at_once:
            tenant.under_way += 1
            return
        if len(tenant.queue) >= self._waiting:
            raise _busy(self._waiting)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tenant.queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give(tenant_id)  # it had just been given a turn
            else:
                with suppress(ValueError):  # somebody passed over it already
                    tenant.queue.remove(waiter)
            raise

    def give(self, tenant_id: str) -> None:
        """Pass a turn on."""
        tenant = self._tenants[tenant_id]
        while tenant.queue:
            waiter = tenant.queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        tenant.under_way -= 1
        if not tenant.under_way:
            del self._tenants[tenant_id]


class _Tenant:
    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.queue: deque[asyncio.Future[None]] = deque()


class _Turn:
    __slots__ = ("_tenant_id", "_turns")

    def __init__(self, turns: Turns, tenant_id: str) -> None:
        self._turns = turns
        self._tenant_id = tenant_id

    async def __aenter__(self) -> None:
        await self._turns.take(self._tenant_id)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns.give(self._tenant_id)


def _busy(bound: int) -> LimitExceeded:
    msg = f"{bound} appends of this tenant wait already; try again"
    details = {"limit": "tenant_waiting", "bound": bound, "retry_after_s": 0.1}
    return LimitExceeded(msg, details=details, retryable=True)

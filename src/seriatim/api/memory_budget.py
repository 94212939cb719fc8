"""Bound the memory of each tenant in a process: bodies, unsent responses, work in progress."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from seriatim.core.errors import LimitExceeded, TimedOut
from seriatim.core.limits import MIB, limit_error

MEMORY_LIMIT = "tenant_memory_bytes"
WORK_BYTES = 32 * MIB  # of parsed bodies and responses being built, in addition to the budget
_RETRY_S = 1.0


class MemoryBudget:
    """Count the bytes that each tenant holds; used by the event loop alone.

    Request bodies and unsent responses count against `bound`. Work in progress (parsed bodies,
    responses being built) has a smaller budget of its own, for which requests queue.

    Args:
        bound: Bytes of bodies and unsent responses per tenant.
        work: Bytes of work in progress per tenant.
    """

    def __init__(self, bound: int, work: int = WORK_BYTES) -> None:
        self.bound = bound
        self._work = work
        self._tenants: dict[str, _Usage] = {}

    def used(self, tenant_id: str) -> int:
        """Return the bytes of bodies and unsent responses that a tenant holds."""
        usage = self._tenants.get(tenant_id)
        return 0 if usage is None else usage.held.used

    def acquire(self, tenant_id: str, size: int) -> None:
        """Count bytes.

        Raises:
            LimitExceeded: They do not fit.
        """
        if size > self.bound:
            raise limit_error(MEMORY_LIMIT, self.bound, size)
        if not self.try_acquire(tenant_id, size):
            raise _memory_error(self.bound, self.used(tenant_id) + size)

    def try_acquire(self, tenant_id: str, size: int) -> bool:
        """Count bytes if they fit; return whether they do."""
        usage = self._usage(tenant_id)
        fits = usage.held.used + size <= self.bound
        if fits:
            usage.held.used += size
        self._remove_if_idle(tenant_id, usage)
        return fits

    def add(self, tenant_id: str, size: int) -> None:
        """Count bytes that are already allocated, even over the bound."""
        usage = self._usage(tenant_id)
        usage.held.used += size
        self._remove_if_idle(tenant_id, usage)

    def release(self, tenant_id: str, size: int) -> None:
        """Stop counting bytes."""
        if size:
            usage = self._tenants[tenant_id]
            usage.held.release_bytes(size)
            self._remove_if_idle(tenant_id, usage)

    async def wait_and_acquire(self, tenant_id: str, size: int, seconds: float) -> None:
        """Count bytes as soon as they fit.

        Raises:
            LimitExceeded: They did not fit within `seconds`.
        """
        usage = self._usage(tenant_id)
        try:
            # More than the bound would never fit.
            await usage.held.acquire_bytes(min(size, self.bound), seconds)
        except TimeoutError:
            raise _memory_error(self.bound, usage.held.used + size) from None
        finally:
            self._remove_if_idle(tenant_id, usage)

    @asynccontextmanager
    async def reserve_work(self, tenant_id: str, size: int, seconds: float) -> AsyncIterator[None]:
        """Reserve memory for work of about this size; work over the whole budget runs alone.

        Raises:
            TimedOut: Other work of the tenant left too little memory for `seconds`.
        """
        usage = self._usage(tenant_id)
        reserved = min(size, self._work)
        try:
            await usage.work.acquire_bytes(reserved, seconds)
            try:
                yield
            finally:
                usage.work.release_bytes(reserved)
        except TimeoutError:
            msg = "timed out while large requests of this tenant used its memory; nothing was done"
            raise TimedOut(msg) from None
        finally:
            self._remove_if_idle(tenant_id, usage)

    def check_response(self, tenant_id: str, size: int) -> None:
        """Check that a response could be held until it is sent, before it is built.

        Raises:
            LimitExceeded: It could not.
        """
        if (used := self.used(tenant_id)) + size > max(self.bound, size):
            raise _memory_error(self.bound, used + size)

    def _usage(self, tenant_id: str) -> _Usage:
        usage = self._tenants.get(tenant_id)
        if usage is None:
            usage = self._tenants[tenant_id] = _Usage(self.bound, self._work)
        return usage

    def _remove_if_idle(self, tenant_id: str, usage: _Usage) -> None:
        # Idle tenants have no entry: their number must not fill the memory.
        if usage.held.idle and usage.work.idle:
            self._tenants.pop(tenant_id, None)


class _Usage:
    """The bytes of one tenant."""

    __slots__ = ("held", "work")

    def __init__(self, bound: int, work: int) -> None:
        self.held = _ByteQueue(bound)
        self.work = _ByteQueue(work)


class _ByteQueue:
    """A number of bytes, for which requests queue in order of arrival."""

    __slots__ = ("_bound", "_queue", "used")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self.used = 0

    @property
    def idle(self) -> bool:
        return not self.used and not self._queue

    async def acquire_bytes(self, size: int, seconds: float) -> None:
        """Wait until bytes fit, and count them; raises `TimeoutError` after `seconds`."""
        # First come, first served: small requests must not keep a large one waiting forever.
        if not self._queue and self.used + size <= self._bound:
            self.used += size
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (waiter, size)
        self._queue.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException:
            # `_wake` may have removed a cancelled waiter from the queue.
            if entry in self._queue:
                self._queue.remove(entry)
            elif not waiter.cancelled():
                self.used -= size  # bytes were granted just before
            self._wake()
            raise

    def release_bytes(self, size: int) -> None:
        self.used -= size
        self._wake()

    def _wake(self) -> None:
        while self._queue and self.used + self._queue[0][1] <= self._bound:
            waiter, size = self._queue.popleft()
            if not waiter.done():
                self.used += size
                waiter.set_result(None)


def _memory_error(bound: int, actual: int) -> LimitExceeded:
    msg = (
        f"{MEMORY_LIMIT} would be {actual}, over the bound of {bound}: request bodies and "
        "unsent responses of this tenant fill its memory; read the open responses, or try again"
    )
    details = {"limit": MEMORY_LIMIT, "bound": bound, "actual": actual, "retry_after_s": _RETRY_S}
    return LimitExceeded(msg, details=details, retryable=True)

"""Bound the memory of each tenant in a process: bodies, unsent answers, and work in progress."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from seriatim.core.errors import LimitExceeded, TimedOut
from seriatim.core.limits import MIB, limit_error

MEMORY_LIMIT = "tenant_memory_bytes"
WORK_BYTES = 32 * MIB  # of parsed bodies and answers in the making, beside the budget itself
_RETRY_S = 1.0


class MemoryBudget:
    """Count the bytes that each tenant holds; used by the event loop alone.

    Request bodies and unsent answers count against `bound`. Work in progress (parsed bodies,
    answers in the making) waits for its share of a smaller, separate room.
    """

    def __init__(self, bound: int, work: int = WORK_BYTES) -> None:
        self.bound = bound
        self._work = work
        self._tenants: dict[str, _Usage] = {}

    def used(self, tenant_id: str) -> int:
        """Return the bytes of bodies and unsent answers that a tenant holds."""
        found = self._tenants.get(tenant_id)
        return 0 if found is None else found.held.used

    def acquire(self, tenant_id: str, size: int) -> None:
        """Count bytes, or raise `LimitExceeded` if they do not fit."""
        if size > self.bound:
            raise limit_error(MEMORY_LIMIT, self.bound, size)
        if not self.try_acquire(tenant_id, size):
            raise _full(self.bound, self.used(tenant_id) + size)

    def try_acquire(self, tenant_id: str, size: int) -> bool:
        """Count bytes if they fit, and tell whether they did."""
        usage = self._usage(tenant_id)
        fitting = usage.held.used + size <= self.bound
        if fitting:
            usage.held.used += size
        self._forget(tenant_id, usage)
        return fitting

    def add(self, tenant_id: str, size: int) -> None:
        """Count bytes that exist already, whether they fit or not."""
        usage = self._usage(tenant_id)
        usage.held.used += size
        self._forget(tenant_id, usage)

    def release(self, tenant_id: str, size: int) -> None:
        """Count bytes no longer."""
        if size:
            usage = self._tenants[tenant_id]
            usage.held.leave(size)
            self._forget(tenant_id, usage)

    async def wait_and_acquire(self, tenant_id: str, size: int, seconds: float) -> None:
        """Count bytes as soon as they fit; raise `LimitExceeded` when they do not in time."""
        usage = self._usage(tenant_id)
        try:
            await usage.held.enter(min(size, self.bound), seconds)
        except TimeoutError:
            raise _full(self.bound, usage.held.used + size) from None
        finally:
            self._forget(tenant_id, usage)

    @asynccontextmanager
    async def reserve_work(self, tenant_id: str, size: int, seconds: float) -> AsyncIterator[None]:
        """Hold room for work of about that size; work larger than all of the room runs alone.

        Raises `TimedOut` when the tenant's other work leaves no room in time.
        """
        usage = self._usage(tenant_id)
        taken = min(size, self._work)
        try:
            await usage.work.enter(taken, seconds)
            try:
                yield
            finally:
                usage.work.leave(taken)
        except TimeoutError:
            msg = "other large requests of this tenant left no room in time; nothing was done"
            raise TimedOut(msg) from None
        finally:
            self._forget(tenant_id, usage)

    def check_response(self, tenant_id: str, size: int) -> None:
        """Raise `LimitExceeded` before an answer is made that could not be held unsent."""
        if (held := self.used(tenant_id)) + size > max(self.bound, size):
            raise _full(self.bound, held + size)

    def _usage(self, tenant_id: str) -> _Usage:
        found = self._tenants.get(tenant_id)
        if found is None:
            found = self._tenants[tenant_id] = _Usage(self.bound, self._work)
        return found

    def _forget(self, tenant_id: str, usage: _Usage) -> None:
        if usage.held.idle and usage.work.idle:
            self._tenants.pop(tenant_id, None)


class _Usage:
    """The bytes of one tenant."""

    __slots__ = ("held", "work")

    def __init__(self, bound: int, work: int) -> None:
        self.held = _Room(bound)
        self.work = _Room(work)


class _Room:
    """So many bytes; whoever finds no room waits in line."""

    __slots__ = ("_bound", "_queue", "used")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self.used = 0

    @property
    def idle(self) -> bool:
        return not self.used and not self._queue

    async def enter(self, size: int, seconds: float) -> None:
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
            # A cancelled waiter may have left the queue when room was made.
            if entry in self._queue:
                self._queue.remove(entry)
            elif not waiter.cancelled():
                self.used -= size  # room was granted just before
            self._wake()
            raise

    def leave(self, size: int) -> None:
        self.used -= size
        self._wake()

    def _wake(self) -> None:
        while self._queue and self.used + self._queue[0][1] <= self._bound:
            waiter, size = self._queue.popleft()
            if not waiter.done():
                self.used += size
                waiter.set_result(None)


def _full(bound: int, actual: int) -> LimitExceeded:
    msg = (
        f"{MEMORY_LIMIT} would be {actual}, over the bound of {bound}: request bodies and "
        "unsent answers "
        "of this tenant fill its memory; read the open answers, or try again"
    )
    details = {"limit": MEMORY_LIMIT, "bound": bound, "actual": actual, "retry_after_s": _RETRY_S}
    return LimitExceeded(msg, details=details, retryable=True)

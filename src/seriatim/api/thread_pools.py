"""Where a process waits for its databases: threads, bounded in time, for each tenant in turns."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from seriatim.api.request_queue import RequestQueue
from seriatim.api.tenant_limiter import TenantLimiter
from seriatim.core.errors import TimedOut

T = TypeVar("T")

LARGE_BODY_BYTES = 128 * 1024  # of a body, from which on the event loop has no time for it
_ACCESS_THREADS = 2


class ProcessorSlot:
    """Let one thread compute at a time; the tenant that has used the least goes next."""

    def __init__(self, used: Callable[[str], float]) -> None:
        self._used = used
        self._taken = False
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, tenant_id: str) -> None:
        """Wait until no other thread computes; `give` has to follow."""
        if not self._taken:
            self._taken = True
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant_id, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.give()  # it was granted just before
            raise

    def give(self) -> None:
        """Let the next one compute."""
        while self._queues:
            tenant_id = min(self._queues, key=self._used)
            queue = self._queues[tenant_id]
            waiter = queue.popleft()
            if not queue:
                del self._queues[tenant_id]
            if not waiter.done():  # one that was cancelled has left
                waiter.set_result(None)
                return
        self._taken = False


class ThreadPools:
    """The threads of one process; `reads` says how many of them a tenant may have."""

    def __init__(
        self, count: int, reads: TenantLimiter, seconds: float, queue: RequestQueue
    ) -> None:
        self._reads = reads
        self._queue = queue  # knows how much processor time each tenant has used
        self._processor = ProcessorSlot(queue.used)
        self.busy = 0  # how many work for tenants now
        self._seconds = seconds
        self._log = ThreadPoolExecutor(count, "seriatim-api")
        # However busy the log is, who calls is known at once.
        self._access = ThreadPoolExecutor(_ACCESS_THREADS, "seriatim-access")

    async def run(self, act: Callable[..., T], /, *args: Any) -> T:
        """Run what waits for the log's database, within the time of a request."""
        async with self._in_time():
            return await _begun(self._log, act, args)

    async def run_access(self, act: Callable[..., T], /, *args: Any) -> T:
        """Run what waits for the access store, within the time of a request."""
        async with self._in_time():
            return await _begun(self._access, act, args)

    async def run_for_tenant(self, tenant_id: str, act: Callable[..., T], /, *args: Any) -> T:
        """Run what a tenant asks for, in its turn, which lasts until the thread has ended."""
        async with self._in_time():
            await self._reads.acquire(tenant_id, self._seconds)
            return await self._run_taken(tenant_id, self._reads.release, act, args)

    async def compute_for(self, tenant_id: str, act: Callable[..., T], /, *args: Any) -> T:
        """Run what needs the processor alone, in the tenant's turn: one at a time for everybody.

        The event loop and the writers share the interpreter lock with one such thread then.
        """
        async with self._in_time():
            await self._reads.acquire(tenant_id, self._seconds)
            try:
                await self._processor.take(tenant_id)
            except BaseException:
                self._reads.release(tenant_id)
                raise
            return await self._run_taken(tenant_id, self._give_both, act, args)

    def _give_both(self, tenant_id: str) -> None:
        self._processor.give()
        self._reads.release(tenant_id)

    async def _run_taken(
        self, tenant_id: str, give: Callable[[str], None], act: Callable[..., T], args: Any
    ) -> T:
        spent: list[float] = []
        try:
            work = _begun(self._log, _timed, (spent, act, *args))
        except BaseException:
            give(tenant_id)
            raise
        self.busy += 1
        work.add_done_callback(partial(self._ended, tenant_id, give, spent))
        # A thread cannot be ended: it stops at its next check of the request's cancellation.
        return await asyncio.shield(work)

    async def run_sized(self, tenant_id: str, size: int, act: Callable[[], T]) -> T:
        """Do something with a body of that size: with a large one in a thread, in a turn."""
        return act() if size <= LARGE_BODY_BYTES else await self.compute_for(tenant_id, act)

    def _ended(
        self,
        tenant_id: str,
        give: Callable[[str], None],
        spent: list[float],
        work: asyncio.Future[Any],
    ) -> None:
        self.busy -= 1
        self._queue.charge(tenant_id, sum(spent))
        give(tenant_id)
        if not work.cancelled():
            work.exception()  # who waited has it; if nobody does, nobody is to be told

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except TimeoutError:
            raise TimedOut(f"it took more than {self._seconds:g} s") from None

    def stop(self) -> None:
        """Begin nothing more."""
        for threads in (self._log, self._access):
            threads.shutdown(wait=False, cancel_futures=True)


def _timed(spent: list[float], act: Callable[..., T], *args: Any) -> T:
    """Run something, and note the processor time that it took."""
    began = time.thread_time()
    try:
        return act(*args)
    finally:
        spent.append(time.thread_time() - began)


def _begun(
    threads: ThreadPoolExecutor, act: Callable[..., T], args: tuple[Any, ...]
) -> asyncio.Future[T]:
    known = copy_context()  # which request and which trace it is about
    return asyncio.get_running_loop().run_in_executor(threads, known.run, act, *args)

"""Threads that wait for databases, with a timeout, and with a number of slots per tenant."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from seriatim.api.request_queue import RequestQueue
from seriatim.api.tenant_limiter import TenantLimiter
from seriatim.core.errors import TimedOut

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BODY_BYTES = 128 * 1024  # a larger body is parsed in a thread, not on the event loop
_ACCESS_THREADS = 2


class ProcessorSlot:
    """Let one thread compute at a time, next for the tenant that has used the least time.

    Args:
        used: Returns the processor time that a tenant has used lately.
    """

    def __init__(self, used: Callable[[str], float]) -> None:
        self._used = used
        self._busy = False
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, tenant_id: str) -> None:
        """Wait until no other thread computes; `release` has to follow."""
        if not self._busy:
            self._busy = True
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant_id, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.release()  # the slot was granted just before
            raise

    def release(self) -> None:
        """Let the next thread compute."""
        while self._queues:
            tenant_id = min(self._queues, key=self._used)
            queue = self._queues[tenant_id]
            waiter = queue.popleft()
            if not queue:
                del self._queues[tenant_id]
            if not waiter.done():  # skip cancelled waiters
                waiter.set_result(None)
                return
        self._busy = False


class ThreadPools:
    """The threads of one process.

    Args:
        count: The number of threads that wait for the log.
        reads: Limits how many of them a tenant uses at once.
        seconds: The timeout of a call.
        queue: Records the processor time that each tenant uses.
    """

    def __init__(
        self, count: int, reads: TenantLimiter, seconds: float, queue: RequestQueue
    ) -> None:
        self._reads = reads
        self._queue = queue
        self._processor = ProcessorSlot(queue.used)
        self.busy = 0  # threads that work for tenants now
        self._seconds = seconds
        self._log = ThreadPoolExecutor(count, "seriatim-api")
        # Separate threads: authentication must not wait for the log.
        self._access = ThreadPoolExecutor(_ACCESS_THREADS, "seriatim-access")

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that waits for the log's database, within the timeout of a request."""
        async with self._timeout():
            return await _submit(self._log, partial(call, *args, **kwargs))

    async def run_access(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that waits for the access store, within the timeout of a request."""
        async with self._timeout():
            return await _submit(self._access, partial(call, *args, **kwargs))

    async def run_for_tenant(
        self, tenant_id: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a call in a slot of a tenant, which is released when the thread has ended.

        Raises:
            TimedOut: The call, or the wait for a slot, took too long.
            LimitExceeded: Too many calls of the tenant are queued.
        """
        async with self._timeout():
            await self._reads.acquire(tenant_id, self._seconds)
            return await self._run_in_slot(
                tenant_id, self._reads.release, partial(call, *args, **kwargs)
            )

    async def compute_for(
        self, tenant_id: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a computation in a slot of a tenant; one at a time in the whole process.

        The event loop and the writers then compete with only one such thread for the
        interpreter lock.
        """
        async with self._timeout():
            await self._reads.acquire(tenant_id, self._seconds)
            try:
                await self._processor.acquire(tenant_id)
            except BaseException:  # cancelled, or timed out, while another thread computes
                self._reads.release(tenant_id)
                raise
            return await self._run_in_slot(
                tenant_id, self._release_both, partial(call, *args, **kwargs)
            )

    def _release_both(self, tenant_id: str) -> None:
        self._processor.release()
        self._reads.release(tenant_id)

    async def _run_in_slot(
        self, tenant_id: str, release: Callable[[str], None], call: Callable[[], T]
    ) -> T:
        """Run a call in a thread, and release its slot when the thread has ended."""
        processor_s: list[float] = []
        try:
            work = _submit(self._log, partial(_measure, processor_s, call))
        except BaseException:
            release(tenant_id)
            raise
        self.busy += 1
        work.add_done_callback(partial(self._finish, tenant_id, release, processor_s))
        # A thread cannot be cancelled: it stops when it next checks the request's cancellation.
        return await asyncio.shield(work)

    async def run_sized(self, tenant_id: str, size: int, call: Callable[[], T]) -> T:
        """Process a body of this size: at once, or with `compute_for` if it is large."""
        return call() if size <= LARGE_BODY_BYTES else await self.compute_for(tenant_id, call)

    def _finish(
        self,
        tenant_id: str,
        release: Callable[[str], None],
        processor_s: list[float],
        work: asyncio.Future[Any],
    ) -> None:
        self.busy -= 1
        self._queue.charge(tenant_id, sum(processor_s))
        release(tenant_id)
        if not work.cancelled():
            work.exception()  # retrieves it: asyncio would log it if the caller has timed out

    @asynccontextmanager
    async def _timeout(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except TimeoutError:
            raise TimedOut(f"the request took longer than {self._seconds:g} s") from None

    def stop(self) -> None:
        """Start no more calls."""
        for threads in (self._log, self._access):
            threads.shutdown(wait=False, cancel_futures=True)


def _measure(processor_s: list[float], call: Callable[[], T]) -> T:
    """Run a call, and append the processor time that it took to `processor_s`."""
    started = time.thread_time()
    try:
        return call()
    finally:
        processor_s.append(time.thread_time() - started)


def _submit(threads: ThreadPoolExecutor, call: Callable[[], T]) -> asyncio.Future[T]:
    context = copy_context()  # carries the request id, the trace and the cancellation
    return asyncio.get_running_loop().run_in_executor(threads, context.run, call)

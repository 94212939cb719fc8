"""The submission of appends to a store: one driver for threads, one for each event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence

from seriatim.core.event import AppendResult
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.prepare import Scan
from seriatim.core.request import AppendRequest
from seriatim.store.async_committer import AsyncCommitter
from seriatim.store.committer import Committer, QueuedAppend
from seriatim.store.port import GroupWriter


class Submission:
    """Commits appends in groups, for callers in threads and on event loops.

    Args:
        store: Commits the groups.
        limits: The bounds on queues and groups.
        writers: How many groups of a driver may be in flight; None lets the store choose.
        timeout_s: The default timeout of callers.

    """

    def __init__(
        self,
        store: GroupWriter,
        *,
        limits: Limits = DEFAULT_LIMITS,
        writers: int | None = None,
        timeout_s: float = 0.0,
    ) -> None:
        self._store = store
        self._limits = limits
        self.threads = Committer(
            store,
            limits=limits,
            writers=writers or store.recommended_writers,
            timeout_s=timeout_s,
        )
        self._forget_loops()

    def _forget_loops(self) -> None:
        # Weak keys: an event loop that has ended takes its driver with it.
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncCommitter] = (
            weakref.WeakKeyDictionary()
        )

    def append(self, request: AppendRequest, timeout: float) -> AppendResult:
        """Commit an append and wait for its receipt; see `Committer.append`."""
        return self.threads.append(request, timeout)

    async def append_async(
        self, request: AppendRequest, timeout: float, scans: Sequence[Scan] = ()
    ) -> AppendResult:
        """Commit an append of the running event loop; see `AsyncCommitter.append`."""
        loop = asyncio.get_running_loop()
        driver = self._loops.get(loop)
        if driver is None:
            driver = AsyncCommitter(loop, self._store, self.threads, self._limits)
            self._loops[loop] = driver
        return await driver.append(request, timeout, scans)

    def submit(self, request: AppendRequest) -> QueuedAppend:
        """Queue an append without waiting for it; see `Committer.submit`."""
        return self.threads.submit(request)

    def after_fork(self) -> None:
        """Replace threads, queues and drivers in a forked child process."""
        self._forget_loops()
        self.threads.after_fork()

    def close(self, timeout: float) -> None:
        """Stop accepting appends and wait, at most `timeout` seconds, for the accepted ones."""
        # Event loops first: they pass their queued appends to the driver of threads.
        for driver in list(self._loops.values()):
            driver.close(timeout)
        self.threads.close(timeout)

"""One watcher of the log for all who wait in a process: it reads once and hands out to many.

A tail that has caught up with the log joins its tenant's channel. What is appended is read once
for the whole channel, and goes into the buffers of the tails it matches. A tail whose buffer is
full leaves the channel: it reads what it missed by itself, as far as its reader takes it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from seriatim.api.limit_reporter import LimitReporter
from seriatim.api.memory_budget import MemoryBudget
from seriatim.api.tail_buffer import TailBuffer
from seriatim.api.tail_matcher import TailMatcher, match_budget_error
from seriatim.core.errors import BackendFailure, LogIdentityChanged, SeriatimError
from seriatim.core.event import LogIdentity
from seriatim.core.limits import MIB
from seriatim.core.query import Query
from seriatim.factory import Log
from seriatim.log.batches import PAGE_EVENTS, Batch, estimate_memory, iterate_appends
from seriatim.store.port import ReadSpec

T = TypeVar("T")

POLL_S = 1.0
RETRY_S = 0.5
BATCH_DELAY_S = 0.003
IDENTITY_CHECK_S = 1.0
TAIL_PAGE = 128
TAIL_PAGE_BYTES = 2 * MIB  # of what is read at once for a tail that catches up

Run = Callable[..., Awaitable[Any]]


class _Channel:
    """The tails of one tenant that have caught up, and how far its events were handed out."""

    def __init__(self, position: int, identity: LogIdentity) -> None:
        self.position = position
        self.tip: str | None = None  # the event there, once one was handed out
        self.checked_at = 0.0
        self.identity = identity
        self.pumping = False
        self.members: set[TailBuffer] = set()


class Hub:
    """Watches the head of a log, and hands new events out to tails and waiters."""

    def __init__(
        self, log: Log, run: Run, memory: MemoryBudget, bounds: LimitReporter, *, buffer: int
    ) -> None:
        self._log = log
        self._run = run
        self._memory = memory
        self._bounds = bounds
        self._buffer = buffer
        self._channels: dict[str, _Channel] = {}
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self.head = 0
        self.open_tails = 0
        self.tails_of: Counter[str] = Counter()

    # -- watching

    def start(self) -> None:
        """Be ready to watch; the watcher sleeps until somebody waits."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, name="seriatim-hub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let everybody go who waits or follows."""
        self._stopped.set()
        self._wanted.set()
        self._send_away(None)
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)
        for task in list(self._tasks):
            task.cancel()

    def join(self) -> None:
        """Wait until the watcher has ended, which a closed log lets it do at once."""
        if self._thread is not None:
            self._thread.join(5.0)

    @property
    def stopped(self) -> bool:
        """Whether the service ends."""
        return self._stopped.is_set()

    def _watch(self) -> None:
        """Wait for the head to move, in a thread of its own, while anybody is interested."""
        store = self._log.store
        head = 0
        while not self._stopped.is_set():
            self._wanted.wait()
            if self._stopped.is_set():
                return
            try:
                store.wait(head, POLL_S)
                seen = store.head()
            except Exception:  # noqa: BLE001 - the store is away: tried again
                self._stopped.wait(RETRY_S)
                continue
            if seen != head and not self._stopped.is_set():
                head = seen
                with suppress(RuntimeError):  # the loop has just ended
                    self._loop.call_soon_threadsafe(self._advance, head)
                # Who is appended to a thousand times a second is looked at less often.
                self._stopped.wait(BATCH_DELAY_S)

    def _interest(self) -> None:
        if self._channels or self._waiters:
            self._wanted.set()
        elif not self._stopped.is_set():
            self._wanted.clear()

    def _send_away(self, failure: SeriatimError | None) -> None:
        for channel in self._channels.values():
            for tail in channel.members:
                tail.mark_lagging(failure)

    def _advance(self, head: int) -> None:
        if head < self.head:
            self._send_away(identity_changed_error(head))
        self.head = head
        for waiter, after in list(self._waiters.items()):
            if head > after and not waiter.done():
                waiter.set_result(None)
        for tenant_id in list(self._channels):
            self._pump(tenant_id)

    async def wait_for_head(self, after: int, seconds: float) -> None:
        """Wait until the head may have passed a position: a hint, never a promise."""
        if self.stopped:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = after
        self._interest()
        if self.head > after:  # it was seen to pass before this one began to wait
            waiter.set_result(None)
        alarm = loop.call_later(min(seconds, POLL_S), _let_go, waiter)
        try:
            await waiter
        finally:
            alarm.cancel()
            del self._waiters[waiter]
            self._interest()

    async def run_until_stopped(self, act: Coroutine[Any, Any, T]) -> T:
        """Do something that may wait long, and give it up when the service ends."""
        task = asyncio.create_task(act)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.stopped:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if not self.stopped:
                raise
            raise BackendFailure("the service is ending: ask again") from None

    # -- tails

    def make_tail(self, tenant_id: str, query: Query, position: int) -> TailBuffer:
        """Make a tail; it catches up by itself before it joins."""
        return TailBuffer(tenant_id, query, position, self._buffer)

    def add_tail(self, tail: TailBuffer) -> bool:
        """Let a tail have what comes; False while the channel is ahead of it."""
        channel = self._channels.get(tail.tenant_id)
        if channel is None:
            channel = self._channels[tail.tenant_id] = _Channel(tail.position, self._log.identity())
        elif channel.position > tail.position:
            return False
        tail.start()
        channel.members.add(tail)
        self._interest()
        if self.head > channel.position:
            self._pump(tail.tenant_id)
        return True

    def remove_tail(self, tail: TailBuffer) -> None:
        """Let a tail go; it keeps what waits for it."""
        channel = self._channels.get(tail.tenant_id)
        if channel is None:
            return
        channel.members.discard(tail)
        if not channel.members:
            del self._channels[tail.tenant_id]
            self._interest()

    def delivered_position(self, tail: TailBuffer) -> int:
        """Return how far everything was handed out to a tail that has nothing waiting."""
        channel = self._channels.get(tail.tenant_id)
        if channel is None or tail not in channel.members:
            return tail.position
        return max(tail.position, channel.position)

    def _pump(self, tenant_id: str) -> None:
        channel = self._channels.get(tenant_id)
        if channel is None or channel.pumping or self.stopped:
            return
        channel.pumping = True
        task = asyncio.get_running_loop().create_task(self._hand_out(tenant_id, channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_out(self, tenant_id: str, channel: _Channel) -> None:
        """Read what a tenant's tails have not seen, once, and put it where it belongs."""
        try:
            while channel.position < self.head and channel.members:
                head = self.head
                groups, all_of_it = await self._run(_groups, self._log, tenant_id, channel, head)
                await self._deal(tenant_id, channel, groups)
                if not all_of_it or (groups and groups[-1][-1].position == head):
                    channel.position, channel.tip = groups[-1][-1].position, groups[-1][-1].event_id
                else:
                    channel.position, channel.tip = head, None
        except SeriatimError as error:
            for tail in channel.members:  # each finds out for itself whether it is over
                tail.mark_lagging(None if error.retryable else error)
        finally:
            channel.pumping = False

    async def _deal(self, tenant_id: str, channel: _Channel, groups: list[Batch]) -> None:
        """Hand appends out to the tails that they match; tails may join meanwhile."""
        dealt: set[TailBuffer] = set()
        while late := channel.members - dealt:
            dealt |= late
            matcher = TailMatcher(groups, late, tenant_id, self._memory)
            while not matcher.done and not self.stopped:
                for tail, piece in await self._run(matcher.run):
                    if tail in channel.members and not tail.offer(piece):
                        channel.members.discard(tail)
                self._end_expensive(tenant_id, channel, late)

    def _end_expensive(self, tenant_id: str, channel: _Channel, tails: set[TailBuffer]) -> None:
        for tail in tails & channel.members:
            if error := match_budget_error(tail):
                self._bounds.report(error.details["limit"], tenant_id)
                tail.mark_lagging(error)
                channel.members.discard(tail)


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _groups(log: Log, tenant_id: str, channel: _Channel, head: int) -> tuple[list[Batch], bool]:
    """Read whole appends behind a channel's position, a page or so, and tell if that is all."""
    changed = log.identity() != channel.identity
    if channel.tip and time.monotonic() - channel.checked_at > IDENTITY_CHECK_S:
        channel.checked_at = time.monotonic()
        changed = changed or log.store.event_id_at(channel.position) != channel.tip
    if changed:
        raise identity_changed_error(head)

    def read(after: int, limit: int, max_bytes: int) -> Batch:
        spec = ReadSpec(
            tenant_id=tenant_id, limit=limit, after=after, until=head, max_bytes=max_bytes
        )
        return log.store.read(spec)

    return take_page(iterate_appends(read, channel.position, TAIL_PAGE, max_bytes=TAIL_PAGE_BYTES))


def take_page(appends: Iterator[Batch], at_most: int = TAIL_PAGE_BYTES) -> tuple[list[Batch], bool]:
    """Return the first of many appends, as many as are well held at once, and if these are all."""
    found: list[Batch] = []
    count = size = 0
    for group in appends:
        found.append(group)
        count, size = count + len(group), size + estimate_memory(group)
        if count >= PAGE_EVENTS or size >= at_most:
            return found, False
    return found, True


def identity_changed_error(head: int) -> LogIdentityChanged:
    """Make the error for a log that is no longer the one that was followed."""
    msg = "the log was restored or replaced while it was followed"
    return LogIdentityChanged(msg, details={"head": head})

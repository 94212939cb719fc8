"""One watcher of the log per process, which reads new events once for all tails and long polls.

A tail that has caught up with the log joins the channel of its tenant. New appends are read once
per channel and put into the buffers of the tails that they match. A tail whose buffer is full
leaves the channel and reads the missing events itself, at the speed of its client.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

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
BATCH_DELAY_S = 0.003  # after each new head: frequent appends are read in batches
IDENTITY_CHECK_S = 1.0
TAIL_PAGE = 128
TAIL_PAGE_BYTES = 2 * MIB  # per read of a tail that catches up

Run = Callable[..., Awaitable[Any]]


class _Channel:
    """The tails of one tenant that have caught up, and the last delivered position."""

    def __init__(self, position: int, identity: LogIdentity) -> None:
        self.position = position
        self.last_event_id: str | None = None  # of the event at `position`, if it was delivered
        self.checked_at = 0.0
        self.identity = identity
        self.pumping = False
        self.members: set[TailBuffer] = set()


class Hub:
    """Watch the head of a log, and deliver new events to tails and long polls.

    Args:
        log: The log.
        run: Runs a call in a thread.
        memory: Counts the text of appends that wait in buffers.
        report_limit: Called with the name of a limit that was reached, and the tenant.
        buffer: The maximum number of appends in the buffer of a tail.
    """

    def __init__(
        self,
        log: Log,
        run: Run,
        memory: MemoryBudget,
        report_limit: Callable[[str, str], None],
        *,
        buffer: int,
    ) -> None:
        self._log = log
        self._run = run
        self._memory = memory
        self._report_limit = report_limit
        self._buffer = buffer
        self._channels: dict[str, _Channel] = {}
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = threading.Event()
        self._needed = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self.head = 0
        self.open_tails = 0
        self.tails_of: Counter[str] = Counter()

    # -- watching

    def start(self) -> None:
        """Start the watcher, which sleeps until a tail or a long poll exists."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, name="seriatim-hub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all tails and long polls."""
        self._stopped.set()
        self._needed.set()
        self._end_tails(None)
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)
        for task in list(self._tasks):
            task.cancel()

    def join(self) -> None:
        """Wait until the watcher has ended, which happens at once after the log is closed."""
        if self._thread is not None:
            self._thread.join(5.0)

    @property
    def stopped(self) -> bool:
        """Whether the service is shutting down."""
        return self._stopped.is_set()

    def _watch(self) -> None:
        """Watch the head in a thread, while a tail or a long poll exists."""
        store = self._log.store
        head = 0
        while not self._stopped.is_set():
            self._needed.wait()  # without tails and long polls, the database is not polled
            if self._stopped.is_set():
                return
            try:
                store.wait(head, POLL_S)
                current = store.head()
            except Exception:  # noqa: BLE001 - the store is unavailable: try again
                self._stopped.wait(RETRY_S)
                continue
            if current != head and not self._stopped.is_set():
                head = current
                # Channels and waiters belong to the event loop; this thread only reports the head.
                with suppress(RuntimeError):  # the event loop has just ended
                    self._loop.call_soon_threadsafe(self._advance, head)
                self._stopped.wait(BATCH_DELAY_S)

    def _update_needed(self) -> None:
        if self._channels or self._waiters:
            self._needed.set()
        elif not self._stopped.is_set():
            self._needed.clear()

    def _end_tails(self, failure: SeriatimError | None) -> None:
        for channel in self._channels.values():
            for tail in channel.members:
                tail.mark_lagging(failure)

    def _advance(self, head: int) -> None:
        """Wake the long polls and channels that are before a new head."""
        if head < self.head:  # the log was restored: it is gapless, so its head never falls
            self._end_tails(identity_changed_error(head))
        self.head = head
        for waiter, after in list(self._waiters.items()):
            if head > after and not waiter.done():
                waiter.set_result(None)
        for tenant_id in list(self._channels):
            self._pump(tenant_id)

    async def wait_for_head(self, after: int, seconds: float) -> None:
        """Wait until the head may be after a position; callers must check it.

        Args:
            after: The position.
            seconds: The timeout; returns after at most `POLL_S` anyway.
        """
        if self.stopped:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = after
        self._update_needed()
        if self.head > after:  # `_advance` ran before the waiter was registered
            waiter.set_result(None)
        timer = loop.call_later(min(seconds, POLL_S), _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            del self._waiters[waiter]
            self._update_needed()

    async def run_until_stopped(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that may wait long, and cancel it at shutdown.

        Raises:
            BackendFailure: The service is shutting down.
        """
        # A task of its own: `stop` cancels it, and the request itself can still respond.
        task = asyncio.create_task(coroutine)
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
            raise BackendFailure("the service is shutting down: try again") from None

    # -- tails

    def make_tail(self, tenant_id: str, query: Query, position: int) -> TailBuffer:
        """Make a tail, which has to catch up before `add_tail`."""
        return TailBuffer(tenant_id, query, position, self._buffer)

    def add_tail(self, tail: TailBuffer) -> bool:
        """Deliver new events to a tail.

        Returns:
            False if the channel is ahead of the tail, which then has to catch up first.
        """
        channel = self._channels.get(tail.tenant_id)
        # A channel starts at its first tail's position: from the head, appends would be skipped.
        if channel is None:
            channel = self._channels[tail.tenant_id] = _Channel(tail.position, self._log.identity())
        elif channel.position > tail.position:
            return False
        tail.start()
        channel.members.add(tail)
        self._update_needed()
        if self.head > channel.position:
            self._pump(tail.tenant_id)
        return True

    def remove_tail(self, tail: TailBuffer) -> None:
        """Deliver nothing more to a tail; its buffer is kept."""
        channel = self._channels.get(tail.tenant_id)
        if channel is None:
            return
        channel.members.discard(tail)
        if not channel.members:
            del self._channels[tail.tenant_id]
            self._update_needed()

    def delivered_position(self, tail: TailBuffer) -> int:
        """Return the last position delivered to a tail with an empty buffer."""
        channel = self._channels.get(tail.tenant_id)
        if channel is None or tail not in channel.members:
            return tail.position
        return max(tail.position, channel.position)

    def _pump(self, tenant_id: str) -> None:
        """Start the delivery of new events to a channel, unless one is in progress."""
        channel = self._channels.get(tenant_id)
        # Two deliveries at once would repeat appends, or put them out of order.
        if channel is None or channel.pumping or self.stopped:
            return
        channel.pumping = True
        task = asyncio.get_running_loop().create_task(self._deliver(tenant_id, channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, tenant_id: str, channel: _Channel) -> None:
        """Read new events once, and deliver them to the tails of a tenant."""
        try:
            while channel.position < self.head and channel.members:
                head = self.head
                appends, is_all = await self._run(
                    _read_new_appends, self._log, tenant_id, channel, head
                )
                await self._deliver_matches(tenant_id, channel, appends)
                # At the head there may be no event of this tenant, and so no id to compare.
                if not is_all or (appends and appends[-1][-1].position == head):
                    channel.position, channel.last_event_id = (
                        appends[-1][-1].position,
                        appends[-1][-1].event_id,
                    )
                else:
                    channel.position, channel.last_event_id = head, None
        except SeriatimError as error:
            for tail in channel.members:  # each reads for itself, and fails if the log still does
                tail.mark_lagging(None if error.retryable else error)
        finally:
            channel.pumping = False

    async def _deliver_matches(
        self, tenant_id: str, channel: _Channel, appends: list[Batch]
    ) -> None:
        """Deliver appends to the tails that they match; tails may join meanwhile."""
        matched: set[TailBuffer] = set()
        while new_members := channel.members - matched:
            matched |= new_members
            matcher = TailMatcher(appends, new_members, tenant_id, self._memory)
            while not matcher.done and not self.stopped:
                for tail, chunk in await self._run(matcher.run):
                    if tail in channel.members and not tail.offer(chunk):
                        channel.members.discard(tail)
                self._end_expensive_tails(tenant_id, channel, new_members)

    def _end_expensive_tails(
        self, tenant_id: str, channel: _Channel, tails: set[TailBuffer]
    ) -> None:
        """End the tails whose predicates have used up their processor time."""
        for tail in tails & channel.members:
            if error := match_budget_error(tail):
                self._report_limit(error.details["limit"], tenant_id)
                tail.mark_lagging(error)
                channel.members.discard(tail)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _read_new_appends(
    log: Log, tenant_id: str, channel: _Channel, head: int
) -> tuple[list[Batch], bool]:
    """Read whole appends after the position of a channel.

    Returns:
        About a page of appends, and whether these are all up to the head.

    Raises:
        LogIdentityChanged: The log was restored or replaced.
    """
    changed = log.identity() != channel.identity
    if channel.last_event_id and time.monotonic() - channel.checked_at > IDENTITY_CHECK_S:
        channel.checked_at = time.monotonic()
        changed = changed or log.store.event_id_at(channel.position) != channel.last_event_id
    if changed:
        raise identity_changed_error(head)

    def read(after: int, limit: int, max_bytes: int) -> Batch:
        spec = ReadSpec(
            tenant_id=tenant_id, limit=limit, after=after, until=head, max_bytes=max_bytes
        )
        return log.store.read(spec)

    return take_page(iterate_appends(read, channel.position, TAIL_PAGE, max_bytes=TAIL_PAGE_BYTES))


def take_page(appends: Iterator[Batch], at_most: int = TAIL_PAGE_BYTES) -> tuple[list[Batch], bool]:
    """Take about a page of appends.

    Returns:
        The appends, and whether the iterator is exhausted.
    """
    page: list[Batch] = []
    count = size = 0
    for append in appends:
        page.append(append)
        count, size = count + len(append), size + estimate_memory(append)
        if count >= PAGE_EVENTS or size >= at_most:
            return page, False
    return page, True


def identity_changed_error(head: int) -> LogIdentityChanged:
    """Make the error for a tail whose log has been restored or replaced."""
    msg = "the log was restored or replaced: check what was processed, then choose a position"
    return LogIdentityChanged(msg, details={"head": head})

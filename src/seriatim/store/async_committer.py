"""Group commit on an event loop: appends of one loop iteration are committed together.

When the store is reached through a socket, the loop itself sends a group and watches the socket for
the response. No thread is woken, which would cost more than an append. All other appends, and
groups that the server does not accept this way, go to the committer and its threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult
from seriatim.core.limits import KIB, Limits
from seriatim.core.prepare import Scan, scan_events
from seriatim.core.request import AppendRequest
from seriatim.store.committer import (
    AppendQueue,
    Committer,
    QueuedAppend,
    abort_timed_out,
    make_unexpected_error,
)
from seriatim.store.port import Deferred, Exchange, GroupWriter, Outcome

Waiter = asyncio.Future[AppendResult]

SCANNED_BYTES = 32 * KIB  # by the guard in one go; more would delay other tasks of the loop


class PendingAppend(QueuedAppend):
    """An append of an event loop, and the future that its caller awaits."""

    __slots__ = ("waiter",)

    def __init__(self, request: AppendRequest, guard: threading.Lock, waiter: Waiter) -> None:
        super().__init__(request, guard, _ignore_outcome)
        self.waiter: Waiter | None = waiter

    def refuse(self, error: Exception) -> None:
        """Withdraw the append before a group takes it, and raise an error in its caller."""
        self.cancel()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def complete(self, outcome: Outcome) -> None:
        """Complete the future, on the loop's own thread."""
        if self.waiter is not None:
            _complete(self.waiter, outcome)


def _ignore_outcome(_: Outcome) -> None:
    """Stand in for the callback: a bound method would make each append a reference cycle."""


class AsyncCommitter:
    """Commit the appends of one event loop; holds only a weak reference to the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: GroupWriter,
        committer: Committer,
        limits: Limits,
    ) -> None:
        # Weak: the submission keeps this object for as long as its loop lives, so a strong
        # reference would keep both alive forever.
        self._loop = weakref.ref(loop)
        self._store = store
        self._committer = committer
        self._queue: AppendQueue[PendingAppend] = AppendQueue(limits)
        self._unscanned: list[tuple[PendingAppend, Sequence[Scan]]] = []  # queued, not yet scanned
        self._unscanned_bytes = 0
        # Another thread may withdraw an append while the loop sends it.
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._in_flight: dict[Exchange, Sequence[PendingAppend]] = {}
        self._send_scheduled = False
        self._closed = False
        self._open: dict[Waiter, tuple[QueuedAppend, float]] = {}
        self._timer_at: float | None = None
        self._wakeups = LoopWakeups(loop)

    async def append(
        self, request: AppendRequest, seconds: float, scans: Sequence[Scan] = ()
    ) -> AppendResult:
        """Commit an append and return its receipt; cancelled before it is sent, it stores nothing.

        Args:
            request: The validated append.
            seconds: How long to wait.
            scans: What the guards must still scan before the append is sent.

        Raises:
            SeriatimError: The append was refused, timed out or failed.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        ticket: QueuedAppend
        if self._closed or not self._store.can_begin_append(request):
            scan_events(scans)
            ticket = self._submit(request, waiter)
        else:
            ticket = pending = PendingAppend(request, self._guard, waiter)
            self._queue.put(pending)
            if scans:
                self._unscanned.append((pending, scans))
                self._unscanned_bytes += request.size
                if self._unscanned_bytes > SCANNED_BYTES:
                    self._scan()
            # Appends that are queued before this callback runs share its group.
            if not self._send_scheduled:
                self._send_scheduled = True
                loop.call_soon(self._send_queued)
        deadline = loop.time() + seconds
        self._open[waiter] = ticket, deadline
        # Appends mostly have the same timeout, so the timer is rarely set again.
        if self._timer_at is None or deadline < self._timer_at:
            self._set_timer(deadline)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        finally:
            del self._open[waiter]

    def _submit(self, request: AppendRequest, waiter: Waiter) -> QueuedAppend:
        """Queue an append for the committer's threads."""
        wakeups = self._wakeups
        return self._committer.submit(request, lambda outcome: wakeups.complete(waiter, outcome))

    def _withdraw(self, waiter: Waiter) -> None:
        ticket, _ = self._open[waiter]
        if not ticket.cancel() and isinstance(ticket, PendingAppend):
            ticket.waiter = None  # sent, but its caller no longer waits for it

    def _scan(self) -> None:
        """Let the guards scan the appends that arrived together; refuse what they reject.

        One pass over many short events costs a fraction of a pass over each.
        """
        unscanned, self._unscanned, self._unscanned_bytes = self._unscanned, [], 0
        try:
            scan_events([scan for _, scans in unscanned for scan in scans])
        except Exception:  # noqa: BLE001 - found below, with the append that it belongs to
            for ticket, scans in unscanned:
                try:
                    scan_events(scans)
                except Exception as error:  # noqa: BLE001 - of a guard; its caller receives it
                    ticket.refuse(error)

    # -- groups in flight

    def _send_queued(self) -> None:
        """Send queued appends in groups, at most as many groups as there are writers."""
        self._send_scheduled = False
        if self._unscanned:
            self._scan()
        # Appends beyond that stay queued and form larger groups, which cost less per append.
        while self._queue and len(self._in_flight) < self._committer.writers:
            in_flight, writers = len(self._in_flight), self._committer.writers
            if group := self._queue.take_share(in_flight=in_flight, writers=writers):
                self._send(group)

    def _send(self, group: Sequence[PendingAppend]) -> None:
        requests = [ticket.request for ticket in group]
        try:
            exchange = self._store.begin_append(requests)
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            self._complete_group(group, [make_unexpected_error(error)] * len(group))
            return
        if exchange is None:
            # For example because no connection is idle: opening one would block the loop.
            self._defer(group, requests)
            return
        self._in_flight[exchange] = group
        loop = asyncio.get_running_loop()
        loop.add_reader(exchange.fileno(), self._read, exchange)
        # Most groups fit into the socket's buffer and need no second write.
        if not exchange.flush():
            loop.add_writer(exchange.fileno(), self._write, exchange)

    def _write(self, exchange: Exchange) -> None:
        if exchange.flush():
            asyncio.get_running_loop().remove_writer(exchange.fileno())

    def _read(self, exchange: Exchange) -> None:
        if exchange.receive():
            self._finish_exchange(exchange)
            self._send_queued()  # appends that waited for a place among the groups in flight

    def _finish_exchange(self, exchange: Exchange, timeout: float | None = None) -> None:
        """Complete the appends of a group; with a timeout, block until the response is complete."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            # First: `outcomes` may close the socket, whose descriptor the next one then gets.
            loop.remove_reader(exchange.fileno())
            loop.remove_writer(exchange.fileno())
        group = self._in_flight.pop(exchange)
        try:
            outcomes = exchange.outcomes() if timeout is None else exchange.wait(timeout)
        except Deferred as deferred:
            self._defer(group, deferred.requests)
        except SeriatimError as error:
            self._complete_group(group, [error] * len(group))
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            self._complete_group(group, [make_unexpected_error(error)] * len(group))
        else:
            self._complete_group(group, outcomes)

    def _complete_group(
        self, group: Sequence[PendingAppend], outcomes: Sequence[Outcome | Deferred]
    ) -> None:
        for ticket, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Deferred):
                self._defer([ticket], outcome.requests)
            else:
                ticket.complete(outcome)

    def _defer(self, group: Sequence[PendingAppend], requests: Sequence[AppendRequest]) -> None:
        """Submit the appends of a group to the committer, which can commit every append."""
        for ticket, request in zip(group, requests, strict=True):
            waiter = ticket.waiter
            if waiter is None or waiter not in self._open:
                continue  # its caller has been cancelled
            try:
                # It keeps its deadline: the time of the first attempt counts.
                self._open[waiter] = self._submit(request, waiter), self._open[waiter][1]
            except SeriatimError as refusal:
                ticket.complete(refusal)

    # -- timeouts and close

    def _set_timer(self, at: float) -> None:
        self._timer_at = at
        asyncio.get_running_loop().call_at(at, self._expire, at)

    def _expire(self, at: float) -> None:
        """Fail overdue appends.

        All appends share one timer, set for the earliest deadline: a timer for each would cost
        more than it is worth, since hardly any append ever times out.
        """
        if at != self._timer_at:
            return  # replaced by an earlier timer
        now = asyncio.get_running_loop().time()
        for waiter, (ticket, deadline) in self._open.items():
            if deadline <= now and not waiter.done():
                waiter.set_exception(abort_timed_out(ticket))
        self._timer_at = None
        deadlines = [deadline for _, deadline in self._open.values() if deadline > now]
        if deadlines:
            self._set_timer(min(deadlines))

    def close(self, timeout: float) -> None:
        """Stop accepting appends and complete the accepted ones, within `timeout` seconds.

        May be called from any thread, also when the loop has ended.
        """
        loop = self._loop()
        # From the loop's own thread, waiting for a callback of the loop would never end.
        if loop is None or not loop.is_running() or loop is _running_loop():
            self._finish(timeout)
            return
        finished = threading.Event()

        def finish() -> None:
            self._finish(timeout)
            finished.set()

        with suppress(RuntimeError):  # the loop has just been closed, and its tasks with it
            loop.call_soon_threadsafe(finish)
            finished.wait(timeout)

    def _finish(self, timeout: float) -> None:
        # From now on, `append` passes its requests to the committer, which is closed next.
        self._closed = True
        self._scan()
        while self._queue:
            group = self._queue.take_group()
            self._defer(group, [ticket.request for ticket in group])
        for exchange in list(self._in_flight):
            self._finish_exchange(exchange, timeout)

    def __del__(self) -> None:
        """Abandon the groups that were in flight when the loop ended."""
        if self._pid == os.getpid():  # a forked child must not close its parent's connections
            for exchange in self._in_flight:
                exchange.abandon()


def _complete(waiter: Waiter, outcome: Outcome) -> None:
    if waiter.done():  # cancelled or timed out
        return
    if isinstance(outcome, AppendResult):
        waiter.set_result(outcome)
    else:
        waiter.set_exception(outcome)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LoopWakeups:
    """Wake an event loop once for all appends of a group: a wake-up costs more than an append."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[tuple[Waiter, Outcome]] = deque()
        # Writer threads add outcomes while the loop takes them; held for a few instructions.
        self._lock = threading.Lock()
        self._scheduled = False

    def complete(self, waiter: Waiter, outcome: Outcome) -> None:
        """Pass an outcome to the loop, from a writer's thread."""
        with self._lock:
            self._ready.append((waiter, outcome))
            if self._scheduled:
                return
            self._scheduled = True
        loop = self._loop()
        with suppress(RuntimeError):  # the loop is closed, and its tasks with it
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._scheduled = False
            ready = list(self._ready)
            self._ready.clear()
        for waiter, outcome in ready:
            _complete(waiter, outcome)

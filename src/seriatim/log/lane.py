"""Group commit on an event loop: what one turn of the loop brings shares one statement.

Where a store is reached through a socket, the loop itself sends a group and watches for the answer:
no thread is woken, which costs more than an append. Everything else, and whatever the server does
not take that way, goes to the committer and its threads.
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
from seriatim.core.limits import Limits
from seriatim.core.request import Request
from seriatim.store.committer import Committer, Queue, Ticket, give_up, unforeseen
from seriatim.store.port import Deferred, Exchange, Outcome, Store

Waiter = asyncio.Future[AppendResult]


class Passenger(Ticket):
    """An append on this lane, and who waits for it."""

    __slots__ = ("waiter",)

    def __init__(self, request: Request, guard: threading.Lock, waiter: Waiter) -> None:
        super().__init__(request, guard, _answers_itself)
        self.waiter: Waiter | None = waiter

    def answer(self, outcome: Outcome) -> None:
        """Hand the answer over, on the loop's own thread."""
        if self.waiter is not None:
            _settle(self.waiter, outcome)


def _answers_itself(_: Outcome) -> None:
    """Stand in for `tell`: a bound method would tie each ticket to itself, for the collector."""


class Lane:
    """The way of one event loop's appends into a store; it does not keep the loop alive."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: Store, committer: Committer, limits: Limits
    ) -> None:
        self._loop = weakref.ref(loop)
        self._store = store
        self._committer = committer
        self._queue: Queue[Passenger] = Queue(limits)
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._flights: dict[Exchange, Sequence[Passenger]] = {}
        self._turn_asked = False
        self._closed = False
        self._open: dict[Waiter, tuple[Ticket, float]] = {}
        self._alarm_at: float | None = None
        self._wakeups = Wakeups(loop)

    async def append(self, request: Request, seconds: float) -> AppendResult:
        """Commit an append; cancelled before it was sent, it leaves nothing behind."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        ticket: Ticket
        if self._closed or not self._store.light(request):
            ticket = self._submit(request, waiter)
        else:
            ticket = passenger = Passenger(request, self._guard, waiter)
            self._queue.put(passenger)
            if not self._turn_asked:
                self._turn_asked = True
                loop.call_soon(self._turn)
        deadline = loop.time() + seconds
        self._open[waiter] = ticket, deadline
        if self._alarm_at is None or deadline < self._alarm_at:
            self._set_alarm(deadline)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        finally:
            del self._open[waiter]

    def _submit(self, request: Request, waiter: Waiter) -> Ticket:
        """Let the committer's threads do it."""
        wakeups = self._wakeups
        return self._committer.submit(request, lambda outcome: wakeups.announce(waiter, outcome))

    def _withdraw(self, waiter: Waiter) -> None:
        ticket, _ = self._open[waiter]
        if not ticket.cancel() and isinstance(ticket, Passenger):
            ticket.waiter = None  # under way, but nobody waits for it any more

    # -- flights

    def _turn(self) -> None:
        """Send what waits, while there are writers for it."""
        self._turn_asked = False
        while self._queue and len(self._flights) < self._committer.writers:
            under_way, writers = len(self._flights), self._committer.writers
            if group := self._queue.share(under_way=under_way, writers=writers):
                self._send(group)

    def _send(self, group: Sequence[Passenger]) -> None:
        requests = [ticket.request for ticket in group]
        try:
            exchange = self._store.begin(requests)
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            self._answer(group, [unforeseen(error)] * len(group))
            return
        if exchange is None:
            self._defer(group, requests)
            return
        self._flights[exchange] = group
        loop = asyncio.get_running_loop()
        loop.add_reader(exchange.fileno(), self._read, exchange)
        if not exchange.flushed():
            loop.add_writer(exchange.fileno(), self._write, exchange)

    def _write(self, exchange: Exchange) -> None:
        if exchange.flushed():
            asyncio.get_running_loop().remove_writer(exchange.fileno())

    def _read(self, exchange: Exchange) -> None:
        if exchange.answered():
            self._land(exchange)
            self._turn()

    def _land(self, exchange: Exchange, timeout: float | None = None) -> None:
        """Hand out the answers of a flight; with a timeout, wait for them here."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(exchange.fileno())
            loop.remove_writer(exchange.fileno())
        group = self._flights.pop(exchange)
        try:
            outcomes = exchange.outcomes() if timeout is None else exchange.wait(timeout)
        except Deferred as deferred:
            self._defer(group, deferred.requests)
        except SeriatimError as error:
            self._answer(group, [error] * len(group))
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            self._answer(group, [unforeseen(error)] * len(group))
        else:
            self._answer(group, outcomes)

    def _answer(self, group: Sequence[Passenger], outcomes: Sequence[Outcome | Deferred]) -> None:
        for ticket, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Deferred):
                self._defer([ticket], outcome.requests)
            else:
                ticket.answer(outcome)

    def _defer(self, group: Sequence[Passenger], requests: Sequence[Request]) -> None:
        """Pass a group that cannot go this way to the committer, each append by itself."""
        for ticket, request in zip(group, requests, strict=True):
            waiter = ticket.waiter
            if waiter is None or waiter not in self._open:
                continue
            try:
                self._open[waiter] = self._submit(request, waiter), self._open[waiter][1]
            except SeriatimError as refusal:
                ticket.answer(refusal)

    # -- time and end

    def _set_alarm(self, at: float) -> None:
        self._alarm_at = at
        asyncio.get_running_loop().call_at(at, self._look_at_the_clock, at)

    def _look_at_the_clock(self, alarm: float) -> None:
        """Give up what is overdue: one alarm for all, since hardly any ever is."""
        if alarm != self._alarm_at:
            return  # another was set for earlier, and has seen to it
        now = asyncio.get_running_loop().time()
        for waiter, (ticket, deadline) in self._open.items():
            if deadline <= now and not waiter.done():
                waiter.set_exception(give_up(ticket))
        self._alarm_at = None
        left = [deadline for _, deadline in self._open.values() if deadline > now]
        if left:
            self._set_alarm(min(left))

    def close(self, timeout: float) -> None:
        """Take no more, and see to it that all that was accepted gets its answer."""
        loop = self._loop()
        if loop is None or not loop.is_running() or loop is _running_loop():
            self._finish(timeout)
            return
        finished = threading.Event()

        def finish() -> None:
            self._finish(timeout)
            finished.set()

        with suppress(RuntimeError):  # the loop has just been closed: nobody waits any more
            loop.call_soon_threadsafe(finish)
            finished.wait(timeout)

    def _finish(self, timeout: float) -> None:
        self._closed = True
        while self._queue:
            group = self._queue.take()
            self._defer(group, [ticket.request for ticket in group])
        for exchange in list(self._flights):
            self._land(exchange, timeout)

    def __del__(self) -> None:
        """Let go of what a loop left under way when it ended."""
        if self._pid == os.getpid():  # a forked child leaves its parent's connections alone
            for exchange in self._flights:
                exchange.abandon()


def _settle(waiter: Waiter, outcome: Outcome) -> None:
    if waiter.done():
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


class Wakeups:
    """Wakes an event loop once for all appends of a group: a wake-up costs more than an append."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[tuple[Waiter, Outcome]] = deque()
        self._lock = threading.Lock()
        self._called = False

    def announce(self, waiter: Waiter, outcome: Outcome) -> None:
        """Hand an answer over, from a writer's thread."""
        with self._lock:
            self._ready.append((waiter, outcome))
            if self._called:
                return
            self._called = True
        loop = self._loop()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._called = False
            ready = list(self._ready)
            self._ready.clear()
        for waiter, outcome in ready:
            _settle(waiter, outcome)

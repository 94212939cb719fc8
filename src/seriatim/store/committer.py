"""Group commit: callers of all kinds submit, a few writer threads commit all that waits at once.

A writer takes whatever waits and never lingers, so a lone append is not delayed and many share one
commit. Sync callers wait on the ticket they get, others are told: one implementation.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, TypeVar, Union

from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError, TimedOut
from seriatim.core.event import AppendResult
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.request import Request
from seriatim.store.port import Closed, Deferred, Outcome, unanswered

WORTH_HALVING = 24  # appends; fewer gain less by overlapping than another statement costs

Tell = Callable[[Outcome], None]
Guard = Union["threading.Lock", threading.Condition]


class _State(Enum):
    WAITING = 1
    TAKEN = 2
    WITHDRAWN = 3


class Ticket:
    """An append that was handed in: it can be withdrawn until it is taken, and is answered once."""

    __slots__ = ("_answered", "_guard", "_outcome", "_state", "_tell", "request")

    def __init__(self, request: Request, guard: Guard, tell: Tell | None) -> None:
        self.request = request
        self._guard = guard
        self._tell = tell
        self._state = _State.WAITING
        self._outcome: Outcome | None = None
        if tell is None:  # somebody may wait here; a bare lock is the cheapest thing to wait on
            self._answered = threading.Lock()
            self._answered.acquire()

    def take(self) -> bool:
        """Begin to commit it, with the guard held, unless it was withdrawn."""
        if self._state is _State.WAITING:
            self._state = _State.TAKEN
            return True
        return False

    def cancel(self) -> bool:
        """Withdraw it; False when it was taken already."""
        with self._guard:
            if self._state is _State.WAITING:
                self._state = _State.WITHDRAWN
            return self._state is _State.WITHDRAWN

    def answer(self, outcome: Outcome) -> None:
        """Hand the answer over, from a writer's thread."""
        if self._tell is not None:
            self._tell(outcome)
        else:
            self._outcome = outcome
            self._answered.release()

    def result(self, timeout: float) -> AppendResult:
        """Wait for the answer; a refusal is raised, and TimeoutError when it takes too long."""
        if not self._answered.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            raise TimeoutError
        self._answered.release()
        outcome = self._outcome
        if isinstance(outcome, AppendResult):
            return outcome
        assert outcome is not None  # noqa: S101 - it was answered, for the type checker
        raise outcome


AnyTicket = TypeVar("AnyTicket", bound=Ticket)


class Queue(Generic[AnyTicket]):
    """What waits to be committed, bounded in events and in bytes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tickets: deque[AnyTicket] = deque()
        self._events = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def put(self, ticket: AnyTicket) -> None:
        """Let one more wait, if there is room for it."""
        request = ticket.request
        events, size = self._events + len(request.events), self._bytes + request.size
        # An append larger than the whole queue still passes when nothing waits.
        if self._tickets and (
            events > self._limits.queue_events or size > self._limits.queue_bytes
        ):
            raise self._full(events, size)
        self._events, self._bytes = events, size
        self._tickets.append(ticket)

    def _full(self, events: int, size: int) -> LimitExceeded:
        name, bound, actual = "queue_events", self._limits.queue_events, events
        if events <= bound:
            name, bound, actual = "queue_bytes", self._limits.queue_bytes, size
        msg = f"the queue of appends is full ({name}: {actual} of {bound}); try again"
        details = {"limit": name, "bound": bound, "actual": actual}
        return LimitExceeded(msg, details=details, retryable=True)

    def share(self, *, under_way: int, writers: int) -> list[AnyTicket]:
        """Take what goes now: half of many, so that one half is made while the other commits."""
        waiting = len(self._tickets)
        halved = waiting >= WORTH_HALVING and not under_way and writers > 1
        return self.take((waiting + 1) // 2 if halved else None)

    def take(self, at_most: int | None = None) -> list[AnyTicket]:
        """Take all that fits one group, or so many of it, but for what was withdrawn."""
        group: list[AnyTicket] = []
        events = size = 0
        while self._tickets and (at_most is None or len(group) < at_most):
            request = self._tickets[0].request
            events += len(request.events)
            size += request.size
            if group and (events > self._limits.append_events or size > self._limits.append_bytes):
                break
            ticket = self._tickets.popleft()
            self._events -= len(request.events)
            self._bytes -= request.size
            if ticket.take():
                group.append(ticket)
        return group


class Committer:
    """The one way into a store for appends of this process."""

    def __init__(
        self,
        commit: Callable[[Sequence[Request]], list[Outcome]],
        *,
        limits: Limits = DEFAULT_LIMITS,
        writers: int = 1,
    ) -> None:
        self._commit = commit
        self._limits = limits
        self.writers = writers
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._ready = threading.Condition(threading.Lock())
        self._queue: Queue[Ticket] = Queue(self._limits)
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._closed = False

    def submit(self, request: Request, tell: Tell | None = None) -> Ticket:
        """Queue an append; with `tell` the answer is told, from a writer's thread."""
        ticket = Ticket(request, self._ready, tell)
        with self._ready:
            self._check_open()
            self._queue.put(ticket)
            if len(self._threads) < self.writers:
                self._start_writer()
            self._ready.notify()
        return ticket

    def _check_open(self) -> None:
        if self._closed:
            raise Closed

    def alone(self, act: Callable[[], Outcome | None]) -> Outcome | None:
        """Let a lone caller commit by itself: changing threads twice costs more than an append.

        None when others commit or wait, with whom it had better share a commit.
        """
        with self._ready:
            self._check_open()
            if self._busy or self._queue:
                return None
            self._busy += 1
        try:
            return act()
        except (SeriatimError, Deferred):
            raise
        except Exception as error:
            raise unforeseen(error) from error
        finally:
            self._step_down()

    def _step_down(self) -> None:
        """Let those go on who waited for somebody to have finished."""
        with self._ready:
            self._busy -= 1
            if self._closed or self._queue:
                self._ready.notify_all()

    def _start_writer(self) -> None:
        name = f"seriatim-writer-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while group := self._take():
            self._serve(group)
            del group  # who waited for it may be gone for good while this thread sleeps

    def _serve(self, group: list[Ticket]) -> None:
        for ticket, outcome in zip(group, self._outcomes(group), strict=True):
            ticket.answer(outcome)
        self._step_down()

    def _outcomes(self, group: list[Ticket]) -> list[Outcome]:
        """Commit a group; whatever happens, there is an answer for everyone."""
        try:
            outcomes = self._commit([ticket.request for ticket in group])
        except SeriatimError as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            return [unforeseen(error)] * len(group)
        if len(outcomes) != len(group):
            return [unforeseen(ValueError("one answer a request"))] * len(group)
        return outcomes

    def _take(self) -> list[Ticket]:
        """Wait for work and take all of it that fits one group; nothing means the end."""
        with self._ready:
            while True:
                while not self._queue or self._busy >= self.writers:
                    if self._closed and not self._queue:
                        return []
                    self._ready.wait()
                if group := self._queue.share(under_way=self._busy, writers=self.writers):
                    self._busy += 1
                    return group

    def after_fork(self) -> None:
        """Begin anew in a child process: what waited belongs to the parent."""
        closed = self._closed
        self._start_fresh()
        self._closed = closed

    def close(self, timeout: float | None = None) -> None:
        """Stop taking appends and wait until all that were accepted have their answer."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(timeout)
        with self._ready:
            self._ready.wait_for(lambda: not self._busy, timeout)


def give_up(ticket: Ticket) -> SeriatimError:
    """Withdraw an append that took too long, and say honestly whether it may be stored."""
    if not ticket.cancel():
        return unanswered()
    return TimedOut("the append waited too long for its turn; nothing was sent or stored")


def unforeseen(error: Exception) -> BackendFailure:
    """Make the error for a store with a bug."""
    msg = f"the store failed in an unforeseen way ({type(error).__name__}); the outcome is unknown"
    failure = BackendFailure(msg, details={"ambiguous": True})
    failure.__cause__ = error
    return failure

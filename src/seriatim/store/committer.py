"""Group commit for threads: one of the waiting callers commits for all, or a writer thread does.

A group takes all queued appends at once and never waits for more, so a single append is not delayed
and concurrent appends share one commit. A caller that finds no group in flight commits its own
append. If groups are in flight, it queues its append; when one of them ends, the first queued
caller is woken as the leader of the next group, commits it, and wakes the others.

Writer threads commit what a caller's thread must not: appends that may take longer than their
callers wait, and appends submitted by callers that do not wait in a thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, TypeVar, Union

from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError, TimedOut
from seriatim.core.event import AppendResult
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.request import AppendRequest
from seriatim.store.port import Deferred, GroupWriter, LogClosed, Outcome, make_unanswered_error

SPLIT_THRESHOLD = 24  # appends; splitting fewer costs more for the second statement than it saves

OutcomeCallback = Callable[[Outcome], None]
GuardLock = Union["threading.Lock", threading.Condition]


class _State(Enum):
    QUEUED = 1
    TAKEN = 2
    WITHDRAWN = 3


class QueuedAppend:
    """A submitted append: it can be withdrawn until a group takes it, and completes once."""

    __slots__ = ("_guard", "_on_outcome", "_outcome", "_state", "_wake", "group", "request")

    def __init__(
        self, request: AppendRequest, guard: GuardLock, on_outcome: OutcomeCallback | None
    ) -> None:
        self.request = request
        self._guard = guard
        self._on_outcome = on_outcome
        self._state = _State.QUEUED
        self._outcome: Outcome | None = None
        # The group that its caller has to commit, when it is woken as the leader.
        self.group: list[QueuedAppend] | None = None
        if on_outcome is None:
            # A caller may block on this append; a bare lock is the cheapest thing to wait on.
            self._wake = threading.Lock()
            self._wake.acquire()

    def claim(self) -> bool:
        """Mark the append as taken by a group; return False if it was withdrawn.

        The caller holds the guard lock.
        """
        if self._state is _State.QUEUED:
            self._state = _State.TAKEN
            return True
        return False

    def return_to_queue(self, request: AppendRequest) -> None:
        """Mark the append as queued again, because its group stored nothing.

        The caller holds the guard lock.
        """
        self.request = request
        self._state = _State.QUEUED

    def withdraw(self) -> bool:
        """Do as `cancel`, for a caller that holds the guard lock."""
        if self._state is _State.QUEUED:
            self._state = _State.WITHDRAWN
        return self._state is _State.WITHDRAWN

    def cancel(self) -> bool:
        """Withdraw the append; return False if a group has already taken it."""
        # The guard orders this and `claim`: exactly one of them succeeds, so a caller whose append
        # was withdrawn knows that nothing was sent (B13).
        with self._guard:
            return self.withdraw()

    def lead(self, group: list[QueuedAppend]) -> None:
        """Wake the caller to commit a group, of which this append is one."""
        self.group = group
        self._wake.release()

    def complete(self, outcome: Outcome) -> None:
        """Deliver the outcome; called once, by the thread that committed it."""
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        else:
            self._outcome = outcome  # first: the release wakes the caller, which reads it
            self._wake.release()

    def wait(self, timeout: float) -> Outcome | None:
        """Wait until the append completes or leads a group; return its outcome, None if it leads.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimeoutError: Neither has happened yet.

        """
        # `acquire` raises OverflowError above TIMEOUT_MAX.
        if not self._wake.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            raise TimeoutError
        return self._outcome

    def result(self, timeout: float) -> AppendResult:
        """Wait for the outcome of an append that was submitted, and return the receipt.

        Args:
            timeout: Seconds to wait.

        Raises:
            SeriatimError: The append was refused or failed.
            TimeoutError: There is no outcome yet.

        """
        outcome = self.wait(timeout)
        self._wake.release()  # another thread may wait for the same append
        return unwrap(outcome)


def unwrap(outcome: Outcome | None) -> AppendResult:
    """Return the receipt of an outcome; raises its error."""
    if isinstance(outcome, AppendResult):
        return outcome
    raise outcome or make_unexpected_error(ValueError("an append completed without an outcome"))


AnyQueuedAppend = TypeVar("AnyQueuedAppend", bound=QueuedAppend)


class AppendQueue(Generic[AnyQueuedAppend]):
    """The queued appends of a log, limited in events and in bytes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.appends: deque[AnyQueuedAppend] = deque()  # the oldest first, withdrawn ones included
        self._events = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.appends)

    def put(self, append: AnyQueuedAppend) -> None:
        """Add an append to the queue.

        Args:
            append: The append.

        Raises:
            LimitExceeded: The queue is full; the caller may try again.

        """
        request = append.request
        events, size = self._events + len(request.events), self._bytes + request.size
        # An append larger than the queue limits is still accepted while the queue is empty.
        if self.appends and (events > self._limits.queue_events or size > self._limits.queue_bytes):
            raise self._make_full_error(events, size)
        self._events, self._bytes = events, size
        self.appends.append(append)

    def _make_full_error(self, events: int, size: int) -> LimitExceeded:
        name, bound, actual = "queue_events", self._limits.queue_events, events
        if events <= bound:
            name, bound, actual = "queue_bytes", self._limits.queue_bytes, size
        msg = f"the append queue is full ({name}: {actual} of {bound}): try again, or raise {name}"
        details = {"limit": name, "bound": bound, "actual": actual}
        return LimitExceeded(msg, details=details, retryable=True)

    def take_share(self, *, in_flight: int, writers: int) -> list[AnyQueuedAppend]:
        """Take the next group to commit.

        If many appends are queued and all writers are idle, take half of them, so that one half is
        encoded while the other commits.

        Args:
            in_flight: The number of groups in flight.
            writers: The number of groups that may be in flight.

        Returns:
            The appends of the group; empty if all queued appends were withdrawn.

        """
        queued = len(self.appends)
        split = queued >= SPLIT_THRESHOLD and not in_flight and writers > 1
        return self.take_group((queued + 1) // 2 if split else None)

    def take_group(self, max_appends: int | None = None) -> list[AnyQueuedAppend]:
        """Take as many appends as fit one group, at most `max_appends`, without withdrawn ones."""
        group: list[AnyQueuedAppend] = []
        events = size = 0
        while self.appends and (max_appends is None or len(group) < max_appends):
            request = self.appends[0].request
            events += len(request.events)
            size += request.size
            if group and (events > self._limits.append_events or size > self._limits.append_bytes):
                break
            append = self.appends.popleft()
            self._events -= len(request.events)
            self._bytes -= request.size
            # A withdrawn append stays queued until here: removing it from the middle of the deque
            # would take time proportional to the queue.
            if append.claim():
                group.append(append)
        return group


class Committer:
    """Commits the appends of this process to a store, in groups.

    All state is guarded by `_ready`, a condition that is notified when appends are queued for the
    writer threads, a writer becomes free, or the committer closes.
    """

    def __init__(
        self,
        store: GroupWriter,
        *,
        limits: Limits = DEFAULT_LIMITS,
        writers: int = 1,
        timeout_s: float = 0.0,
    ) -> None:
        """Make a committer without threads; they start on demand.

        Args:
            store: Commits the groups.
            limits: The bounds on queues and groups.
            writers: How many groups may be in flight.
            timeout_s: The default timeout. Callers with a shorter one never commit for others.
        """
        self._store = store
        self._limits = limits
        self.writers = writers
        self._timeout_s = timeout_s
        self._reset()

    def _reset(self) -> None:
        # Protects the queues and the counts, never a commit: callers can queue appends while a
        # group is written, and that is what makes the next group large.
        self._ready = threading.Condition(threading.Lock())
        self._queue: AppendQueue[QueuedAppend] = AppendQueue(self._limits)
        self._shared: AppendQueue[QueuedAppend] = AppendQueue(self._limits)  # of waiting callers
        self._threads: list[threading.Thread] = []
        self._in_flight = 0  # groups
        self._leading = 0  # those of them that callers commit
        self._callers_next = False  # whether waiting callers come before the writer threads
        self._closed = False

    @property
    def queued(self) -> int:
        """The number of queued appends."""
        return len(self._queue) + len(self._shared)

    @property
    def closed(self) -> bool:
        """Whether the committer refuses new appends."""
        return self._closed

    # -- callers that wait in their threads

    def append(self, request: AppendRequest, timeout: float) -> AppendResult:
        """Commit an append and wait for its receipt, in this thread as far as possible.

        Waking another thread costs more than the insert of a single append, so a caller commits
        its append itself, or those of all waiting callers (decisions 0012 and 0036).

        Args:
            request: The append.
            timeout: Seconds to wait.

        Raises:
            LogClosed: The log is closed.
            LimitExceeded: The queue is full.
            SeriatimError: The append was refused, timed out or failed.

        """
        deadline = time.monotonic() + timeout
        with self._ready:
            if self._closed:
                raise LogClosed
            alone = not self._in_flight and not self._queue.appends
            if alone:
                self._in_flight = self._leading = 1
        if not alone:
            return self._append_with_others(request, timeout, deadline)
        try:
            outcomes = self._store.commit_now((request,), timeout)
            outcome = outcomes[0] if outcomes else Deferred((request,))
        except Deferred as deferred:
            outcome = deferred
        except SeriatimError:
            raise
        except Exception as error:
            raise make_unexpected_error(error) from error
        finally:
            with self._ready:
                if self._queue.appends or self._shared.appends or self._closed:
                    self._free_slot()
                    self._end_leading()
                else:  # nobody waits: the usual case, without further calls
                    self._in_flight -= 1
                    self._leading -= 1
        if isinstance(outcome, AppendResult):
            return outcome
        if isinstance(outcome, Deferred):
            # Nothing is stored, or the request is marked as sent before: a writer decides it.
            [request] = outcome.requests
            return self._wait(self.submit(request), deadline)
        raise outcome

    def _append_with_others(
        self, request: AppendRequest, timeout: float, deadline: float
    ) -> AppendResult:
        """Commit an append in a group with those of other callers."""
        if timeout < self._timeout_s or not self._store.can_commit_now(request):
            return self._wait(self.submit(request), deadline)
        append = QueuedAppend(request, self._ready, None)
        group: list[QueuedAppend] = []
        try:
            with self._ready:
                self._check_open()
                self._shared.put(append)
                # Appends that wait for a writer thread are not overtaken.
                if self._in_flight < self.writers and not self._queue:
                    group = self._take_shared()
            if group:
                self._commit_for_all(group, append, deadline)
            return self._wait(append, deadline)
        except BaseException:
            self._abandon(append)  # for example KeyboardInterrupt: it must not lead a group later
            raise

    def _take_shared(self) -> list[QueuedAppend]:
        """Take the next group of waiting callers, whose thread must commit it."""
        group = self._shared.take_share(in_flight=self._in_flight, writers=self.writers)
        if group:
            self._in_flight += 1
            self._leading += 1
        return group

    def _wait(self, append: QueuedAppend, deadline: float) -> AppendResult:
        """Wait for an append, and commit a group if it is woken as the leader."""
        while True:
            try:
                outcome = append.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise make_timeout_error(sent=not self._abandon(append)) from None
            if outcome is not None:
                return unwrap(outcome)
            if group := append.group:
                append.group = None
                self._commit_for_all(group, append, deadline)

    def _abandon(self, append: QueuedAppend) -> bool:
        """Withdraw an append whose caller stops waiting; return False if it may be stored.

        If it was just made the leader of a group, the writer threads commit the group.
        """
        with self._ready:
            group, append.group = append.group, None
            if group:
                self._defer(group, [one.request for one in group])
                self._free_slot()
                self._end_leading()
            return append.withdraw()

    def _commit_for_all(
        self, group: list[QueuedAppend], own: QueuedAppend, deadline: float
    ) -> None:
        """Commit a group in this thread, start the next one, and wake the callers.

        Args:
            group: The appends.
            own: The append of this thread, which may be in the group.
            deadline: When this thread stops waiting for the response.

        """
        requests = [append.request for append in group]
        outcomes: Sequence[Outcome | Deferred]
        try:
            committed = self._store.commit_now(requests, max(0.0, deadline - time.monotonic()))
            outcomes = [Deferred((one,)) for one in requests] if committed is None else committed
            check_count(outcomes, group)
        except Deferred as deferred:
            outcomes = [Deferred((request,)) for request in deferred.requests]
        except SeriatimError as error:
            outcomes = [error] * len(group)
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            outcomes = [make_unexpected_error(error)] * len(group)
        except BaseException as error:
            # This thread is interrupted; the others only learn that the outcome is unknown.
            _complete_others(group, own, make_unexpected_error(error))
            with self._ready:
                self._free_slot()
                self._end_leading()
            raise
        self._finish_group(group, outcomes)

    def _finish_group(
        self, group: Sequence[QueuedAppend], outcomes: Sequence[Outcome | Deferred]
    ) -> None:
        """Start the next group and complete the appends of one that a caller has committed."""
        with self._ready:
            self._free_slot()  # first, so that the server has work while the callers wake up
        for append, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Deferred):
                with self._ready:
                    self._defer([append], outcome.requests)
            else:
                append.complete(outcome)
        # After the outcomes: `close` returns when no caller leads a group, and all accepted appends
        # must have their outcomes by then.
        with self._ready:
            self._end_leading()

    def _end_leading(self) -> None:
        """Count one leading caller less; the lock is held."""
        self._leading -= 1
        if self._closed and not self._leading:
            self._ready.notify_all()

    def _free_slot(self) -> None:
        """Count one group in flight less, and start the next one; the lock is held."""
        self._in_flight -= 1
        self._start_next()

    def _start_next(self) -> None:
        """Start the next groups; the lock is held.

        The first waiting caller is woken to lead a group, or a writer thread takes one. If both
        have appends, they take turns.
        """
        while self._in_flight < self.writers:
            if self._queue and not (self._callers_next and self._shared):
                self._callers_next = True
                self._wake_writer()
                return  # the writer starts further groups when it has taken its own
            self._callers_next = False
            group = self._take_shared()
            if not group:
                return
            group[0].lead(group)

    def _defer(self, group: Sequence[QueuedAppend], requests: Sequence[AppendRequest]) -> None:
        """Queue appends for the writer threads; nothing of them is stored, the lock is held."""
        for append, request in zip(group, requests, strict=True):
            append.return_to_queue(request)
            try:
                self._put(append)
            except LimitExceeded as refusal:
                append.claim()
                append.complete(refusal)

    # -- writer threads

    def submit(
        self, request: AppendRequest, on_outcome: OutcomeCallback | None = None
    ) -> QueuedAppend:
        """Queue an append for the writer threads.

        Args:
            request: The append.
            on_outcome: Called with the outcome from a writer thread. Without it, the caller waits
                with `QueuedAppend.result`.

        Raises:
            LogClosed: The log is closed.
            LimitExceeded: The queue is full.

        """
        append = QueuedAppend(request, self._ready, on_outcome)
        with self._ready:
            self._check_open()
            self._put(append)
        return append

    def _put(self, append: QueuedAppend) -> None:
        self._queue.put(append)
        # Threads start on demand, so a process that only reads has none.
        if len(self._threads) < self.writers:
            self._start_writer()
        # One writer takes the whole queue; waking more of them would only contend for the GIL.
        if self._in_flight < self.writers:
            self._wake_writer()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed

    def _wake_writer(self) -> None:
        if self._closed:
            self._ready.notify_all()  # `close` may wait, too
        else:
            self._ready.notify()

    def _start_writer(self) -> None:
        name = f"seriatim-writer-{len(self._threads)}"
        # A daemon, so that a commit that hangs cannot keep the interpreter from exiting.
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while group := self._take_group():
            self._commit_group(group)
            del group  # do not keep the requests alive while this thread sleeps

    def _commit_group(self, group: list[QueuedAppend]) -> None:
        for append, outcome in zip(group, self._commit_safely(group), strict=True):
            append.complete(outcome)
        with self._ready:
            self._free_slot()
            if self._closed:
                self._ready.notify_all()

    def _commit_safely(self, group: list[QueuedAppend]) -> list[Outcome]:
        """Commit a group and return one outcome per append, whatever happens."""
        try:
            outcomes = self._store.append([append.request for append in group])
            check_count(outcomes, group)
        except SeriatimError as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            return [make_unexpected_error(error)] * len(group)
        return outcomes

    def _take_group(self) -> list[QueuedAppend]:
        """Wait for queued appends and take a group; an empty list means that the log was closed."""
        with self._ready:
            while True:
                while not self._queue or self._in_flight >= self.writers:
                    # A leading caller may still defer appends of its group to this thread.
                    if self._closed and not self._queue and not self._leading:
                        return []
                    self._ready.wait()
                # The group is empty if all queued appends were withdrawn: wait again.
                group = self._queue.take_share(in_flight=self._in_flight, writers=self.writers)
                self._in_flight += bool(group)
                self._start_next()
                if group:
                    return group

    # -- lifecycle

    def after_fork(self) -> None:
        """Reset the state in a forked child: queued appends belong to the parent."""
        # The lock is replaced as well: a thread of the parent may have held it during the fork.
        closed = self._closed
        self._reset()
        self._closed = closed

    def close(self, timeout: float | None = None) -> None:
        """Refuse new appends and wait until all accepted ones have completed.

        Args:
            timeout: Seconds to wait for callers, and for each writer thread; None for no limit.

        """
        with self._ready:
            self._closed = True
            self._ready.notify_all()
            # Callers commit in threads of their own, which cannot be joined; they come first,
            # because they may still defer appends to the writer threads.
            self._ready.wait_for(lambda: not self._leading, timeout)
        for thread in self._threads:
            thread.join(timeout)


def _complete_others(
    group: Sequence[QueuedAppend], own: QueuedAppend, failure: BackendFailure
) -> None:
    for append in group:
        if append is not own:
            append.complete(failure)


def check_count(outcomes: Sequence[object], group: Sequence[object]) -> None:
    """Raise `ValueError` unless a store returned one outcome per append of a group."""
    if len(outcomes) != len(group):
        msg = "expected one outcome per request"
        raise ValueError(msg)


def abort_timed_out(append: QueuedAppend) -> SeriatimError:
    """Withdraw an append that timed out, and return the error for its caller.

    The error is ambiguous if a group had taken the append: then it may be stored.
    """
    return make_timeout_error(sent=not append.cancel())


def make_timeout_error(*, sent: bool) -> SeriatimError:
    """Return the error for an append that timed out, which may be stored if it was sent."""
    if sent:
        return make_unanswered_error()
    return TimedOut(
        "the append timed out in the queue, before it was sent; nothing was stored: try again, or "
        "raise timeout_s"
    )


def make_unexpected_error(error: BaseException) -> BackendFailure:
    """Return the error for an exception that a store should not raise."""
    msg = (
        f"unexpected {type(error).__name__} in the store; the append may be stored: repeat it with "
        "the same keys or event ids"
    )
    failure = BackendFailure(msg, details={"ambiguous": True})
    failure.__cause__ = error
    return failure

"""Group commit: callers submit appends, and a few writer threads commit them in groups.

A writer takes all queued appends at once and never waits for more, so a single append is not
delayed and concurrent appends share one commit. Synchronous callers block on the returned
`QueuedAppend`; asynchronous callers pass a callback.
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
from seriatim.core.request import AppendRequest
from seriatim.store.port import Deferred, LogClosed, Outcome, make_unanswered_error

SPLIT_THRESHOLD = 24  # appends; splitting fewer costs more for the second statement than it saves

OutcomeCallback = Callable[[Outcome], None]
GuardLock = Union["threading.Lock", threading.Condition]


class _State(Enum):
    QUEUED = 1
    TAKEN = 2
    WITHDRAWN = 3


class QueuedAppend:
    """A submitted append: it can be withdrawn until a writer takes it, and completes once."""

    __slots__ = ("_completed", "_guard", "_on_outcome", "_outcome", "_state", "request")

    def __init__(
        self, request: AppendRequest, guard: GuardLock, on_outcome: OutcomeCallback | None
    ) -> None:
        self.request = request
        self._guard = guard
        self._on_outcome = on_outcome
        self._state = _State.QUEUED
        self._outcome: Outcome  # set by `complete`
        if on_outcome is None:
            # A caller may block on this append; a bare lock is the cheapest thing to wait on.
            self._completed = threading.Lock()
            self._completed.acquire()

    def claim(self) -> bool:
        """Mark the append as taken by a writer; return False if it was withdrawn.

        The caller holds the guard lock.
        """
        if self._state is _State.QUEUED:
            self._state = _State.TAKEN
            return True
        return False

    def cancel(self) -> bool:
        """Withdraw the append; return False if a writer has already taken it."""
        # The guard orders this and `claim`: exactly one of them succeeds, so a caller whose append
        # was withdrawn knows that nothing was sent (B13).
        with self._guard:
            if self._state is _State.QUEUED:
                self._state = _State.WITHDRAWN
            return self._state is _State.WITHDRAWN

    def complete(self, outcome: Outcome) -> None:
        """Deliver the outcome; called once, from a writer thread."""
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        else:
            self._outcome = outcome  # first: the release wakes the caller, which reads it
            self._completed.release()

    def result(self, timeout: float) -> AppendResult:
        """Wait for the outcome and return the receipt.

        Args:
            timeout: Seconds to wait.

        Raises:
            SeriatimError: The append was refused or failed.
            TimeoutError: There is no outcome yet.

        """
        # `acquire` raises OverflowError above TIMEOUT_MAX.
        if not self._completed.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            raise TimeoutError
        self._completed.release()  # another thread may wait for the same append
        outcome = self._outcome
        if isinstance(outcome, AppendResult):
            return outcome
        raise outcome


AnyQueuedAppend = TypeVar("AnyQueuedAppend", bound=QueuedAppend)


class AppendQueue(Generic[AnyQueuedAppend]):
    """The queued appends of a log, limited in events and in bytes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._appends: deque[AnyQueuedAppend] = deque()
        self._events = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._appends)

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
        if self._appends and (
            events > self._limits.queue_events or size > self._limits.queue_bytes
        ):
            raise self._make_full_error(events, size)
        self._events, self._bytes = events, size
        self._appends.append(append)

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
        queued = len(self._appends)
        split = queued >= SPLIT_THRESHOLD and not in_flight and writers > 1
        return self.take_group((queued + 1) // 2 if split else None)

    def take_group(self, max_appends: int | None = None) -> list[AnyQueuedAppend]:
        """Take as many appends as fit one group, at most `max_appends`, without withdrawn ones."""
        group: list[AnyQueuedAppend] = []
        events = size = 0
        while self._appends and (max_appends is None or len(group) < max_appends):
            request = self._appends[0].request
            events += len(request.events)
            size += request.size
            if group and (events > self._limits.append_events or size > self._limits.append_bytes):
                break
            append = self._appends.popleft()
            self._events -= len(request.events)
            self._bytes -= request.size
            # A withdrawn append stays queued until here: removing it from the middle of the deque
            # would take time proportional to the queue.
            if append.claim():
                group.append(append)
        return group


class Committer:
    """Commits the appends of this process to a store, in groups.

    All state is guarded by `_ready`, a condition that is notified when appends are queued, a writer
    becomes free or the committer closes.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[AppendRequest]], list[Outcome]],
        *,
        limits: Limits = DEFAULT_LIMITS,
        writers: int = 1,
    ) -> None:
        self._commit = commit
        self._limits = limits
        self.writers = writers
        self._reset()

    def _reset(self) -> None:
        # Protects the queue and the counts, never a commit: callers can queue appends while a group
        # is written, and that is what makes the next group large.
        self._ready = threading.Condition(threading.Lock())
        self._queue: AppendQueue[QueuedAppend] = AppendQueue(self._limits)
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._closed = False

    def submit(
        self, request: AppendRequest, on_outcome: OutcomeCallback | None = None
    ) -> QueuedAppend:
        """Queue an append for group commit.

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
            self._queue.put(append)
            # Threads start on demand, so a process that only reads has none.
            if len(self._threads) < self.writers:
                self._start_writer()
            # One writer takes the whole queue; waking more of them would only contend for the GIL.
            self._ready.notify()
        return append

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed

    def run_alone(self, commit: Callable[[], Outcome | None]) -> Outcome | None:
        """Commit one append in the caller's thread if no other append is queued or in flight.

        Handing an append to a writer thread and back costs more than committing it. With other
        appends queued or in flight, group commit is cheaper.

        Args:
            commit: Commits the append.

        Returns:
            The result of `commit`; None without calling it if other appends are active.

        Raises:
            LogClosed: The log is closed.
            Deferred: Raised by `commit`: the append must be committed by `submit`.
            SeriatimError: The append was refused or failed.

        """
        with self._ready:
            self._check_open()
            if self._busy or self._queue:
                return None
            self._busy += 1
        try:
            return commit()
        except (SeriatimError, Deferred):
            raise
        except Exception as error:
            raise make_unexpected_error(error) from error
        finally:
            self._finish_commit()

    def _finish_commit(self) -> None:
        """Mark one commit as finished, and wake writers or `close`."""
        with self._ready:
            self._busy -= 1
            # Without queued appends no writer has work, and only `close` waits for idle writers.
            if self._closed or self._queue:
                self._ready.notify_all()

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
        # After the outcomes: `close` returns when nothing is in flight, and all accepted appends
        # must have their outcomes by then.
        self._finish_commit()

    def _commit_safely(self, group: list[QueuedAppend]) -> list[Outcome]:
        """Commit a group and return one outcome per append, whatever happens."""
        try:
            outcomes = self._commit([append.request for append in group])
        except SeriatimError as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
            return [make_unexpected_error(error)] * len(group)
        if len(outcomes) != len(group):
            return [make_unexpected_error(ValueError("expected one outcome per request"))] * len(
                group
            )
        return outcomes

    def _take_group(self) -> list[QueuedAppend]:
        """Wait for queued appends and take a group; an empty list means that the log was closed."""
        with self._ready:
            while True:
                while not self._queue or self._busy >= self.writers:
                    if self._closed and not self._queue:
                        return []
                    self._ready.wait()
                # The group is empty if all queued appends were withdrawn: wait again.
                if group := self._queue.take_share(in_flight=self._busy, writers=self.writers):
                    self._busy += 1
                    return group

    def after_fork(self) -> None:
        """Reset the state in a forked child: queued appends belong to the parent."""
        # The lock is replaced as well: a thread of the parent may have held it during the fork.
        closed = self._closed
        self._reset()
        self._closed = closed

    def close(self, timeout: float | None = None) -> None:
        """Refuse new appends and wait until all accepted ones have completed.

        Args:
            timeout: Seconds to wait for each writer thread, None for no limit.

        """
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(timeout)
        # Callers of `run_alone` commit in threads of their own, which cannot be joined.
        with self._ready:
            self._ready.wait_for(lambda: not self._busy, timeout)


def abort_timed_out(append: QueuedAppend) -> SeriatimError:
    """Withdraw an append that timed out, and return the error for its caller.

    The error is ambiguous if a writer had taken the append: then it may be stored.
    """
    if not append.cancel():
        return make_unanswered_error()
    return TimedOut(
        "the append timed out in the queue, before it was sent; nothing was stored: try again, or "
        "raise timeout_s"
    )


def make_unexpected_error(error: Exception) -> BackendFailure:
    """Return the error for an exception that a store should not raise."""
    msg = (
        f"unexpected {type(error).__name__} in the store; the append may be stored: repeat it with "
        "the same keys or event ids"
    )
    failure = BackendFailure(msg, details={"ambiguous": True})
    failure.__cause__ = error
    return failure

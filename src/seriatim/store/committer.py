"""Group commit: callers of all kinds submit, a few writer threads commit all that waits at once.

A writer takes whatever waits and never lingers, so a lone append is not delayed and many share one
commit. Sync callers wait on the returned future, async callers await it: one implementation.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError
from seriatim.core.event import AppendResult
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.request import Request
from seriatim.store.port import Outcome

Waiting = tuple[Request, "Future[AppendResult]"]


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
        self._writers = writers
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._ready = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._queued_events = 0
        self._queued_bytes = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, request: Request) -> Future[AppendResult]:
        """Queue an append; the future can be cancelled until a writer has taken it."""
        future: Future[AppendResult] = Future()
        with self._ready:
            if self._closed:
                msg = "the log is closed"
                raise BackendFailure(msg, retryable=False)
            self._check_room(request)
            self._queue.append((request, future))
            self._queued_events += len(request.events)
            self._queued_bytes += request.size
            if len(self._threads) < self._writers:
                self._start_writer()
            self._ready.notify()
        return future

    def _check_room(self, request: Request) -> None:
        for name, waiting, more in (
            ("queue_events", self._queued_events, len(request.events)),
            ("queue_bytes", self._queued_bytes, request.size),
        ):
            bound: int = getattr(self._limits, name)
            # An append larger than the whole queue still passes when nothing waits.
            if waiting and waiting + more > bound:
                msg = f"the queue of appends is full ({name}: {waiting} of {bound}); try again"
                details = {"limit": name, "bound": bound, "actual": waiting + more}
                raise LimitExceeded(msg, details=details, retryable=True)

    def _start_writer(self) -> None:
        name = f"seriatim-writer-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while group := self._take():
            requests = [request for request, _ in group]
            try:
                outcomes = self._commit(requests)
                if len(outcomes) != len(group):
                    outcomes = [_unforeseen(ValueError("one answer a request"))] * len(group)
            except SeriatimError as error:
                outcomes = [error] * len(group)
            except Exception as error:  # noqa: BLE001 - a caller must never be left hanging
                outcomes = [_unforeseen(error)] * len(group)
            for (_, future), outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, AppendResult):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)

    def _take(self) -> list[Waiting]:
        """Wait for work and take all of it that fits one group; nothing means the end."""
        with self._ready:
            while True:
                while not self._queue:
                    if self._closed:
                        return []
                    self._ready.wait()
                if group := self._take_group():
                    return group

    def _take_group(self) -> list[Waiting]:
        group: list[Waiting] = []
        events = size = 0
        while self._queue:
            request, future = self._queue[0]
            events += len(request.events)
            size += request.size
            if group and (events > self._limits.append_events or size > self._limits.append_bytes):
                break
            self._queue.popleft()
            self._queued_events -= len(request.events)
            self._queued_bytes -= request.size
            if future.set_running_or_notify_cancel():
                group.append((request, future))
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


def _unforeseen(error: Exception) -> BackendFailure:
    msg = f"the store failed in an unforeseen way ({type(error).__name__}); the outcome is unknown"
    failure = BackendFailure(msg, details={"ambiguous": True})
    failure.__cause__ = error
    return failure

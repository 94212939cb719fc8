"""Ending a read that runs: by its own time limit, or because nobody waits for it any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seriatim.core.errors import SeriatimError, TimedOut

_current: ContextVar[Cancellation | None] = ContextVar("seriatim_cancellation", default=None)


class Cancellation:
    """A request's right to stop the work that is done for it.

    The owner calls `cancel` when the request has ended. Reads that run in a context with
    `cancellable(cancellation)` notice it within a fraction of a second, in the database as well as
    in Python, and raise `TimedOut`.

        cancellation = Cancellation()
        with cancellable(cancellation):
            log.query(query)  # in a thread; another one may call cancellation.cancel()
    """

    def __init__(self, *, nested: bool = True) -> None:
        """Begin a request; if it is nested, it ends with the request of this context as well."""
        self._ended = threading.Event()
        self._around = _current.get() if nested else None

    def cancel(self) -> None:
        """Let all work in this request's context end; safe from any thread, and repeatedly."""
        self._ended.set()

    @property
    def cancelled(self) -> bool:
        """Whether the request has ended."""
        return self._ended.is_set() or (self._around is not None and self._around.cancelled)


@contextmanager
def cancellable(cancellation: Cancellation) -> Iterator[Cancellation]:
    """Let the reads of this context, and of threads that run in a copy of it, be cancelled."""
    token = _current.set(cancellation)
    try:
        yield cancellation
    finally:
        _current.reset(token)


class ReadBudget:
    """The time that one read has, and the request that it is done for."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._cancellation = _current.get()

    @property
    def cancellable(self) -> bool:
        """Whether anybody may end the read before its time."""
        return self._cancellation is not None

    @property
    def bounded(self) -> bool:
        """Whether the read may be ended at all."""
        return self._until is not None or self._cancellation is not None

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the read any more."""
        return self._cancellation is not None and self._cancellation.cancelled

    def over(self) -> bool:
        """Tell whether the read must end now."""
        return self.cancelled or (self._until is not None and time.monotonic() > self._until)

    def check(self) -> None:
        """Raise `TimedOut` if the read must end now."""
        if self.over():
            raise self.error()

    def error(self) -> SeriatimError:
        """Make the error for a read that was ended."""
        if self.cancelled or self._seconds is None:
            return TimedOut("the read was ended because its request had ended")
        return too_long(self._seconds)


def too_long(seconds: float) -> TimedOut:
    """Make the error for a read that was ended because it took too long."""
    msg = f"the read took more than {seconds:g} s and was ended: ask for less, or declare an index"
    return TimedOut(msg)

"""Cancellation of running reads: by a time limit, or because their request has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seriatim.core.errors import SeriatimError, TimedOut

_current: ContextVar[Cancellation | None] = ContextVar("seriatim_cancellation", default=None)


class Cancellation:
    """A handle that cancels the reads made on behalf of one request.

    The owner calls `cancel` when the request has ended. Reads inside `cancellable(cancellation)`
    notice it within a fraction of a second, in the database as well as in Python, and raise
    `TimedOut`.

    Example:
        cancellation = Cancellation()
        with cancellable(cancellation):
            log.query(query)  # in a thread; another one may call cancellation.cancel()

    """

    def __init__(self, *, nested: bool = True) -> None:
        """Create a handle; a nested one is also cancelled with the enclosing `cancellable`."""
        self._ended = threading.Event()
        self._parent = _current.get() if nested else None

    def cancel(self) -> None:
        """Cancel all reads of this request; safe from any thread, and more than once."""
        self._ended.set()

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return self._ended.is_set() or (self._parent is not None and self._parent.cancelled)


@contextmanager
def cancellable(cancellation: Cancellation) -> Iterator[Cancellation]:
    """Make reads in the block cancellable, also those of threads that copy its context."""
    token = _current.set(cancellation)
    try:
        yield cancellation
    finally:
        _current.reset(token)


class ReadBudget:
    """The time limit of one read, and the request that may cancel it."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._cancellation = _current.get()

    @property
    def cancellable(self) -> bool:
        """Whether the read belongs to a request that may be cancelled."""
        return self._cancellation is not None

    @property
    def bounded(self) -> bool:
        """Whether the read has a time limit or may be cancelled."""
        return self._deadline is not None or self._cancellation is not None

    @property
    def cancelled(self) -> bool:
        """Whether the request of this read was cancelled."""
        return self._cancellation is not None and self._cancellation.cancelled

    def is_exhausted(self) -> bool:
        """Return True if the read must stop now."""
        if self.cancelled:
            return True
        return self._deadline is not None and time.monotonic() > self._deadline

    def check(self) -> None:
        """Raise `TimedOut` if the read must stop now."""
        if self.is_exhausted():
            raise self.make_error()

    def make_error(self) -> SeriatimError:
        """Return the error for a read that was stopped."""
        if self.cancelled or self._seconds is None:
            return TimedOut("the read was cancelled because its request has ended")
        return make_read_timeout_error(self._seconds)


def make_read_timeout_error(seconds: float) -> TimedOut:
    """Return the error for a read that exceeded its time limit."""
    msg = (
        f"the read exceeded {seconds:g} s (read_timeout_s): read fewer events at a time, or "
        "declare an index"
    )
    return TimedOut(msg)

"""A pool of read-only connections, with time limits and cancellation."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from seriatim.core.errors import BackendFailure
from seriatim.store.cancellation import ReadBudget
from seriatim.store.sqlite import failures, fork_safety, payload_predicates
from seriatim.store.sqlite.connection import DatabaseFile

_STEPS = 10_000  # VM instructions between two checks of the clock, about a millisecond


class ReaderPool:
    """A limited number of read-only connections, each used by one thread at a time."""

    def __init__(self, file: DatabaseFile, size: int, timeout_s: float | None = None) -> None:
        self._file = file
        self._size = size
        self._timeout_s = timeout_s
        self._reset()

    def _reset(self) -> None:
        self._slots = threading.BoundedSemaphore(self._size)
        self._idle: list[sqlite3.Connection] = []

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection for the block."""
        if not self._slots.acquire(timeout=self._file.busy_timeout_s):
            msg = f"all {self._size} read connections to {self._file.path} are busy: try again"
            raise BackendFailure(msg)
        try:
            self._file.check_usable()
            with failures.translate_errors(self._file.path):
                connection = self._take()
                try:
                    yield connection
                except BaseException as error:
                    self._give_back(connection, broken=failures.invalidates_connection(error))
                    raise
                self._give_back(connection)
        finally:
            self._slots.release()

    @contextmanager
    def bounded_connection(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection whose statements stop at the time limit or on cancellation."""
        budget = ReadBudget(self._timeout_s)
        budget.check()
        with self.connection() as connection, payload_predicates.check_matches_with(budget.check):
            if budget.bounded:
                connection.set_progress_handler(budget.is_exhausted, _STEPS)
            try:
                yield connection
            except sqlite3.OperationalError as error:
                if (cause := payload_predicates.take_error()) is not None:
                    raise cause from error
                if failures.get_error_code(error) != sqlite3.SQLITE_INTERRUPT:
                    raise
                raise budget.make_error() from error
            finally:
                connection.set_progress_handler(None, 0)

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._file.open(mode="ro")
            connection.execute("pragma query_only = on")
            return connection

    def _give_back(self, connection: sqlite3.Connection, *, broken: bool = False) -> None:
        if broken or self._file.closed:
            connection.close()
        else:
            self._idle.append(connection)

    def pause(self, seconds: float) -> bool:
        """Wait for running reads, close the connections, and block new reads until `resume`."""
        deadline = time.monotonic() + seconds
        for taken in range(self._size):
            if not self._slots.acquire(timeout=max(0, deadline - time.monotonic())):
                if taken:
                    self._slots.release(taken)
                return False
        self.close()
        return True

    def resume(self) -> None:
        """End a pause."""
        self._slots.release(self._size)

    def after_fork(self) -> None:
        """Reset the state in a forked child; the parent's connections are kept, but unused."""
        for connection in self._idle:
            fork_safety.abandon_connection(connection)
        self._reset()

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

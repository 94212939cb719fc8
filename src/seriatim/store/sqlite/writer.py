"""The connection with which a process writes to the file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import random
from typing import TypeVar

from seriatim.core.errors import SeriatimError, TimedOut
from seriatim.store.sqlite import failures, fork_safety
from seriatim.store.sqlite.connection import DatabaseFile

_Result = TypeVar("_Result")

_BUSY_PAUSE_S = 0.001  # between two attempts to take the lock
_JOURNAL_BYTES_MAX = 64 * 1024 * 1024  # of the WAL after a checkpoint
_CHECKPOINT_PAGES = 4000  # in the WAL before one, about 16 MiB
_TRANSACTION_LIMIT_MIN_S = 5.0  # however short the busy timeout is
_STEPS_PER_CHECK = 100_000  # VM instructions between two checks of the clock, some milliseconds


class SqliteWriter:
    """The writing connection of a process; `_lock` gives it to one thread at a time."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self, *, bounded: bool = True) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction that holds the file's write lock.

        Args:
            bounded: Interrupt the statements after the busy timeout, when other processes that wait
                for the lock would give up.

        Raises:
            TimedOut: A statement was interrupted; nothing was stored.
            BackendFailure: A statement or COMMIT failed.

        """
        path = self._file.path
        with self._lock:
            connection = self._get_connection()
            try:
                with failures.translate_errors(path):
                    self._retry_while_busy(_begin, connection)
                    with self._limit_time(connection, bounded=bounded):
                        yield connection
            except BaseException as error:
                self._roll_back(connection, error)
                raise
            # Outside the block above: after a failed COMMIT the outcome may be ambiguous (B10).
            try:
                connection.execute("commit")
            except sqlite3.Error as error:
                self._roll_back(connection, error)
                raise failures.translate_error(error, path, at_commit=True) from error

    @contextmanager
    def _limit_time(self, connection: sqlite3.Connection, *, bounded: bool) -> Iterator[None]:
        if not bounded:
            yield
            return
        seconds = max(self._file.busy_timeout_s, _TRANSACTION_LIMIT_MIN_S)
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)
        try:
            yield
        except sqlite3.OperationalError as error:
            if failures.get_error_code(error) != sqlite3.SQLITE_INTERRUPT:
                raise
            msg = (
                f"cancelled after {seconds:g} s (lock_wait_s plus lock_hold_s), because other "
                f"writers wait for the lock of {self._file.path}; nothing was stored: write less "
                "at a time, or raise lock_hold_s"
            )
            raise TimedOut(msg, details={"ambiguous": False}) from error
        finally:
            connection.set_progress_handler(None, 0)

    def connect(self, *, create: bool = False) -> sqlite3.Connection:
        """Open the connection; with `create`, create the file if it does not exist."""
        with failures.translate_errors(self._file.path):
            connection = self._file.open(mode="rwc" if create else "rw")
            try:
                _use_wal(connection, time.monotonic() + self._file.busy_timeout_s)
            except sqlite3.Error:
                connection.close()
                raise
        self._connection = connection
        return connection

    def _get_connection(self) -> sqlite3.Connection:
        self._file.check_usable()
        return self._connection or self.connect()

    def commit_statement(
        self,
        execute: Callable[[sqlite3.Connection], sqlite3.Cursor],
        read_result: Callable[[sqlite3.Cursor], _Result],
        *,
        wait_for_lock: bool,
    ) -> _Result | None:
        """Run one statement as its own transaction, and read its result on the same connection.

        It takes the lock of the file before it reads, so its snapshot is the newest.

        Args:
            execute: Executes the statement.
            read_result: Reads the result, before another thread can write.
            wait_for_lock: Whether to wait for other writers.

        Returns:
            The result; None without `wait_for_lock` if another thread or process is writing.

        Raises:
            BackendFailure: The statement failed; the outcome may be ambiguous, since it commits.

        """
        if not self._lock.acquire(blocking=wait_for_lock):
            return None
        try:
            connection = self._get_connection()
            try:
                return read_result(
                    self._retry_while_busy(execute, connection)
                    if wait_for_lock
                    else execute(connection)
                )
            except sqlite3.Error as error:
                if failures.is_busy(error) and not wait_for_lock:
                    return None
                self._roll_back(connection, error)
                raise failures.translate_error(error, self._file.path, at_commit=True) from error
        finally:
            self._lock.release()

    def _retry_while_busy(
        self,
        execute: Callable[[sqlite3.Connection], sqlite3.Cursor],
        connection: sqlite3.Connection,
    ) -> sqlite3.Cursor:
        """Retry while another process holds the write lock, until the busy timeout.

        SQLite's own busy handler sleeps up to 100 ms between attempts, which is too long here.
        """
        deadline = time.monotonic() + self._file.busy_timeout_s
        while True:
            try:
                return execute(connection)
            except sqlite3.Error as error:
                if not failures.is_busy(error) or time.monotonic() > deadline:
                    raise
                # A random pause: waiting processes would otherwise retry in step.
                time.sleep(_BUSY_PAUSE_S * (0.5 + random()))  # noqa: S311 - only a pause

    def _roll_back(self, connection: sqlite3.Connection, error: BaseException) -> None:
        cause = error.__cause__ if isinstance(error, SeriatimError) else error
        try:
            if connection.in_transaction:  # after some errors SQLite has rolled back itself
                connection.execute("rollback")
        except sqlite3.Error as rollback_error:
            cause = rollback_error
        if cause is not None and failures.invalidates_connection(cause):
            self._connection = None
            connection.close()

    def read_settings(self) -> tuple[str, int]:
        """Return the journal mode and the synchronous level of this connection."""
        with self._lock, failures.translate_errors(self._file.path):
            connection = self._get_connection()
            (mode,) = connection.execute("pragma journal_mode").fetchone()
            (level,) = connection.execute("pragma synchronous").fetchone()
        return str(mode), int(level)

    def pause(self, seconds: float) -> bool:
        """Close after the running transaction, and block new ones until `resume`.

        Returns:
            False if the transaction did not end within `seconds`; then nothing is blocked.

        """
        if not self._lock.acquire(timeout=seconds):
            return False
        self._close()
        return True

    def resume(self) -> None:
        """End a pause."""
        self._lock.release()

    def after_fork(self) -> None:
        """Reset the state in a forked child; the parent's connection is kept, but unused."""
        fork_safety.abandon_connection(self._connection)
        # A thread of the parent may have held the old lock during the fork.
        self._lock = threading.Lock()
        self._connection = None

    def close(self) -> None:
        """Close the connection, after a running transaction has ended."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _begin(connection: sqlite3.Connection) -> sqlite3.Cursor:
    # Immediate: a transaction that first reads and takes the lock with its first write fails if
    # another process has written in between.
    return connection.execute("begin immediate")


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Turn on write-ahead logging; retry, since SQLite does not wait for a concurrent switch."""
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.Error as error:
            if not failures.is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_PAUSE_S)
        else:
            break
    connection.execute("pragma busy_timeout = 0")  # `_retry_while_busy` waits instead
    # In WAL mode a weaker level does not sync at COMMIT: the last commits could be lost (F5).
    connection.execute("pragma synchronous = full")
    connection.execute(f"pragma journal_size_limit = {_JOURNAL_BYTES_MAX}")
    connection.execute(f"pragma wal_autocheckpoint = {_CHECKPOINT_PAGES}")

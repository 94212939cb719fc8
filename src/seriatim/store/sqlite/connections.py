"""Connections to the file: one that writes, a few that read, and what a fork does to them."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import random

from seriatim.core.errors import BackendFailure
from seriatim.store.sqlite import failures, payloads

LEAST_VERSION = (3, 38, 0)
_STATEMENTS_CACHED = 256
_BEGIN_PAUSE_S = 0.001
_JOURNAL_BYTES_MAX = 64 * 1024 * 1024
_CHECKPOINT_PAGES = 4000
_CACHE_KIB = 16 * 1024


class File:
    """The file of a log, and the proof that its path still leads to it."""

    def __init__(self, path: str, busy_timeout_s: float) -> None:
        if sqlite3.sqlite_version_info < LEAST_VERSION:
            needed = ".".join(map(str, LEAST_VERSION))
            msg = f"SQLite {sqlite3.sqlite_version} is too old: a log needs {needed} or newer"
            raise failures.lasting(msg)
        if path in ("", ":memory:"):
            msg = "a SQLite log needs a file: name one, or open memory: for a log without"
            raise failures.lasting(msg)
        self.path = str(Path(path).absolute())
        self.busy_timeout_s = busy_timeout_s
        self.closed = False
        self._inode: tuple[int, int] | None = None

    def open(self, *, mode: str) -> sqlite3.Connection:
        """Open a connection, `mode` being ro, rw or rwc."""
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_CACHED,
        )
        try:
            connection.execute(f"pragma cache_size = -{_CACHE_KIB}")
            payloads.register(connection)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def remember(self) -> None:
        """Note which file the path leads to now."""
        self._inode = self._look()

    def check(self) -> None:
        """Refuse to go on with a file that was closed, or moved: its appends would be lost."""
        if self.closed:
            raise failures.lasting("the log is closed")
        if self._inode is not None and self._look() != self._inode:
            msg = f"{self.path} was moved, deleted or replaced while open: open the log again"
            raise failures.lasting(msg)

    def close(self) -> None:
        """Let no connection be used or opened again."""
        self.closed = True

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - on the way of every append
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Turn write-ahead logging on; SQLite does not wait when two processes do so at once."""
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.Error as error:
            if not failures.is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_BEGIN_PAUSE_S)
        else:
            break
    connection.execute("pragma busy_timeout = 0")  # `_begin` waits in its own way
    connection.execute("pragma synchronous = full")
    connection.execute(f"pragma journal_size_limit = {_JOURNAL_BYTES_MAX}")
    connection.execute(f"pragma wal_autocheckpoint = {_CHECKPOINT_PAGES}")


class Writer:
    """The one connection that writes, taken by one thread at a time."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the file's write lock for the block, and commit what it did unless it raised."""
        path = self._file.path
        with self._lock:
            connection = self._opened()
            try:
                with failures.translated(path):
                    self._begin(connection)
                    yield connection
            except BaseException as error:
                self._undo(connection, error)
                raise
            try:
                connection.execute("commit")
            except sqlite3.Error as error:
                self._undo(connection, error)
                raise failures.failure(error, path, at_commit=True) from error

    def connect(self, *, create: bool = False) -> sqlite3.Connection:
        """Open the connection, making the file if that is asked for."""
        with failures.translated(self._file.path):
            connection = self._file.open(mode="rwc" if create else "rw")
            try:
                _use_wal(connection, time.monotonic() + self._file.busy_timeout_s)
            except sqlite3.Error:
                connection.close()
                raise
        self._connection = connection
        return connection

    def _opened(self) -> sqlite3.Connection:
        self._file.check()
        return self._connection or self.connect()

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock, asking more often than SQLite's own pauses of up to 100 ms would."""
        deadline = time.monotonic() + self._file.busy_timeout_s
        while True:
            try:
                connection.execute("begin immediate")
            except sqlite3.Error as error:
                if not failures.is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_BEGIN_PAUSE_S * (0.5 + random()))  # noqa: S311 - only a pause
            else:
                return

    def _undo(self, connection: sqlite3.Connection, error: BaseException) -> None:
        cause = error.__cause__ if isinstance(error, BackendFailure) else error
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error as worse:
            cause = worse
        if cause is not None and failures.spoils_connection(cause):
            self._connection = None
            connection.close()

    def settings(self) -> tuple[str, int]:
        """Return the journal mode and the level of synchronisation of this connection."""
        with self._lock, failures.translated(self._file.path):
            connection = self._opened()
            (mode,) = connection.execute("pragma journal_mode").fetchone()
            (level,) = connection.execute("pragma synchronous").fetchone()
        return str(mode), int(level)

    def after_fork(self) -> None:
        """Forget the parent's connection: using or closing it here would harm the parent's."""
        _keep_for_ever(self._connection)
        self._lock = threading.Lock()
        self._connection = None

    def close(self) -> None:
        """Close the connection after the transaction that runs, if one does."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class Readers:
    """A bounded number of connections that can only read, each lent to one thread at a time."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._room = threading.BoundedSemaphore(self._size)
        self._idle: list[sqlite3.Connection] = []

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for the block."""
        if not self._room.acquire(timeout=self._file.busy_timeout_s):
            msg = f"all {self._size} readers of {self._file.path} are busy; try again"
            raise BackendFailure(msg)
        try:
            self._file.check()
            with failures.translated(self._file.path):
                connection = self._take()
                try:
                    yield connection
                except BaseException as error:
                    self._give_back(connection, spoiled=failures.spoils_connection(error))
                    raise
                self._give_back(connection)
        finally:
            self._room.release()

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._file.open(mode="ro")
            connection.execute("pragma query_only = on")
            return connection

    def _give_back(self, connection: sqlite3.Connection, *, spoiled: bool = False) -> None:
        if spoiled or self._file.closed:
            connection.close()
        else:
            self._idle.append(connection)

    def after_fork(self) -> None:
        """Forget the parent's connections."""
        for connection in self._idle:
            _keep_for_ever(connection)
        self._start_fresh()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()


def _keep_for_ever(connection: sqlite3.Connection | None) -> None:
    # SQLite must not even close in a child what its parent opened, and the end of the
    # interpreter would; a reference that nobody gives back prevents that.
    if connection is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

"""Open connections to a database file, and detect that it was moved or deleted."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from seriatim.store.port import LogClosed
from seriatim.store.sqlite import failures, payload_predicates

MIN_SQLITE_VERSION = (3, 38, 0)
_STATEMENTS_CACHED = 256
_CACHE_KIB = 16 * 1024


class DatabaseFile:
    """A database file; it remembers its inode to detect that the path leads to another file."""

    def __init__(self, path: str, busy_timeout_s: float) -> None:
        if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
            minimum = ".".join(map(str, MIN_SQLITE_VERSION))
            msg = (
                f"SQLite {sqlite3.sqlite_version} is too old, version {minimum} or newer is "
                "required: use a Python that is built with a newer SQLite"
            )
            raise failures.make_permanent_failure(msg)
        if path in ("", ":memory:"):
            msg = "a SQLite log requires a file: use sqlite:///path, or memory: for a log in memory"
            raise failures.make_permanent_failure(msg)
        self.path = str(Path(path).absolute())
        self.busy_timeout_s = busy_timeout_s
        self.closed = False
        self._inode: tuple[int, int] | None = None

    def open(self, *, mode: str) -> sqlite3.Connection:
        """Open a connection.

        Args:
            mode: "ro", "rw" or "rwc", as in SQLite URIs.

        Raises:
            sqlite3.Error: The file cannot be opened.

        """
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_timeout_s,
            isolation_level=None,  # transactions begin and end explicitly
            check_same_thread=False,  # the owner gives it to one thread at a time
            cached_statements=_STATEMENTS_CACHED,
        )
        try:
            connection.execute(f"pragma cache_size = -{_CACHE_KIB}")
            payload_predicates.register_function(connection)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def record_inode(self) -> None:
        """Remember the inode that the path leads to now."""
        self._inode = self._read_inode()

    def check_usable(self) -> None:
        """Check that the file is open and still at its path; otherwise appends would be lost.

        Raises:
            LogClosed: The file was closed.
            BackendFailure: The file was moved, deleted or replaced.

        """
        if self.closed:
            raise LogClosed
        if self._inode is not None and self._read_inode() != self._inode:
            msg = f"{self.path} was moved, deleted or replaced while open: open the log again"
            raise failures.make_permanent_failure(msg)

    def close(self) -> None:
        """Refuse all further use of the file."""
        self.closed = True

    def _read_inode(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)  # noqa: PTH116 - faster than Path, and on the path of every append
        except OSError:
            return None
        return status.st_dev, status.st_ino


POLL_S = 0.03  # how often the file is checked for appends of other processes


class HeadWatcher:
    """The last known head: own appends update it at once, those of other processes by polling."""

    def __init__(self, read_head: Callable[[], int]) -> None:
        self._read_head = read_head
        self._moved = threading.Condition()
        self._head = 0
        self._polled_at = 0.0
        self._closed = False

    def wait(self, position: int, timeout: float) -> None:
        """Block until the head has passed a position, the timeout expires or the log closes."""
        deadline = time.monotonic() + timeout
        while not self._closed:
            self._poll()
            with self._moved:
                remaining = deadline - time.monotonic()
                if self._head > position or remaining <= 0:
                    return
                self._moved.wait(min(remaining, POLL_S))

    def _poll(self) -> None:
        """Read the head from the file, at most once per half interval for all waiting threads."""
        # Without the lock: at worst two threads poll at once.
        now = time.monotonic()
        if now - self._polled_at < POLL_S / 2:
            return
        self._polled_at = now
        # Outside the lock, so that a slow read delays neither `notify` nor other waiting threads.
        head = self._read_head()
        with self._moved:
            self._head = max(self._head, head)  # `notify` may have reported a later one meanwhile

    def notify(self, head: int) -> None:
        """Update the head and wake the waiting threads."""
        with self._moved:
            self._head = max(self._head, head)
            self._moved.notify_all()

    def close(self) -> None:
        """Wake all waiting threads for good."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

"""Open connections to a database file, and detect that it was moved or deleted."""

from __future__ import annotations

import os
import sqlite3
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
            needed = ".".join(map(str, MIN_SQLITE_VERSION))
            msg = (
                f"SQLite {sqlite3.sqlite_version} is too old: version {needed} or newer is required"
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
        """Open a connection; `mode` is ro, rw or rwc, as in SQLite URIs."""
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
            found = os.stat(self.path)  # noqa: PTH116 - faster than Path, and on the path of every append
        except OSError:
            return None
        return found.st_dev, found.st_ino

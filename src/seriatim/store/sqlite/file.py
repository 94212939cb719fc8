"""The file of a log: opening connections to it, and noticing when it is gone."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from seriatim.store.port import Closed
from seriatim.store.sqlite import failures, payloads

LEAST_VERSION = (3, 38, 0)
_STATEMENTS_CACHED = 256
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
            raise Closed
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

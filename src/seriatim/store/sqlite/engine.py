"""A SQLite file as a place for read models; it is never the file of a log."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from seriatim.core.errors import InvalidArgument
from seriatim.core.fold import Owner
from seriatim.core.values import text_time, time_text
from seriatim.store.sqlite import forking
from seriatim.store.sqlite.failures import translated
from seriatim.store.sqlite.file import File

_TYPES = {
    "text": "text",
    "integer": "integer",
    "float": "real",
    "boolean": "integer",
    "time": "text",
    "json": "text",
}
_OWNERS = "(select value ->> 0 as tenant_id, value ->> 1 as key from json_each(:owners))"


class SqliteSession:
    """One transaction on the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement."""
        return self._connection.execute(sql, values or {}).fetchall()

    def put(
        self, into: str, kinds: Mapping[str, str], columns: Sequence[list[Any]], then: str
    ) -> None:
        """Insert rows, merging where their keys are known."""
        names = ", ".join(f'"{name}"' for name in kinds)
        marks = ", ".join("?" * len(kinds))
        stored = [
            [None if value is None else time_text(value) for value in column]
            if kind == "time"
            else column
            for kind, column in zip(kinds.values(), columns, strict=True)
        ]
        self._connection.executemany(
            f"insert into {into} as t ({names}) values ({marks}) {then}", zip(*stored, strict=True)
        )

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows as they are read."""
        yield from self._connection.execute(sql, values or {})

    def among(self, sql: str, owners: Sequence[Owner]) -> list[tuple[Any, ...]]:
        """Run a statement on these keys."""
        return self.run(sql.replace("{owners}", _OWNERS), {"owners": json.dumps(owners)})


class SqliteEngine:
    """Read models in a SQLite file."""

    at = ""
    now = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
    lock = ""
    share = ""
    strict = "strict"  # a sum beyond 64 bits is refused, not turned into a float
    loads: Mapping[str, Callable[[Any], Any]] = {
        "time": text_time,
        "boolean": bool,
        "float": float,
    }
    # One writer at a time, and snapshots that hold tables, need no locks.
    beginning: Sequence[str] = ()
    switching: Sequence[str] = ()
    looking: Sequence[str] = ()

    def __init__(self, path: str, *, busy_timeout_s: float = 30.0, create: bool = True) -> None:
        self._file = File(path, busy_timeout_s)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with translated(self._file.path):
            self._open("rwc" if create else "rw")
        self._file.remember()
        forking.watch(self)

    def _open(self, mode: str = "rw") -> sqlite3.Connection:
        self._connection = self._file.open(mode=mode)
        # A lost last batch is folded again: rows and cursor are lost together.
        self._connection.execute("pragma synchronous = normal")
        return self._connection

    def ready(self) -> bool:
        """Look for the last of our own tables."""
        with self.transaction(write=False) as session:
            return bool(session.run("pragma table_info(seriatim_failures)"))

    def prepare(self, statements: Sequence[str]) -> None:
        """Make our own tables."""
        with self._lock, translated(self._file.path):
            (self._connection or self._open()).execute("pragma journal_mode = wal")
        with self.transaction() as session:
            if session.run("pragma table_info(seriatim_schema)"):
                msg = f"{self._file.path} is a log: a read model needs a file of its own"
                raise InvalidArgument(msg, details={"argument": "target"})
            for statement in statements:
                session.run(statement)

    def column(self, kind: str) -> str:
        """Return the type of a column."""
        return _TYPES[kind]

    def shown(self, column: str, kind: str) -> str:  # noqa: ARG002 - SQLite shows what it stores
        """Return how a column is selected."""
        return column

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[SqliteSession]:
        """Do all or nothing."""
        with self._lock, translated(self._file.path):
            self._file.check()
            connection = self._connection or self._open()
            connection.execute("begin immediate" if write else "begin")
            try:
                yield SqliteSession(connection)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # -- forks

    def pause(self, seconds: float) -> bool:
        """Have no connection until `resume`; False if it is in use."""
        if not self._lock.acquire(timeout=seconds):
            return False
        if self._connection is not None:
            if self._connection.in_transaction:  # of the thread that forks
                self._lock.release()
                return False
            self._connection.close()
            self._connection = None
        return True

    def resume(self) -> None:
        """Open a connection when it is needed."""
        self._lock.release()

    def after_fork(self) -> None:
        """Begin anew in a child process."""
        self._lock = threading.RLock()
        forking.abandon(self._connection)
        self._connection = None

"""A SQLite file as a place for read models; it is never the file of a log."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from seriatim.core.fold import Owner
from seriatim.core.values import text_time, time_text
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
        self, into: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]], then: str
    ) -> None:
        """Insert rows, merging where their keys are known."""
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f"insert into {into} as t ({names}) values ({marks}) {then}", rows
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

    def __init__(self, path: str, *, busy_timeout_s: float = 30.0, create: bool = True) -> None:
        self._file = File(path, busy_timeout_s)
        self._lock = threading.RLock()
        with translated(self._file.path):
            self._connection = self._file.open(mode="rwc" if create else "rw")

    def prepare(self, statements: Sequence[str]) -> None:
        """Make our own tables."""
        with self._lock, translated(self._file.path):
            self._connection.execute("pragma journal_mode = wal")
            # A lost last batch is folded again: rows and cursor are lost together.
            self._connection.execute("pragma synchronous = normal")
        with self.transaction() as session:
            for statement in statements:
                session.run(statement)

    def column(self, kind: str) -> str:
        """Return the type of a column."""
        return _TYPES[kind]

    def shown(self, column: str, kind: str) -> str:  # noqa: ARG002 - SQLite shows what it stores
        """Return how a column is selected."""
        return column

    def stored(self, kind: str, value: Any) -> Any:
        """Return a value as SQLite stores it."""
        return time_text(value) if kind == "time" and value is not None else value

    def loaded(self, kind: str, value: Any) -> Any:
        """Return a stored value as it was."""
        if kind == "time":
            return text_time(value)
        if kind == "boolean":
            return bool(value)
        return float(value) if kind == "float" else value

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[SqliteSession]:
        """Do all or nothing."""
        with self._lock, translated(self._file.path):
            self._connection.execute("begin immediate" if write else "begin")
            try:
                yield SqliteSession(self._connection)
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

"""A SQLite file as a place for tables of ours; it is never the file of a log."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from seriatim.core.errors import InvalidArgument
from seriatim.core.values import text_time, time_text
from seriatim.store.engine import CLOSED, ENDED_EARLY, Purpose, causes, misfit
from seriatim.store.sqlite import forking
from seriatim.store.sqlite.failures import code_of, is_lacking, is_outage, translated
from seriatim.store.sqlite.file import File

_TYPES = {
    "text": "text",
    "integer": "integer",
    "float": "real",
    "boolean": "integer",
    "time": "text",
    "json": "text",
}


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        _ = connection.in_transaction
    except sqlite3.ProgrammingError:
        return True
    return False


def _refuse_ending(action: int, *_: str | None) -> int:
    """Refuse statements that begin or end a transaction; savepoints are another action."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SqliteSession:
    """One transaction on the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's connection, in the transaction."""
        return self._connection

    def outage(self, error: BaseException) -> Exception | None:
        """Return the error that says the file cannot be used now."""
        # While the write lock is held, an error such as "locked" is that of another file.
        held = not _is_closed(self._connection) and self._connection.in_transaction
        drivers = (one for one in causes(error) if isinstance(one, sqlite3.Error))
        return next(filter(is_lacking if held else is_outage, drivers), None)

    def defect(self) -> str | None:
        """Say whether the transaction was ended by other hands."""
        if _is_closed(self._connection):
            return CLOSED
        return None if self._connection.in_transaction else ENDED_EARLY

    def refusal(self, error: BaseException) -> str | None:
        """Say whether an effect tried to end the transaction, or closed the connection."""
        if _is_closed(self._connection):
            return CLOSED
        drivers = (one for one in causes(error) if isinstance(one, sqlite3.Error))
        refused = any(code_of(one) == sqlite3.SQLITE_AUTH for one in drivers)
        return ENDED_EARLY if refused else None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Refuse commit and rollback: `with connection` and `executescript` would commit."""
        self._connection.set_authorizer(_refuse_ending)
        try:
            yield
        finally:
            with suppress(sqlite3.ProgrammingError):  # the connection was closed
                self._connection.set_authorizer(None)

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

    def given(
        self,
        sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on rows that travel as JSON."""
        rows = list(zip(*columns, strict=True))
        return self._with(sql, "given", tuple(kinds), rows, values)

    def given_then(  # noqa: PLR0913 - two statements and what they are about
        self,
        sql: str,
        then: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        returned: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run two statements."""
        found = self.given(sql, kinds, columns, values)
        self._with(then, "rows", returned, found, values)
        return found

    def _with(
        self,
        sql: str,
        hole: str,
        names: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        values: Mapping[str, Any] | None,
    ) -> list[tuple[Any, ...]]:
        columns = ", ".join(f"value ->> {index} as {name}" for index, name in enumerate(names))
        among = sql.replace(f"{{{hole}}}", f"(select {columns} from json_each(:{hole}))")
        return self.run(among, {**(values or {}), hole: json.dumps(rows)})


class SqliteEngine:
    """Tables of ours in a SQLite file."""

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

    def __init__(
        self, path: str, purpose: Purpose, *, busy_timeout_s: float = 30.0, create: bool = True
    ) -> None:
        self._purpose = purpose
        self._file = File(path, busy_timeout_s)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with translated(self._file.path):
            self._open("rwc" if create else "rw")
        self._file.remember()
        forking.watch(self)

    def _open(self, mode: str = "rw") -> sqlite3.Connection:
        self._connection = self._file.open(mode=mode)
        level = "full" if self._purpose.durable else "normal"
        self._connection.execute(f"pragma synchronous = {level}")
        return self._connection

    def another(self) -> SqliteEngine:
        """Return another connection to the same file."""
        return SqliteEngine(self._file.path, self._purpose)

    def ready(self, table: str | None = None) -> bool:
        """Look for the last of our own tables, or for another one."""
        with self.transaction(write=False) as session:
            return bool(session.run(f"pragma table_info({table or self._purpose.last_table})"))

    def prepare(self, statements: Sequence[str]) -> None:
        """Make our own tables."""
        with self._lock, translated(self._file.path):
            (self._connection or self._open()).execute("pragma journal_mode = wal")
        with self.transaction() as session:
            if session.run("pragma table_info(seriatim_schema)"):
                msg = f"{self._file.path} is a log: {self._purpose.what} needs a file of its own"
                raise InvalidArgument(msg, details={"argument": self._purpose.option.lstrip("-")})
            for statement in statements:
                session.run(statement)

    def column(self, kind: str) -> str:
        """Return the type of a column."""
        return _TYPES[kind]

    def shown(self, column: str, kind: str) -> str:  # noqa: ARG002 - SQLite shows what it stores
        """Return how a column is selected."""
        return column

    def holding(self, table: str, mode: str, patience: str | None = None) -> Sequence[str]:  # noqa: ARG002
        """Return nothing: one writer at a time, and snapshots that hold tables, need no locks."""
        return ()

    def column_names(self, session: SqliteSession, table: str) -> Sequence[str]:
        """Return the columns of a table, none if no table of this name is there."""
        return [row[1] for row in session.run(f'pragma table_xinfo("{table}")')]

    def additions(
        self,
        session: SqliteSession,
        table: str,
        columns: Collection[str],  # noqa: ARG002 - SQLite says itself what does not fit
    ) -> Sequence[str]:
        """Return the statements that give a new table what users added to this one."""
        found = session.run(
            "select sql from sqlite_master "
            "where tbl_name = :name and type in ('index', 'trigger') and sql is not null",
            {"name": table},
        )
        return [row[0] for row in found]

    def rename(self, session: SqliteSession, old: str, new: str, added: Sequence[str]) -> None:
        """Give a table the name of one that was dropped, and what users had added to that."""
        # Otherwise SQLite refuses while a view names the table that was dropped.
        session.run("pragma legacy_alter_table = on")
        try:
            session.run(f'alter table "{old}" rename to "{new}"')
        finally:
            session.run("pragma legacy_alter_table = off")
        for statement in added:
            try:
                session.connection.execute(statement)
            except sqlite3.Error as error:
                raise misfit(new, statement, str(error)) from error

    @contextmanager
    def at_once(self) -> Iterator[SqliteSession]:
        """Run statements as one transaction: nothing travels far here."""
        with self.transaction() as session:
            yield session

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
                if _is_closed(connection):  # by other hands
                    self._connection = None
                elif connection.in_transaction:
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

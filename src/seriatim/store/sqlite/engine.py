"""The SQLite engine: Seriatim's own tables in a file, which is never the file of a log."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from seriatim.core.column_types import format_time, parse_time
from seriatim.core.errors import InvalidArgument
from seriatim.store.engine import (
    CONNECTION_CLOSED,
    TRANSACTION_ENDED,
    EnginePurpose,
    iterate_causes,
    make_replace_conflict,
)
from seriatim.store.sqlite import fork_safety
from seriatim.store.sqlite.connection import DatabaseFile
from seriatim.store.sqlite.failures import (
    get_error_code,
    is_outage,
    is_resource_failure,
    translate_errors,
)

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


def _deny_transaction_control(action: int, *_: str | None) -> int:
    """Deny statements that begin or end a transaction; savepoints are another action."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SqliteSession:
    """One transaction in SQLite."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's connection, in the transaction."""
        return self._connection

    def find_outage(self, error: BaseException) -> Exception | None:
        """Return the error in the cause chain that shows an outage, else None."""
        # While this transaction holds the write lock, "locked" is an error of another file.
        has_lock = not _is_closed(self._connection) and self._connection.in_transaction
        driver_errors = (
            cause for cause in iterate_causes(error) if isinstance(cause, sqlite3.Error)
        )
        return next(filter(is_resource_failure if has_lock else is_outage, driver_errors), None)

    def find_defect(self) -> str | None:
        """Return a message if user code ended the transaction."""
        if _is_closed(self._connection):
            return CONNECTION_CLOSED
        return None if self._connection.in_transaction else TRANSACTION_ENDED

    def explain_refusal(self, error: BaseException) -> str | None:
        """Return a message if user code tried to end the transaction or closed the connection."""
        if _is_closed(self._connection):
            return CONNECTION_CLOSED
        driver_errors = (
            cause for cause in iterate_causes(error) if isinstance(cause, sqlite3.Error)
        )
        denied = any(
            get_error_code(driver_error) == sqlite3.SQLITE_AUTH for driver_error in driver_errors
        )
        return TRANSACTION_ENDED if denied else None

    @contextmanager
    def forbid_commit(self) -> Iterator[None]:
        """Deny commit and rollback in the block: `with connection` and `executescript` commit."""
        self._connection.set_authorizer(_deny_transaction_control)
        try:
            yield
        finally:
            with suppress(sqlite3.ProgrammingError):  # the connection was closed
                self._connection.set_authorizer(None)

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        return self._connection.execute(sql, values or {}).fetchall()

    def execute(self, sql: str, values: Mapping[str, Any]) -> None:
        """Execute a statement that returns no rows."""
        self._connection.execute(sql, values)

    def upsert(
        self,
        table: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        on_conflict: str,
    ) -> None:
        """Insert rows, or merge them into existing ones."""
        names = ", ".join(f'"{name}"' for name in kinds)
        placeholders = ", ".join("?" * len(kinds))
        stored = [
            [None if value is None else format_time(value) for value in column]
            if kind == "time"
            else column
            for kind, column in zip(kinds.values(), columns, strict=True)
        ]
        self._connection.executemany(
            f"insert into {table} as t ({names}) values ({placeholders}) {on_conflict}",
            zip(*stored, strict=True),
        )

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows as they are read."""
        yield from self._connection.execute(sql, values or {})

    def run_with_rows(
        self,
        sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on parameter rows, which are passed as JSON."""
        rows = list(zip(*columns, strict=True))
        return self._run_with_table(sql, "given", tuple(kinds), rows, values)

    def run_with_rows_then(
        self,
        sql: str,
        second_sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        returned: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run both statements, one after the other."""
        rows = self.run_with_rows(sql, kinds, columns, values)
        self._run_with_table(second_sql, "rows", returned, rows, values)
        return rows

    def _run_with_table(
        self,
        sql: str,
        placeholder: str,
        names: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        values: Mapping[str, Any] | None,
    ) -> list[tuple[Any, ...]]:
        columns = ", ".join(f"value ->> {index} as {name}" for index, name in enumerate(names))
        table = f"(select {columns} from json_each(:{placeholder}))"
        statement = sql.replace(f"{{{placeholder}}}", table)
        return self.run(statement, {**(values or {}), placeholder: json.dumps(rows)})


class SqliteEngine:
    """Seriatim's own tables in a SQLite file.

    It has one connection, which `_lock` gives to one thread at a time.
    """

    schema_prefix = ""
    now_sql = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
    lock_clause = ""
    share_clause = ""
    table_options = "strict"  # a sum beyond 64 bits is refused, not turned into a float
    decoders: Mapping[str, Callable[[Any], Any]] = {
        "time": parse_time,
        "boolean": bool,
        "float": float,
    }

    def __init__(
        self,
        path: str,
        purpose: EnginePurpose,
        *,
        busy_timeout_s: float = 30.0,
        create: bool = True,
    ) -> None:
        self._purpose = purpose
        self._file = DatabaseFile(path, busy_timeout_s)
        # One connection for all threads; reentrant, because transactions call single statements.
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with translate_errors(self._file.path):
            self._open("rwc" if create else "rw")
        self._file.record_inode()
        fork_safety.register_holder(self)

    def _open(self, mode: str = "rw") -> sqlite3.Connection:
        self._connection = self._file.open(mode=mode)
        level = "full" if self._purpose.durable else "normal"
        self._connection.execute(f"pragma synchronous = {level}")
        return self._connection

    def open_another(self) -> SqliteEngine:
        """Return an engine with another connection to the same file."""
        return SqliteEngine(self._file.path, self._purpose)

    def is_ready(self, table: str | None = None) -> bool:
        """Return True if the last of Seriatim's own tables, or `table`, exists."""
        with self.transaction(write=False) as session:
            return bool(session.run(f"pragma table_info({table or self._purpose.last_table})"))

    def create_tables(self, statements: Sequence[str]) -> None:
        """Create the tables if they do not exist."""
        with self._lock, translate_errors(self._file.path):
            (self._connection or self._open()).execute("pragma journal_mode = wal")
        with self.transaction() as session:
            if session.run("pragma table_info(seriatim_schema)"):
                msg = f"{self._file.path} is a log: use a separate file for {self._purpose.label}"
                raise InvalidArgument(
                    msg, details={"argument": self._purpose.target_option.lstrip("-")}
                )
            for statement in statements:
                session.run(statement)

    def get_column_type(self, kind: str) -> str:
        """Return the SQL type of a column."""
        return _TYPES[kind]

    def build_column_expression(self, column: str, kind: str) -> str:  # noqa: ARG002 - SQLite returns values as stored
        """Return the column itself."""
        return column

    def build_lock_statements(
        self,
        table: str,  # noqa: ARG002 - SQLite locks no single table
        mode: str,  # noqa: ARG002
        lock_timeout: str | None = None,  # noqa: ARG002
    ) -> Sequence[str]:
        """Return nothing: SQLite has one writer at a time, and snapshots include the tables."""
        return ()

    def list_columns(self, session: SqliteSession, table: str) -> Sequence[str]:
        """Return the column names of a table, none if the table does not exist."""
        return [row[1] for row in session.run(f'pragma table_xinfo("{table}")')]

    def find_customizations(
        self,
        session: SqliteSession,
        table: str,
        columns: Collection[str],  # noqa: ARG002 - SQLite reports itself what does not fit
    ) -> Sequence[str]:
        """Return the statements that repeat the users' indexes and triggers on a new table."""
        rows = session.run(
            "select sql from sqlite_master "
            "where tbl_name = :name and type in ('index', 'trigger') and sql is not null",
            {"name": table},
        )
        return [row[0] for row in rows]

    def replace_table(
        self, session: SqliteSession, old: str, new: str, customizations: Sequence[str]
    ) -> None:
        """Rename a table to the name of a dropped one and apply the customizations of that one."""
        # Without this pragma the rename fails while a view refers to the dropped table.
        session.run("pragma legacy_alter_table = on")
        try:
            session.run(f'alter table "{old}" rename to "{new}"')
        finally:
            session.run("pragma legacy_alter_table = off")
        for statement in customizations:
            try:
                session.connection.execute(statement)
            except sqlite3.Error as error:
                raise make_replace_conflict(new, statement, str(error)) from error

    @contextmanager
    def autocommit(self, *, write: bool = True) -> Iterator[SqliteSession]:
        """Run statements in one transaction: there are no round trips to save."""
        with self.transaction(write=write) as session:
            yield session

    @contextmanager
    def transaction(
        self,
        *,
        write: bool = True,
        pipelined: bool = False,  # noqa: ARG002 - there are no round trips to save
    ) -> Iterator[SqliteSession]:
        """Run the block in a transaction."""
        with self._lock, translate_errors(self._file.path):
            self._file.check_usable()
            connection = self._connection or self._open()
            # A write takes the lock at once: a transaction that first reads fails if another
            # process writes in between.
            connection.execute("begin immediate" if write else "begin")
            try:
                yield SqliteSession(connection)
                connection.execute("commit")
            except BaseException:
                if _is_closed(connection):  # by user code
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
        """Close the connection until `resume`; return False if it is in use."""
        if not self._lock.acquire(timeout=seconds):
            return False
        if self._connection is not None:
            if self._connection.in_transaction:  # the lock is reentrant: this thread forks
                self._lock.release()
                return False
            self._connection.close()
            self._connection = None
        return True

    def resume(self) -> None:
        """End a pause; the connection is opened again when it is needed."""
        self._lock.release()

    def after_fork(self) -> None:
        """Reset the state in a forked child."""
        self._lock = threading.RLock()
        fork_safety.abandon_connection(self._connection)
        self._connection = None

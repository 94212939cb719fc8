"""The Postgres engine: Seriatim's own tables in a schema, outside a log."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC
from itertools import count
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, Conflict, SeriatimError
from seriatim.store.engine import (
    CONNECTION_CLOSED,
    TRANSACTION_ABORTED,
    TRANSACTION_ENDED,
    EnginePurpose,
    EngineSession,
    iterate_causes,
    load_engine_statements,
    make_replace_conflict,
)
from seriatim.store.postgres.connection import (
    READ_COMMITTED,
    Connection,
    LogAddress,
    bounded_transaction,
    connect,
    is_dead,
)
from seriatim.store.postgres.failures import LOCK_BUSY, translate_error


def find_table_customizations(
    session: EngineSession, sql: Mapping[str, str], table: str, columns: Collection[str]
) -> list[str]:
    """Return the statements that repeat the customizations of a table on a new one.

    Args:
        session: The transaction.
        sql: The statements that query the catalog.
        table: The qualified name of the existing and of the new table.
        columns: The columns of the new table.

    Raises:
        Conflict: The table has something that cannot be carried over, such as a trigger.

    """
    values = {"name": table}
    obstacles = [" ".join(row) for row in session.run(sql["list_obstacles"], values)]
    if obstacles:
        msg = (
            f"cannot replace table {table}, because {', '.join(obstacles[:5])} would be lost: drop "
            "them, rebuild, and create them again"
        )
        raise Conflict(msg, details={"table": table, "found": obstacles})
    statements = [
        f"alter table {table} {row[0]}" for row in session.run(sql["list_settings"], values)
    ]
    statements.append(_REVOKE.replace("{table}", table.replace("'", "''")))
    statements += [
        _build_grant(table, privilege, column, grantee, grantable)
        for privilege, column, grantee, grantable in session.run(sql["list_grants"], values)
        if column is None or column in columns
    ]
    statements += [
        _build_comment(table, column, literal)
        for column, literal in session.run(sql["list_comments"], values)
        if column is None or column in columns
    ]
    for name in ("list_indexes", "list_statistics"):
        statements += [row[0] for row in session.run(sql[name], values)]
    # Last: a replica identity needs its index, and a new owner may forbid this role all changes.
    final_settings = session.run(sql["list_final_settings"], values)
    return statements + [f"alter table {table} {row[0]}" for row in final_settings]


# Default privileges may grant more on the new table than users left on the old one.
_REVOKE = """
do $$
declare
    v_grantee text;
begin
    for v_grantee in
        select distinct case when a.grantee = 0 then 'public'
                             else quote_ident(pg_get_userbyid(a.grantee)) end
        from pg_class c cross join lateral aclexplode(c.relacl) a
        where c.oid = '{table}'::regclass and a.grantee <> c.relowner
    loop
        execute format('revoke all on table %s from %s', '{table}', v_grantee);
    end loop;
end $$"""


def _build_grant(
    table: str, privilege: str, column: str | None, grantee: str, grantable: bool
) -> str:
    part = "" if column is None else f' ("{column}")'
    option = " with grant option" if grantable else ""
    return f"grant {privilege}{part} on table {table} to {grantee}{option}"


def _build_comment(table: str, column: str | None, literal: str) -> str:
    target = f"table {table}" if column is None else f'column {table}."{column}"'
    return f"comment on {target} is {literal}"


_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
# In an array literal a backslash quotes the next character: JSON's `\n` would become an n.
_ESCAPE = re.compile(r'\\[^"\\]')
_CHUNK = 10_000
_TYPES = {
    "text": "text",
    "integer": "bigint",
    "float": "double precision",
    "boolean": "boolean",
    "time": "timestamptz",
    "json": "json",
}
# Lost connections (as poolers report them), lack of resources, shutdowns, failing disks.
_OUTAGES = ("08", "53", "57P01", "57P02", "57P03", "58000", "58030")
# States of idle_in_transaction_session_timeout and transaction_timeout.
_ENDED_SESSION = ("25P03", "25P04")
_PREPARE_THRESHOLD = 5  # the driver's default: a statement that is repeated is planned once
_SETUP_LOCK = 7_306_093_113_441_296_996
_CURES = {
    "42501": (
        "the role lacks privileges on {label}: let the owner grant usage and create on the schema "
        "and privileges on its tables, or select another database with {target_option}"
    ),
    "42P01": "a table of {label} is missing: {recreate_hint}",
    "42P07": "a table of that name exists already: drop it, or choose another name",
    "2BP01": "an object depends on a table of {label}: drop it, rebuild, and create it again",
    "22003": "a sum exceeds a 64-bit integer",
    "55P03": "a long transaction reads {label}: end it, then try again",
}


class PostgresSession:
    """One transaction in Postgres."""

    def __init__(self, connection: Connection, pipeline: psycopg.Pipeline | None = None) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._cursor_numbers = count()

    @property
    def connection(self) -> Connection:
        """The driver's connection, in the transaction."""
        return self._connection

    def find_outage(self, error: BaseException) -> Exception | None:
        """Return the error in the cause chain that shows an outage, else None."""
        causes = iterate_causes(error)
        driver_errors = (cause for cause in causes if isinstance(cause, psycopg.Error))
        return next(filter(self._is_outage, driver_errors), None)

    def _is_outage(self, error: psycopg.Error) -> bool:
        if self._connection.closed:
            # If user code closed the connection, or the server ended a transaction that took too
            # long, the next attempt would end in the same way: that is no outage.
            return self._connection.broken and error.sqlstate not in _ENDED_SESSION
        intact = self._connection.info.transaction_status == TransactionStatus.INTRANS
        return not intact and (error.sqlstate or "").startswith(_OUTAGES)

    def find_defect(self) -> str | None:
        """Return a message if user code aborted or ended the transaction."""
        if self._closed:
            return CONNECTION_CLOSED
        match self._connection.info.transaction_status:
            case TransactionStatus.INERROR:
                return TRANSACTION_ABORTED
            case TransactionStatus.IDLE:
                return TRANSACTION_ENDED
            case _:
                return None

    @property
    def _closed(self) -> bool:
        """Whether user code closed the connection, and not the server."""
        return self._connection.closed and not self._connection.broken

    def explain_refusal(self, error: BaseException) -> str | None:  # noqa: ARG002 - psycopg reports commits itself
        """Return a message if user code closed the connection."""
        return CONNECTION_CLOSED if self._closed else None

    def forbid_commit(self) -> AbstractContextManager[None]:
        """Do nothing: psycopg itself refuses commit and rollback inside a transaction block."""
        return nullcontext()

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        cursor = self._connection.execute(_translate_parameters(sql), values or {})
        if self._pipeline is not None:
            self._pipeline.sync()
        return cursor.fetchall() if cursor.description else []

    def execute(self, sql: str, values: Mapping[str, Any]) -> None:
        """Execute a statement that returns no rows; in a pipeline it is sent with later ones."""
        self._connection.execute(_translate_parameters(sql), values)

    def upsert(
        self,
        table: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        on_conflict: str,
    ) -> None:
        """Insert rows, or merge them into existing ones, in statements of thousands of rows."""
        names = ", ".join(f'"{name}"' for name in kinds)
        arrays = ", ".join(f"%s::{_TYPES[kind]}[]" for kind in kinds.values())
        sql = f"insert into {table} as t ({names}) select * from unnest({arrays}) {on_conflict}"
        for start in range(0, len(columns[0]), _CHUNK):
            values = [_encode_array(column[start : start + _CHUNK]) for column in columns]
            self._connection.execute(sql.encode(), values)

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows through a server-side cursor."""
        with self._connection.cursor(f"seriatim_{next(self._cursor_numbers)}") as cursor:
            cursor.execute(_translate_parameters(sql), values or {})
            while rows := cursor.fetchmany(_CHUNK):
                yield from rows

    def run_with_rows(
        self,
        sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on parameter rows, which are sent as arrays."""
        arrays = ", ".join(f":row_{name}::{_TYPES[kind]}[]" for name, kind in kinds.items())
        rows = f"(select * from unnest({arrays}) as u ({', '.join(kinds)}))"
        parameters = {
            f"row_{name}": _encode_array(column)
            for name, column in zip(kinds, columns, strict=True)
        }
        return self.run(sql.replace("{given}", rows), {**(values or {}), **parameters})

    def run_with_rows_then(
        self,
        sql: str,
        second_sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        returned: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run both statements as one, with common table expressions."""
        names = ", ".join(returned)
        second_sql = second_sql.replace("{rows}", "first_rows")
        both = (
            f"with first_rows ({names}) as ({sql}), "
            f"second_rows as ({second_sql}) select * from first_rows"
        )
        return self.run_with_rows(both, kinds, columns, values)


def _encode_array(values: list[Any]) -> str | list[Any]:
    """Encode an array literal from JSON, which is far faster than the driver.

    A list with escapes that differ between JSON and Postgres is left to the driver.
    """
    text = msgspec.json.encode(values).decode()
    return values if _ESCAPE.search(text) else f"{{{text[1:-1]}}}"


def _translate_error(
    error: psycopg.Error, purpose: EnginePurpose, *, sent: bool = False
) -> SeriatimError:
    """Return the Seriatim error for a driver error, in the terms of the engine's purpose."""
    translated = translate_error(error, f"using {purpose.label}", sent=sent)
    if error.sqlstate in _CURES:
        cure = _CURES[error.sqlstate].format(
            label=purpose.label,
            target_option=purpose.target_option,
            recreate_hint=purpose.recreate_hint,
        )
        translated.message = f"Postgres failed while using {purpose.label}: {cure}"
        translated.retryable = error.sqlstate == LOCK_BUSY
    return type(translated)(
        translated.message, details=translated.details, retryable=translated.retryable
    )


def _translate_parameters(sql: str) -> bytes:
    return _PARAMETER.sub(r"%(\1)s", sql).encode()


class PostgresEngine:
    """Seriatim's own tables in a schema of a Postgres database.

    It has one connection, which `_lock` gives to one thread at a time.
    """

    now_sql = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    lock_clause = "for update"
    share_clause = "for share"
    table_options = ""
    decoders: Mapping[str, Callable[[Any], Any]] = {"time": lambda value: value.replace(tzinfo=UTC)}

    def __init__(self, address: LogAddress, purpose: EnginePurpose) -> None:
        self._address = address
        self._purpose = purpose
        self.schema_prefix = f'"{address.schema}".'
        self._open()
        self._closed = False

    def _open(self) -> None:
        # One connection for all threads; reentrant, because transactions call single statements.
        self._lock = threading.RLock()
        self._connect()
        self._pid = os.getpid()

    def _connect(self) -> None:
        self._connection = connect(self._address)
        try:
            row = self._connection.execute(
                "select current_setting('default_transaction_isolation'), pg_backend_pid()"
            ).fetchone()
        except psycopg.Error as error:
            raise _translate_error(error, self._purpose) from error
        isolation, server_pid = row or ("", 0)
        # Autocommit statements would not run at READ COMMITTED.
        self._needs_transaction = isolation != READ_COMMITTED
        # A pooler answers with a process id of its own, and may lose prepared statements.
        if server_pid == self._connection.pgconn.backend_pid:
            self._connection.prepare_threshold = _PREPARE_THRESHOLD

    def open_another(self) -> PostgresEngine:
        """Return an engine with another connection to the same schema."""
        return PostgresEngine(self._address, self._purpose)

    def is_ready(self, table: str | None = None) -> bool:
        """Return True if the last of Seriatim's own tables, or `table`, exists."""
        name = f"{self.schema_prefix}{table or self._purpose.last_table}"
        with self.autocommit() as session:
            [(table_oid,)] = session.run("select to_regclass(:table)", {"table": name})
        return table_oid is not None

    def create_tables(self, statements: Sequence[str]) -> None:
        """Create the schema and the tables if they do not exist."""
        with self._use_connection() as connection, bounded_transaction(connection, Settings()):
            session = PostgresSession(connection)
            # CREATE … IF NOT EXISTS of two processes can still collide in the catalog.
            session.run("select pg_advisory_xact_lock(:key)", {"key": _SETUP_LOCK})
            values = {"name": self.schema_prefix[:-1]}
            [(schema_oid,)] = session.run("select to_regnamespace(:name)", values)
            if schema_oid is None:  # creating a schema requires a privilege on the database
                session.run(f"create schema {self.schema_prefix[:-1]}")
            for statement in statements:
                session.run(statement)

    def build_lock_statements(
        self, table: str, mode: str, lock_timeout: str | None = None
    ) -> Sequence[str]:
        """Return the statements that lock a table, with a timeout if `lock_timeout` is given."""
        timeout = [] if lock_timeout is None else [f"set local lock_timeout = '{lock_timeout}'"]
        return [*timeout, f"lock table {self.schema_prefix}{table} in {mode} mode"]

    def get_column_type(self, kind: str) -> str:
        """Return the SQL type of a column."""
        return f'{_TYPES[kind]} collate "C"' if kind == "text" else _TYPES[kind]

    def build_column_expression(self, column: str, kind: str) -> str:
        """Return the expression that selects a column: JSON as stored, times in UTC."""
        if kind == "time":
            return f"{column} at time zone 'UTC'"
        return f"{column}::text" if kind == "json" else column

    def list_columns(self, session: PostgresSession, table: str) -> Sequence[str]:
        """Return the column names of a table, none if the table does not exist."""
        rows = session.run(
            "select attname from pg_attribute where attrelid = to_regclass(:name) "
            "and attnum > 0 and not attisdropped order by attnum",
            {"name": f'{self.schema_prefix}"{table}"'},
        )
        return [row[0] for row in rows]

    def find_customizations(
        self, session: PostgresSession, table: str, columns: Collection[str]
    ) -> Sequence[str]:
        """Return the statements that repeat the users' customizations on a new table."""
        sql = load_engine_statements("seriatim.store.postgres", self, "customizations.sql")
        return find_table_customizations(session, sql, f'{self.schema_prefix}"{table}"', columns)

    def replace_table(
        self, session: PostgresSession, old: str, new: str, customizations: Sequence[str]
    ) -> None:
        """Rename a table to the name of a dropped one and apply the customizations of that one."""
        session.run(f'alter table {self.schema_prefix}"{old}" rename to "{new}"')
        for statement in customizations:
            try:
                session.connection.execute(statement.encode())
            except (psycopg.errors.UndefinedColumn, psycopg.errors.UniqueViolation) as error:
                raise make_replace_conflict(
                    new, statement, str(error.diag.message_primary)
                ) from error

    @contextmanager
    def transaction(
        self, *, write: bool = True, pipelined: bool = False
    ) -> Iterator[PostgresSession]:
        """Run the block in a transaction; a nested one is a savepoint of the outer one."""
        with self._use_connection() as connection:
            outermost = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            sent = False
            try:
                with (
                    connection.pipeline() if pipelined else nullcontext() as pipeline,
                    connection.transaction(),
                ):
                    if not write:
                        connection.execute(
                            "set transaction isolation level repeatable read read only"
                        )
                    yield PostgresSession(connection, pipeline)
                    sent = outermost and write  # from here on COMMIT may have been applied
            except psycopg.Error as error:
                raise _translate_error(error, self._purpose, sent=sent) from error

    @contextmanager
    def autocommit(self, *, write: bool = True) -> Iterator[PostgresSession]:
        """Run one statement as its own transaction, at READ COMMITTED."""
        if self._needs_transaction:
            with self.transaction(write=write) as session:
                yield session
            return
        with self._use_connection() as connection:
            idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            sent = idle and write
            try:
                yield PostgresSession(connection)
            except psycopg.Error as error:
                raise _translate_error(error, self._purpose, sent=sent) from error

    @contextmanager
    def _use_connection(self) -> Iterator[Connection]:
        if self._pid != os.getpid():
            # In a forked child the lock may be held by a thread of the parent. psycopg does not
            # close connections that another process opened.
            self._open()
        with self._lock:
            try:
                yield self._get_live_connection()
            except psycopg.Error as error:
                raise _translate_error(error, self._purpose) from error

    def _get_live_connection(self) -> Connection:
        if self._closed:
            msg = f"{self._purpose.label} is closed: open it again"
            raise BackendFailure(msg, retryable=False)
        if is_dead(self._connection):
            self._connection.close()
            self._connect()
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._connection.close()

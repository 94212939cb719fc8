"""A Postgres schema as a place for tables of ours beside a log."""

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
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.store.engine import (
    ABORTED,
    CLOSED,
    ENDED_EARLY,
    Purpose,
    causes,
    misfit,
    statements,
)
from seriatim.store.postgres.additions import find_additions
from seriatim.store.postgres.connecting import (
    READ_COMMITTED,
    Address,
    Connection,
    connect,
    is_dead,
)
from seriatim.store.postgres.failures import LOCK_BUSY, failure
from seriatim.store.postgres.lock import bounded

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
# In an array a backslash stands before a character that is meant as it is: `\n` would be an n.
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
# Lost connections (poolers report them by state), lack of resources, shutdowns, failing disks.
_OUTAGES = ("08", "53", "57P01", "57P02", "57P03", "58000", "58030")
# idle_in_transaction_session_timeout and transaction_timeout.
_ENDED_SESSION = ("25P03", "25P04")
_SETUP_LOCK = 7_306_093_113_441_296_996
_CURES = {
    "42501": (
        "the role lacks rights on {what}: let the owner grant it usage and create on the "
        "schema and rights on its tables, or name another place with {option}"
    ),
    "42P01": "a table of {what} is missing: {remake}",
    "42P07": "a table of that name is there already: drop it, or take another name",
    "2BP01": "something depends on a table of {what}: drop it, rebuild, make it again",
    "22003": "a sum is larger than an int of 64 bits",
    "55P03": "somebody reads {what} in a long transaction: end it, then try again",
}


class PostgresSession:
    """One transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names = count()

    @property
    def connection(self) -> Connection:
        """The driver's connection, in the transaction."""
        return self._connection

    def outage(self, error: BaseException) -> Exception | None:
        """Return the error that says the server cannot be used now."""
        drivers = (one for one in causes(error) if isinstance(one, psycopg.Error))
        return next(filter(self._is_outage, drivers), None)

    def _is_outage(self, error: psycopg.Error) -> bool:
        if self._connection.closed:
            # What an effect closed itself, or the server because the transaction took too long,
            # is closed again at the next try.
            return self._connection.broken and error.sqlstate not in _ENDED_SESSION
        intact = self._connection.info.transaction_status == TransactionStatus.INTRANS
        return not intact and (error.sqlstate or "").startswith(_OUTAGES)

    def defect(self) -> str | None:
        """Say whether the transaction was aborted or ended by other hands."""
        if self._closed:
            return CLOSED
        match self._connection.info.transaction_status:
            case TransactionStatus.INERROR:
                return ABORTED
            case TransactionStatus.IDLE:
                return ENDED_EARLY
            case _:
                return None

    @property
    def _closed(self) -> bool:
        """Whether the connection was closed by whoever wrote through it, and not by the server."""
        return self._connection.closed and not self._connection.broken

    def refusal(self, error: BaseException) -> str | None:  # noqa: ARG002 - psycopg names commits
        """Say whether the connection was closed by other hands."""
        return CLOSED if self._closed else None

    def lent(self) -> AbstractContextManager[None]:
        """Let others write; psycopg itself refuses commit and rollback inside a transaction."""
        return nullcontext()

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement."""
        done = self._connection.execute(_translated(sql), values or {})
        return done.fetchall() if done.description else []

    def put(
        self, into: str, kinds: Mapping[str, str], columns: Sequence[list[Any]], then: str
    ) -> None:
        """Insert rows, merging where their keys are known: one statement for thousands."""
        names = ", ".join(f'"{name}"' for name in kinds)
        arrays = ", ".join(f"%s::{_TYPES[kind]}[]" for kind in kinds.values())
        sql = f"insert into {into} as t ({names}) select * from unnest({arrays}) {then}"
        for start in range(0, len(columns[0]), _CHUNK):
            values = [_array(column[start : start + _CHUNK]) for column in columns]
            self._connection.execute(sql.encode(), values)

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows through a cursor on the server."""
        with self._connection.cursor(f"seriatim_{next(self._names)}") as cursor:
            cursor.execute(_translated(sql), values or {})
            while rows := cursor.fetchmany(_CHUNK):
                yield from rows

    def given(
        self,
        sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on rows that travel as arrays."""
        arrays = ", ".join(f":given_{name}::{_TYPES[kind]}[]" for name, kind in kinds.items())
        rows = f"(select * from unnest({arrays}) as u ({', '.join(kinds)}))"
        named = {
            f"given_{name}": _array(column) for name, column in zip(kinds, columns, strict=True)
        }
        return self.run(sql.replace("{given}", rows), {**(values or {}), **named})

    def given_then(  # noqa: PLR0913 - two statements and what they are about
        self,
        sql: str,
        then: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        returned: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run two statements as one."""
        names = ", ".join(returned)
        both = (
            f"with first_rows ({names}) as ({sql}), "
            f"second_rows as ({then.replace('{rows}', 'first_rows')}) select * from first_rows"
        )
        return self.given(both, kinds, columns, values)


def _array(values: list[Any]) -> str | list[Any]:
    """Write an array as Postgres reads it, which JSON almost is; the driver does it far slower."""
    text = msgspec.json.encode(values).decode()
    return values if _ESCAPE.search(text) else f"{{{text[1:-1]}}}"


def _explained(error: psycopg.Error, purpose: Purpose, *, sent: bool = False) -> SeriatimError:
    found = failure(error, f"using {purpose.what}", sent=sent)
    if error.sqlstate in _CURES:
        cure = _CURES[error.sqlstate].format(
            what=purpose.what, option=purpose.option, remake=purpose.remake
        )
        found.message = f"Postgres failed while using {purpose.what}: {cure}"
        found.retryable = error.sqlstate == LOCK_BUSY
    return type(found)(found.message, details=found.details, retryable=found.retryable)


def _translated(sql: str) -> bytes:
    return _PARAMETER.sub(r"%(\1)s", sql).encode()


class PostgresEngine:
    """Tables of ours in a schema of a Postgres database."""

    now = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    lock = "for update"
    share = "for share"
    strict = ""
    loads: Mapping[str, Callable[[Any], Any]] = {"time": lambda value: value.replace(tzinfo=UTC)}

    def __init__(self, address: Address, purpose: Purpose) -> None:
        self._address = address
        self._purpose = purpose
        self.at = f'"{address.schema}".'
        self._start()
        self._closed = False

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._connection = connect(self._address)
        self._explicit = self._needs_explicit()
        self._pid = os.getpid()

    def _needs_explicit(self) -> bool:
        """Tell whether a lone statement would run at another isolation than our transactions."""
        try:
            row = self._connection.execute("show default_transaction_isolation").fetchone()
        except psycopg.Error as error:
            raise _explained(error, self._purpose) from error
        return row is None or row[0] != READ_COMMITTED

    def another(self) -> PostgresEngine:
        """Return another connection to the same schema."""
        return PostgresEngine(self._address, self._purpose)

    def ready(self, table: str | None = None) -> bool:
        """Look for the last of our own tables, or for another one."""
        name = f"{self.at}{table or self._purpose.last_table}"
        with self.at_once() as session:
            found = session.run("select to_regclass(:table)", {"table": name})
        return found[0][0] is not None

    def prepare(self, statements: Sequence[str]) -> None:
        """Make the schema and our own tables, unless they are there."""
        with self._used() as connection, bounded(connection, Settings()):
            session = PostgresSession(connection)
            session.run("select pg_advisory_xact_lock(:key)", {"key": _SETUP_LOCK})
            found = session.run("select to_regnamespace(:name)", {"name": self.at[:-1]})
            if found[0][0] is None:  # making one takes a right on the database
                session.run(f"create schema {self.at[:-1]}")
            for statement in statements:
                session.run(statement)

    def holding(self, table: str, mode: str, patience: str | None = None) -> Sequence[str]:
        """Return the statements that lock a table, after a while of trying if told so."""
        wait = [] if patience is None else [f"set local lock_timeout = '{patience}'"]
        return [*wait, f"lock table {self.at}{table} in {mode} mode"]

    def column(self, kind: str) -> str:
        """Return the type of a column."""
        return f'{_TYPES[kind]} collate "C"' if kind == "text" else _TYPES[kind]

    def shown(self, column: str, kind: str) -> str:
        """Return how a column is selected: JSON as stored, times whatever the session's zone is."""
        if kind == "time":
            return f"{column} at time zone 'UTC'"
        return f"{column}::text" if kind == "json" else column

    def column_names(self, session: PostgresSession, table: str) -> Sequence[str]:
        """Return the columns of a table, none if no table of this name is there."""
        found = session.run(
            "select attname from pg_attribute where attrelid = to_regclass(:name) "
            "and attnum > 0 and not attisdropped order by attnum",
            {"name": f'{self.at}"{table}"'},
        )
        return [row[0] for row in found]

    def additions(
        self, session: PostgresSession, table: str, columns: Collection[str]
    ) -> Sequence[str]:
        """Return the statements that give a new table what users added to this one."""
        sql = statements("seriatim.store.postgres", self, "additions.sql")
        return find_additions(session, sql, f'{self.at}"{table}"', columns)

    def rename(self, session: PostgresSession, old: str, new: str, added: Sequence[str]) -> None:
        """Give a table the name of one that was dropped, and what users had added to that."""
        session.run(f'alter table {self.at}"{old}" rename to "{new}"')
        for statement in added:
            try:
                session.connection.execute(statement.encode())
            except (psycopg.errors.UndefinedColumn, psycopg.errors.UniqueViolation) as error:
                raise misfit(new, statement, str(error.diag.message_primary)) from error

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[PostgresSession]:
        """Do all or nothing."""
        with self._used() as connection:
            outermost = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            sent = False
            try:
                with connection.transaction():
                    if not write:
                        connection.execute(
                            "set transaction isolation level repeatable read read only"
                        )
                    yield PostgresSession(connection)
                    sent = outermost and write  # from here on the COMMIT may be applied
            except psycopg.Error as error:
                raise _explained(error, self._purpose, sent=sent) from error

    @contextmanager
    def at_once(self) -> Iterator[PostgresSession]:
        """Run one statement: it is its own transaction, at READ COMMITTED."""
        if self._explicit:
            with self.transaction() as session:
                yield session
            return
        with self._used() as connection:
            sent = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            try:
                yield PostgresSession(connection)
            except psycopg.Error as error:
                raise _explained(error, self._purpose, sent=sent) from error

    @contextmanager
    def _used(self) -> Iterator[Connection]:
        if self._pid != os.getpid():
            # A forked child: the lock may be held by a thread that is not here, and psycopg closes
            # no connection that another process made.
            self._start()
        with self._lock:
            try:
                yield self._alive()
            except psycopg.Error as error:
                raise _explained(error, self._purpose) from error

    def _alive(self) -> Connection:
        if self._closed:
            msg = f"{self._purpose.what} is closed: open it again"
            raise BackendFailure(msg, retryable=False)
        if is_dead(self._connection):
            self._connection.close()
            self._connection = connect(self._address)
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._connection.close()

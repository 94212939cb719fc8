"""The interface of a database that holds Seriatim's own tables outside a log.

Read models, the delivery registry and the access tables run on it, on Postgres and on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, Protocol

import msgspec

from seriatim.core.errors import Conflict

_NAME = "-- name: "
TRANSACTION_ENDED = (
    "the transaction was committed or rolled back too early: write through the connection, and "
    "leave commit and rollback to its owner"
)
CONNECTION_CLOSED = (
    "the connection was closed inside the transaction: write through it, but do not close it"
)
TRANSACTION_ABORTED = (
    "an error inside the transaction was ignored, so Postgres refuses to commit it: raise the "
    "error, or put the statement into a savepoint (with connection.transaction())"
)


class EnginePurpose(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine stores: its name in errors, and how to detect that its tables exist."""

    label: str  # the name in errors, such as "the read model"
    target_option: str  # the CLI option that selects another database
    last_table: str  # the table that is created last; if it exists, all do
    recreate_hint: str  # the cure for a missing table
    durable: bool = True  # whether commits must survive a power failure


class EngineSession(Protocol):
    """One transaction."""

    @property
    def connection(self) -> Any:
        """The driver's connection, for callers that write in the same transaction."""
        ...

    def find_outage(self, error: BaseException) -> Exception | None:
        """Return the driver's error in the cause chain that shows an outage, else None.

        A lost or refused connection, a shutdown and a lack of resources are outages. Every other
        error of a statement or COMMIT is caused by the data that was written.
        """
        ...

    def find_defect(self) -> str | None:
        """Return why this transaction cannot be committed, None if it can."""
        ...

    def explain_refusal(self, error: BaseException) -> str | None:
        """Return a message if `error` comes from ending the transaction or its connection."""
        ...

    def forbid_commit(self) -> AbstractContextManager[None]:
        """Let user code write in the transaction, but not commit or roll it back."""
        ...

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement with `:name` parameters and return its rows."""
        ...

    def execute(self, sql: str, values: Mapping[str, Any]) -> None:
        """Execute a statement with `:name` parameters that returns no rows."""
        ...

    def upsert(
        self,
        table: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        on_conflict: str,
    ) -> None:
        """Insert rows into a table.

        Args:
            table: The qualified table name.
            kinds: The columns and the kind of value of each.
            columns: The values, one list per column, in their stored form.
            on_conflict: The `on conflict` clause.

        """
        ...

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query without loading all of them into memory."""
        ...

    def run_with_rows(
        self,
        sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement that uses rows of parameters as a table.

        Args:
            sql: The statement; `{given}` stands for the table.
            kinds: The columns of the table and the kind of value of each.
            columns: The values, one list per column.
            values: Further `:name` parameters.

        """
        ...

    def run_with_rows_then(
        self,
        sql: str,
        second_sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        returned: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement as `run_with_rows` does, and a second one on the rows that it returned.

        Args:
            sql: The first statement; `{given}` stands for the parameter rows.
            second_sql: The second statement; `{rows}` stands for the rows returned by the first.
            kinds: The columns of the parameter rows and the kind of value of each.
            columns: The values, one list per column.
            returned: The names of the columns that the first statement returns.
            values: Further `:name` parameters of both statements.

        Returns:
            The rows returned by the first statement.

        """
        ...


class Engine(Protocol):
    """A database, or one schema of it, that holds Seriatim's own tables."""

    schema_prefix: str  # the schema prefix of table names, with its dot
    now_sql: str  # the SQL expression of the database's clock in microseconds
    lock_clause: str  # the clause that locks selected rows exclusively
    share_clause: str  # the clause that locks selected rows against changes
    table_options: str  # the options at the end of CREATE TABLE
    # Converters of selected values to their stored form, by kind.
    decoders: Mapping[str, Callable[[Any], Any]]

    def is_ready(self, table: str | None = None) -> bool:
        """Return True if Seriatim's own tables exist, or if `table` exists."""
        ...

    def create_tables(self, statements: Sequence[str]) -> None:
        """Create the schema and the tables if they do not exist; safe to run concurrently."""
        ...

    def get_column_type(self, kind: str) -> str:
        """Return the SQL type of a column for a kind of value."""
        ...

    def build_column_expression(self, column: str, kind: str) -> str:
        """Return the SQL expression that selects a column in its stored form."""
        ...

    def build_lock_statements(
        self, table: str, mode: str, lock_timeout: str | None = None
    ) -> Sequence[str]:
        """Return the statements that lock a table until the transaction ends.

        Args:
            table: The table name.
            mode: The lock mode of `LOCK TABLE`.
            lock_timeout: The longest wait for the lock, as a `lock_timeout` value.

        Returns:
            Statements to run in order; none where the database needs no table locks.

        """
        ...

    def list_columns(self, session: Any, table: str) -> Sequence[str]:
        """Return the column names of a table, none if the table does not exist."""
        ...

    def find_customizations(
        self, session: Any, table: str, columns: Collection[str]
    ) -> Sequence[str]:
        """Return the statements that repeat the users' customizations of a table on a new one.

        Customizations are grants, indexes, settings and comments, as far as the database has them.

        Args:
            session: The transaction.
            table: The name of the existing and of the new table.
            columns: The columns of the new table.

        Raises:
            Conflict: A customization cannot be carried over.

        """
        ...

    def replace_table(
        self, session: Any, old: str, new: str, customizations: Sequence[str]
    ) -> None:
        """Rename a table to the name of a dropped one and apply the customizations of that one."""
        ...

    def transaction(
        self, *, write: bool = True, pipelined: bool = False
    ) -> AbstractContextManager[EngineSession]:
        """Run a block in a transaction.

        Args:
            write: Whether the block writes; otherwise it reads one snapshot.
            pipelined: Whether `upsert` and `execute` are sent together with the next `run` or the
                commit, which saves their round trips. Their errors are raised there.

        """
        ...

    def autocommit(self, *, write: bool = True) -> AbstractContextManager[EngineSession]:
        """Run one statement as its own transaction, in a single round trip."""
        ...

    def open_another(self) -> Engine:
        """Return an engine with another connection to the same database."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes, without repeating a cycle."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def make_replace_conflict(table: str, statement: str, reason: str) -> Conflict:
    """Return the error for a customization that cannot be applied to a new table."""
    msg = (
        f"cannot replace table {table}: a customization does not fit the new table ({reason}): "
        f"{statement[:200]}; drop it, and rebuild"
    )
    return Conflict(msg, details={"table": table})


def load_engine_statements(
    package: str, engine: Engine, file: str = "statements.sql"
) -> dict[str, str]:
    """Load the named statements of a SQL file and fill in an engine's expressions.

    Args:
        package: The package that contains the file.
        engine: The engine on which the statements will run.
        file: The file name.

    Returns:
        The statements by name.

    """
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    for placeholder, sql in (
        ("{at}", engine.schema_prefix),
        ("{now}", engine.now_sql),
        ("{lock}", engine.lock_clause),
        ("{share}", engine.share_clause),
    ):
        text = text.replace(placeholder, sql)
    parts = (part.partition("\n") for part in text.split(_NAME)[1:])
    return {name.strip(): body.strip().rstrip(";") for name, _, body in parts}

"""What a database must offer to hold tables of ours beside a log, and statements of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, Protocol

import msgspec

from seriatim.core.errors import Conflict

_NAME = "-- name: "
ENDED_EARLY = (
    "the transaction was committed or rolled back before its end: write through the connection, "
    "and leave commit and rollback to its owner"
)
CLOSED = (
    "the connection was closed inside the transaction: write through it, and leave closing it to "
    "its owner"
)
ABORTED = (
    "an error inside the transaction was ignored, so Postgres refuses to commit it: raise the "
    "error, or put the statement into a savepoint (with connection.transaction())"
)


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """What a place is for: how errors call it, and how it is told from an empty one."""

    what: str  # "the read model"
    option: str  # how a user names another place
    last_table: str  # the last of our own tables to be made
    remake: str  # what helps when a table is missing
    durable: bool = True  # whether what is committed must survive a loss of power


class Session(Protocol):
    """One transaction."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, for those who write in the same transaction."""
        ...

    def outage(self, error: BaseException) -> Exception | None:
        """Return the driver's error if the database is unavailable, looking at causes as well.

        A lost or refused connection, a shutdown and a lack of resources are outages; everything
        else that a statement or COMMIT reports is the fault of what was written.
        """
        ...

    def defect(self) -> str | None:
        """Say why this transaction cannot commit what was written in it, None if it can."""
        ...

    def refusal(self, error: BaseException) -> str | None:
        """Say what an error is about that comes of ending the transaction or its connection."""
        ...

    def lent(self) -> AbstractContextManager[None]:
        """Let others write in the transaction, and refuse to let them end it."""
        ...

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement whose parameters are written `:name`."""
        ...

    def put(
        self, into: str, kinds: Mapping[str, str], columns: Sequence[list[Any]], then: str
    ) -> None:
        """Insert rows, given by column in their kept form; `then` is the `on conflict` clause."""
        ...

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query in bounded memory."""
        ...

    def given(
        self,
        sql: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement in which `{given}` stands for rows, named and given by column."""
        ...

    def given_then(  # noqa: PLR0913 - two statements and what they are about
        self,
        sql: str,
        then: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        returned: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run such a statement, and in the same go one in which `{rows}` are what it returned."""
        ...


class Engine(Protocol):
    """A database, or a part of one, that holds tables of ours."""

    at: str  # what stands before a table's name
    now: str  # its clock in microseconds
    lock: str  # what locks the rows that a select finds, for oneself
    share: str  # and what locks them against change only
    strict: str  # what a table is made with
    # What gives selected values of a kind their kept form.
    loads: Mapping[str, Callable[[Any], Any]]

    def ready(self, table: str | None = None) -> bool:
        """Tell whether the place and its own tables are there, or one of them."""
        ...

    def prepare(self, statements: Sequence[str]) -> None:
        """Make the place and its own tables, if they are not there; safe when others do too."""
        ...

    def column(self, kind: str) -> str:
        """Return the type of a column that holds a kind of value."""
        ...

    def shown(self, column: str, kind: str) -> str:
        """Return the expression that reads a column in its kept form."""
        ...

    def holding(self, table: str, mode: str, patience: str | None = None) -> Sequence[str]:
        """Return what holds a table in a mode until the transaction ends, where that is needed."""
        ...

    def column_names(self, session: Any, table: str) -> Sequence[str]:
        """Return the columns of a table, none if no table of this name is there."""
        ...

    def additions(self, session: Any, table: str, columns: Collection[str]) -> Sequence[str]:
        """Return the statements that give a new table what users added to this one.

        Grants, indexes, settings, comments, as far as the database has them; the new table has
        the same name and these columns. Raises `Conflict` for what cannot be carried over.
        """
        ...

    def rename(self, session: Any, old: str, new: str, added: Sequence[str]) -> None:
        """Give a table the name of one that was dropped, and what users had added to that."""
        ...

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Session]:
        """Do all or nothing; without `write`, see one moment of the database."""
        ...

    def at_once(self) -> AbstractContextManager[Session]:
        """Run one statement, which is its own transaction: a single round trip."""
        ...

    def another(self) -> Engine:
        """Return another connection to the same place."""
        ...

    def close(self) -> None: ...


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what caused it, and what caused that."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def misfit(table: str, statement: str, reason: str) -> Conflict:
    """Make the error for an addition of a user's that does not fit a new table."""
    msg = (
        f"table {table} cannot be replaced: what was added to it does not fit the new one "
        f"({reason}): {statement[:200]}; drop it, and rebuild"
    )
    return Conflict(msg, details={"table": table})


def statements(package: str, engine: Engine, file: str = "statements.sql") -> dict[str, str]:
    """Return the named statements of a file, its holes filled with an engine's own words."""
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    for hole, said in (
        ("{at}", engine.at),
        ("{now}", engine.now),
        ("{lock}", engine.lock),
        ("{share}", engine.share),
    ):
        text = text.replace(hole, said)
    parts = (part.partition("\n") for part in text.split(_NAME)[1:])
    return {name.strip(): body.strip().rstrip(";") for name, _, body in parts}

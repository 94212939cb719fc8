"""What a database must offer to hold read models, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import msgspec

from seriatim.core.fold import Failure, Kept, Owner

Status = Literal["ready", "paused", "failed"]
FailureStatus = Literal["stopped", "parked", "skipped", "passed"]

EVERY_TENANT = "*"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a projection has come, in which log; `owner` is who runs it now, if anybody."""

    name: str
    shadow: bool
    tenant_id: str
    declaration: str
    position: int
    log_id: str
    epoch: int
    tip: str
    status: Status
    updated_at: str
    owner: str
    token: int


class FailureRecord(msgspec.Struct, frozen=True):
    """A failure that is kept, what became of it, and whether its key is to be folded anew."""

    failure: Failure
    status: FailureStatus
    failed_at: str
    again: bool


class Step(msgspec.Struct, kw_only=True):
    """What one batch of the log (`after`, `until`] does to a read model, in one transaction."""

    after: int
    until: int
    tip: str
    rows: dict[str, list[Kept]] = msgspec.field(default_factory=dict)
    own: dict[Owner, Kept] = msgspec.field(default_factory=dict)  # rows that are states
    states: dict[Owner, tuple[int, str]] = msgspec.field(default_factory=dict)
    failures: list[tuple[Failure, FailureStatus]] = msgspec.field(default_factory=list)


class Session(Protocol):
    """One transaction."""

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

    def among(self, sql: str, owners: Sequence[Owner]) -> list[tuple[Any, ...]]:
        """Run a statement that joins `{owners} o (tenant_id, key)`."""
        ...


class Engine(Protocol):
    """A database that holds read models."""

    at: str  # what stands before a table's name
    now: str  # its clock in microseconds
    lock: str  # what locks the rows that a select finds, for oneself
    share: str  # and what locks them against change only
    strict: str  # what a table is made with
    # What gives selected values of a kind their kept form.
    loads: Mapping[str, Callable[[Any], Any]]
    # What is run first by who begins a projection, switches one, or looks at one moment.
    beginning: Sequence[str]
    switching: Sequence[str]
    looking: Sequence[str]

    def ready(self) -> bool:
        """Tell whether the place and its own tables are there."""
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

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Session]:
        """Do all or nothing; without `write`, see one moment of the database."""
        ...

    def close(self) -> None: ...

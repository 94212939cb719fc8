"""A read model at one moment: its rows in order, its digests, and how far it had come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from seriatim.core.errors import BackendFailure
from seriatim.core.fold import Digest, Row
from seriatim.core.projection import Projection, Table
from seriatim.core.times import format_us
from seriatim.core.values import VALUES
from seriatim.store.engine import Engine, Session
from seriatim.store.readmodel import tables
from seriatim.store.readmodel.port import Progress

Found = tuple[str, Row, int]  # tenant, row, position


class Moment:
    """A read model at one moment."""

    def __init__(self, engine: Engine, session: Session, progress_sql: str) -> None:
        self._engine = engine
        self._session = session
        self._progress_sql = progress_sql

    def progress(self, name: str, *, shadow: bool = False) -> Progress | None:
        """Return how far a projection had come."""
        found = self._session.run(self._progress_sql, {"name": name, "shadow": int(shadow)})
        return progress_of(found[0]) if found else None

    def rows(
        self, projection: Projection, table: Table, *, shadow: bool = False, ordered: bool = True
    ) -> Iterator[Found]:
        """Yield tenant, row and position, in the order of the table's key unless any will do."""
        where = tables.place(self._engine, projection.name, table.name, shadow=shadow)
        sql = f"select {tables.select(self._engine, table)} from {where} t"
        if ordered:
            sql += f" order by {tables.key_of(table)}"
        yield from map(reader(self._engine, table), self._session.stream(sql))

    def digest(self, projection: Projection, *, shadow: bool = False) -> Digest:
        """Return the digest over all rows of a projection."""
        made = Digest()
        for table in projection.tables:
            for tenant_id, row, _ in self.rows(projection, table, shadow=shadow, ordered=False):
                made.add(table, tenant_id, row)
        return made


def reader(engine: Engine, table: Table) -> Callable[[tuple[Any, ...]], Found]:
    """Return what makes a row of a table of what `tables.select` found."""
    names = tuple(table.fields)
    kinds = ((name, VALUES[kind].name) for name, kind in table.fields.items())
    loads = [(name, engine.loads[kind]) for name, kind in kinds if kind in engine.loads]

    def read(found: tuple[Any, ...]) -> Found:
        row = dict(zip(names, found[1:-1], strict=True))
        try:
            for name, load in loads:
                if row[name] is not None:
                    row[name] = load(row[name])
        except ValueError as error:
            key = {name: row[name] for name in table.key}
            msg = f"table {table.name} was changed by hand at key {key!r:.200}: {error}"
            raise BackendFailure(msg, retryable=False) from error
        return found[0], row, found[-1]

    return read


def progress_of(row: tuple[Any, ...]) -> Progress:
    """Make the progress of one row."""
    name, shadow, tenant_id, declaration, position, log_id, epoch, tip, status, *rest = row
    updated_us, owner, token, held_until_us = rest
    return Progress(
        name=name,
        shadow=bool(shadow),
        tenant_id=tenant_id,
        declaration=declaration,
        position=position,
        log_id=log_id,
        epoch=epoch,
        tip=tip,
        status=status,
        updated_at=format_us(updated_us),
        owner=owner,
        token=token,
        held_until=None if held_until_us is None else format_us(held_until_us),
    )

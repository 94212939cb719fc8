"""A consistent snapshot of a read model: rows, digests and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from seriatim.core.column_types import COLUMN_TYPES
from seriatim.core.errors import BackendFailure
from seriatim.core.fold import Row, RowDigest
from seriatim.core.projection import Projection, Table
from seriatim.core.times import format_us
from seriatim.store.engine import Engine, EngineSession
from seriatim.store.readmodel import tables
from seriatim.store.readmodel.port import Progress

TableRow = tuple[str, Row, int]  # tenant, row, position


class ReadModelSnapshot:
    """A consistent snapshot of a read model."""

    def __init__(self, engine: Engine, session: EngineSession, progress_sql: str) -> None:
        self._engine = engine
        self._session = session
        self._progress_sql = progress_sql

    def progress(self, name: str, *, shadow: bool = False) -> Progress | None:
        """Return the progress of a projection, None if there is none."""
        found = self._session.run(self._progress_sql, {"name": name, "shadow": int(shadow)})
        return decode_progress(found[0]) if found else None

    def rows(
        self, projection: Projection, table: Table, *, shadow: bool = False, ordered: bool = True
    ) -> Iterator[TableRow]:
        """Yield tenant, row and position of all rows, by default in the order of the key."""
        where = tables.qualify_table(self._engine, projection.name, table.name, shadow=shadow)
        sql = f"select {tables.build_select_list(self._engine, table)} from {where} t"
        if ordered:
            sql += f" order by {tables.build_key_list(table)}"
        yield from map(make_row_decoder(self._engine, table), self._session.stream(sql))

    def compute_digest(self, projection: Projection, *, shadow: bool = False) -> RowDigest:
        """Return the digest over all rows of a projection."""
        digest = RowDigest()
        for table in projection.tables:
            for tenant_id, row, _ in self.rows(projection, table, shadow=shadow, ordered=False):
                digest.add(table, tenant_id, row)
        return digest


def make_row_decoder(engine: Engine, table: Table) -> Callable[[tuple[Any, ...]], TableRow]:
    """Return a function that decodes the rows selected with `tables.build_select_list`."""
    names = tuple(table.fields)
    kinds = ((name, COLUMN_TYPES[kind].name) for name, kind in table.fields.items())
    loads = [(name, engine.decoders[kind]) for name, kind in kinds if kind in engine.decoders]

    def decode(values: tuple[Any, ...]) -> TableRow:
        row = dict(zip(names, values[1:-1], strict=True))
        try:
            for name, load in loads:
                if row[name] is not None:
                    row[name] = load(row[name])
        except ValueError as error:
            key = {name: row[name] for name in table.key}
            msg = (
                f"table {table.name} was modified outside Seriatim at key {key!r:.200}: {error}; "
                "rebuild the projection"
            )
            raise BackendFailure(msg, retryable=False) from error
        return values[0], row, values[-1]

    return decode


def decode_progress(row: tuple[Any, ...]) -> Progress:
    """Build the progress from a row."""
    name, shadow, tenant_id, declaration, position, log_id, epoch, last_event_id, status, *rest = (
        row
    )
    updated_us, owner, token, held_until_us = rest
    return Progress(
        name=name,
        shadow=bool(shadow),
        tenant_id=tenant_id,
        declaration=declaration,
        position=position,
        log_id=log_id,
        epoch=epoch,
        last_event_id=last_event_id,
        status=status,
        updated_at=format_us(updated_us),
        owner=owner,
        token=token,
        held_until=None if held_until_us is None else format_us(held_until_us),
    )

"""The tables of a projection: their names, how they are made, and how two rows become one."""

from __future__ import annotations

import msgspec

from seriatim.core.projection import Projection, Table
from seriatim.core.values import VALUES
from seriatim.store.engine import Engine
from seriatim.store.readmodel.port import Progress

_SHADOW = "__shadow"

STATES = Table("_state", {"key": str}, {"state": str})


def held(projection: Projection) -> tuple[Table, ...]:
    """Return all tables of a projection, that of its states among them if it has one."""
    return projection.tables if projection.state is None else (*projection.tables, STATES)


def own(projection: Projection) -> Table:
    """Return the table that holds the states."""
    return projection.tables[0] if projection.state is None else STATES


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever word it is; it was checked to be a plain one."""
    return f'"{name}"'


def place(engine: Engine, projection: str, table: str, *, shadow: bool) -> str:
    """Return the full name of a table; names of users never have two underscores in a row."""
    return engine.at + quoted(suffixed(name(projection, table), shadow=shadow))


def suffixed(table: str, *, shadow: bool) -> str:
    """Return the name of a table or of its shadow."""
    return f"{table}{_SHADOW}" if shadow else table


def name(projection: str, table: str) -> str:
    """Return a table's own name: that of its projection, if it is the only one."""
    return projection if table == projection else f"{projection}_{table}"


def declared(progress: Progress) -> list[str]:
    """Name the tables of a declaration as it was stored, which may be an older one."""
    said = msgspec.json.decode(progress.declaration)["tables"]
    return [name(progress.name, one["name"]) for one in said]


def declared_columns(progress: Progress, table: str) -> set[str]:
    """Return the columns that a table has by the stored declaration."""
    if table == name(progress.name, STATES.name):
        return set(kinds(STATES))
    for one in msgspec.json.decode(progress.declaration)["tables"]:
        if name(progress.name, one["name"]) == table:
            return {"tenant_id", "position", *(column for column, _ in one["key"] + one["columns"])}
    return set()


def kinds(table: Table) -> dict[str, str]:
    """Return the kind of every column, in the order of the table."""
    fields = {column: VALUES[kind].name for column, kind in table.fields.items()}
    return {"tenant_id": "text", **fields, "position": "integer"}


def create(engine: Engine, projection: str, table: Table, *, shadow: bool) -> str:
    """Return the statement that makes a table."""
    fixed = {"tenant_id", "position", *table.key}
    columns = (
        f"{quoted(column)} {engine.column(kind)}{' not null' if column in fixed else ''}"
        for column, kind in kinds(table).items()
    )
    where = place(engine, projection, table.name, shadow=shadow)
    keyed = f"primary key ({key_of(table)})"
    return f"create table {where} ({', '.join(columns)}, {keyed}) {engine.strict}"


def key_of(table: Table) -> str:
    """Return the key columns as SQL has them."""
    return ", ".join(map(quoted, ("tenant_id", *table.key)))


def select(engine: Engine, table: Table, alias: str = "t") -> str:
    """Return what a query selects of a table to have every column in its kept form."""
    return ", ".join(
        engine.shown(f"{alias}.{quoted(column)}", kind) for column, kind in kinds(table).items()
    )


def on_conflict(table: Table) -> str:
    """Return what becomes of a row whose key is there already."""
    sets = [*(_merged(table, column) for column in table.columns), _position(table)]
    then = f"on conflict ({key_of(table)}) do update set {', '.join(sets)}"
    if table.merge:
        return then
    earlier = "<" if table.keep == "first" else ">="
    return f"{then} where excluded.position {earlier} t.position"


def _position(table: Table) -> str:
    if not table.merge:
        return "position = excluded.position"
    return (
        "position = case when excluded.position > t.position"
        " then excluded.position else t.position end"
    )


def _merged(table: Table, name: str) -> str:
    column = quoted(name)
    old, new = f"t.{column}", f"excluded.{column}"
    both = {
        "sum": f"{old} + {new}",
        "min": f"case when {new} < {old} then {new} else {old} end",
        "max": f"case when {new} > {old} then {new} else {old} end",
    }
    rule = table.merge.get(name)
    if rule is None:
        return f"{column} = {new}"
    return (
        f"{column} = case when {old} is null then {new} when {new} is null then {old}"
        f" else {both[rule]} end"
    )

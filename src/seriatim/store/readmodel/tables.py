"""The tables of a projection: names, columns, and the SQL that creates and merges rows."""

from __future__ import annotations

import msgspec

from seriatim.core.column_types import COLUMN_TYPES
from seriatim.core.projection import Projection, Table
from seriatim.store.engine import Engine
from seriatim.store.readmodel.port import Progress

_SHADOW = "__shadow"

STATE_TABLE = Table("_state", {"key": str}, {"state": str})


def list_tables(projection: Projection) -> tuple[Table, ...]:
    """Return all tables of a projection, including its state table if it has one."""
    return projection.tables if projection.state is None else (*projection.tables, STATE_TABLE)


def get_state_table(projection: Projection) -> Table:
    """Return the table that contains the states."""
    return projection.tables[0] if projection.state is None else STATE_TABLE


def quote_identifier(name: str) -> str:
    """Return a quoted identifier; the name was checked to contain no quote."""
    return f'"{name}"'


def qualify_table(engine: Engine, projection: str, table: str, *, shadow: bool) -> str:
    """Return the qualified name of a table; users' names never contain two underscores in a row."""
    return engine.schema_prefix + quote_identifier(
        add_shadow_suffix(get_table_name(projection, table), shadow=shadow)
    )


def add_shadow_suffix(table: str, *, shadow: bool) -> str:
    """Return the name of a table, or of its shadow."""
    return f"{table}{_SHADOW}" if shadow else table


def get_table_name(projection: str, table: str) -> str:
    """Return the unqualified name of a table; a table named like its projection has no prefix."""
    return projection if table == projection else f"{projection}_{table}"


def list_declared_tables(progress: Progress) -> list[str]:
    """Return the table names of the stored declaration, which may be an older one."""
    tables = msgspec.json.decode(progress.declaration)["tables"]
    return [get_table_name(progress.name, table["name"]) for table in tables]


def list_declared_columns(progress: Progress, table: str) -> set[str]:
    """Return the columns of a table in the stored declaration, none if it is not declared."""
    if table == get_table_name(progress.name, STATE_TABLE.name):
        return set(get_column_kinds(STATE_TABLE))
    for declared in msgspec.json.decode(progress.declaration)["tables"]:
        if get_table_name(progress.name, declared["name"]) == table:
            return {
                "tenant_id",
                "position",
                *(column for column, _ in declared["key"] + declared["columns"]),
            }
    return set()


def get_column_kinds(table: Table) -> dict[str, str]:
    """Return the kind of value of each column, in the order of the table."""
    fields = {column: COLUMN_TYPES[kind].name for column, kind in table.fields.items()}
    return {"tenant_id": "text", **fields, "position": "integer"}


def build_create_statement(engine: Engine, projection: str, table: Table, *, shadow: bool) -> str:
    """Return the statement that creates a table."""
    required = {"tenant_id", "position", *table.key}
    columns = (
        f"{quote_identifier(column)} "
        f"{engine.get_column_type(kind)}{' not null' if column in required else ''}"
        for column, kind in get_column_kinds(table).items()
    )
    qualified = qualify_table(engine, projection, table.name, shadow=shadow)
    key = f"primary key ({build_key_list(table)})"
    return f"create table {qualified} ({', '.join(columns)}, {key}) {engine.table_options}"


def build_key_list(table: Table) -> str:
    """Return the SQL list of the key columns."""
    return ", ".join(map(quote_identifier, ("tenant_id", *table.key)))


def build_select_list(engine: Engine, table: Table, alias: str = "t") -> str:
    """Return the SELECT list that reads every column in its stored form."""
    return ", ".join(
        engine.build_column_expression(f"{alias}.{quote_identifier(column)}", kind)
        for column, kind in get_column_kinds(table).items()
    )


def build_conflict_clause(table: Table) -> str:
    """Return the ON CONFLICT clause that merges a row into an existing one."""
    assignments = [
        *(_merge_column(table, column) for column in table.columns),
        _merge_position(table),
    ]
    clause = f"on conflict ({build_key_list(table)}) do update set {', '.join(assignments)}"
    if table.merge:
        return clause
    # Keep the first or the last row by position, whatever the order of arrival.
    comparison = "<" if table.keep == "first" else ">="
    return f"{clause} where excluded.position {comparison} t.position"


def _merge_position(table: Table) -> str:
    if not table.merge:
        return "position = excluded.position"
    return (
        "position = case when excluded.position > t.position"
        " then excluded.position else t.position end"
    )


def _merge_column(table: Table, name: str) -> str:
    column = quote_identifier(name)
    old, new = f"t.{column}", f"excluded.{column}"
    merged = {
        "sum": f"{old} + {new}",
        "min": f"case when {new} < {old} then {new} else {old} end",
        "max": f"case when {new} > {old} then {new} else {old} end",
    }
    rule = table.merge.get(name)
    if rule is None:
        return f"{column} = {new}"
    # Null means that a part of the log has no value, but `null + 1` would be null. CASE instead of
    # a function, because Postgres calls it `least` and SQLite `min`.
    return (
        f"{column} = case when {old} is null then {new} when {new} is null then {old}"
        f" else {merged[rule]} end"
    )

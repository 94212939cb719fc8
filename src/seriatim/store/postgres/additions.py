"""What users have added to a table of a read model: grants, indexes, settings and comments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from seriatim.core.errors import Conflict

if TYPE_CHECKING:
    from seriatim.store.postgres.engine import PostgresSession


def find_additions(
    session: PostgresSession, sql: Mapping[str, str], table: str, columns: Collection[str]
) -> list[str]:
    """Return the statements that give them to a new table of the same name and these columns.

    Raises `Conflict` for what cannot be carried over.
    """
    named = {"name": table}
    obstacles = [" ".join(found) for found in session.run(sql["obstacles"], named)]
    if obstacles:
        msg = (
            f"table {table} cannot be replaced, for it would lose {', '.join(obstacles[:5])}: "
            "drop what you added, rebuild, and make it again"
        )
        raise Conflict(msg, details={"table": table, "found": obstacles})
    made = [f"alter table {table} {found[0]}" for found in session.run(sql["settings"], named)]
    made.append(_REVOKE.replace("{table}", table.replace("'", "''")))
    made += [
        _grant(table, *found)
        for found in session.run(sql["grants"], named)
        if found[1] is None or found[1] in columns
    ]
    made += [
        _comment(table, *found)
        for found in session.run(sql["comments"], named)
        if found[0] is None or found[0] in columns
    ]
    for what in ("indexes", "statistics"):
        made += [found[0] for found in session.run(sql[what], named)]
    last = session.run(sql["last_settings"], named)
    return made + [f"alter table {table} {found[0]}" for found in last]


# Default privileges may have given the new table more than users left to the old one.
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


def _grant(table: str, right: str, column: str | None, grantee: str, grantable: bool) -> str:
    part = "" if column is None else f' ("{column}")'
    option = " with grant option" if grantable else ""
    return f"grant {right}{part} on table {table} to {grantee}{option}"


def _comment(table: str, column: str | None, literal: str) -> str:
    what = f"table {table}" if column is None else f'column {table}."{column}"'
    return f"comment on {what} is {literal}"

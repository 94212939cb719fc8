"""Find the customizations that users made to a table: grants, indexes, settings and comments."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from seriatim.core.errors import Conflict
from seriatim.store.engine import Session


def find_additions(
    session: Session, sql: Mapping[str, str], table: str, columns: Collection[str]
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
    named = {"name": table}
    obstacles = [" ".join(found) for found in session.run(sql["obstacles"], named)]
    if obstacles:
        msg = (
            f"cannot replace table {table}, because {', '.join(obstacles[:5])} would be lost: drop "
            "them, rebuild, and create them again"
        )
        raise Conflict(msg, details={"table": table, "found": obstacles})
    repeated = [f"alter table {table} {found[0]}" for found in session.run(sql["settings"], named)]
    repeated.append(_REVOKE.replace("{table}", table.replace("'", "''")))
    repeated += [
        _build_grant(table, *found)
        for found in session.run(sql["grants"], named)
        if found[1] is None or found[1] in columns
    ]
    repeated += [
        _build_comment(table, *found)
        for found in session.run(sql["comments"], named)
        if found[0] is None or found[0] in columns
    ]
    for what in ("indexes", "statistics"):
        repeated += [found[0] for found in session.run(sql[what], named)]
    last = session.run(sql["last_settings"], named)
    return repeated + [f"alter table {table} {found[0]}" for found in last]


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

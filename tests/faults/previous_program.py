"""A program of the previous version: its appends call the functions that it calls.

Remove `append_events` here when the previous version calls it too.
"""

from __future__ import annotations

import psycopg

from seriatim.store.postgres import migrate
from seriatim.store.postgres.statements import load_store_statements

# Translates a call of this version: the functions of the previous one take other parameters.
APPEND_EVENTS = """
create schema {name};
create function {name}.append_events(
    p_lock bigint, p_lock_wait_ms integer, p_rules integer, p_head bigint, p_recorded_us bigint,
    p_tagged boolean, p_rows seriatim.new_event[], p_streams uuid[], p_types text[],
    p_counts integer[], p_indexes integer[], p_ranks integer[]
) returns bigint[] language plpgsql as $$
declare
    v_rules  integer := coalesce(
        p_rules, (select coalesce(max(version), 0) from seriatim.declarations));
    v_placed bigint[];
begin
    if cardinality(p_rows) >= 32 then
        select array[b.head, b.recorded_us] || b.ends into v_placed
        from seriatim.append_batch(
            p_lock, coalesce(p_lock_wait_ms, 5000), v_rules, p_rows, p_streams,
            array_fill(1::bigint, array[cardinality(p_streams)]), p_indexes, p_ranks, p_tagged) b;
        return v_placed;
    end if;
    v_placed := seriatim.append_group(
        p_lock, coalesce(p_lock_wait_ms, 5000), v_rules, p_rows, p_ranks, p_tagged, p_head);
    return v_placed[1:2] || array(
        select min(v_placed[2 + n] - coalesce(p_ranks[n], 1))
        from generate_series(1, cardinality(p_rows)) n
        where v_placed[2 + n] is not null
        group by coalesce(p_indexes[n], n) order by coalesce(p_indexes[n], n));
end $$;
"""


def become_previous_program(url: str, name: str, version: int) -> None:
    """Make this process append as a program that was made for an older schema version.

    Args:
        url: The URL of the log, in the schema `seriatim`.
        name: The schema for the functions of this process.
        version: The version of the schema that the program was made for.

    """
    migrate.SCHEMA_VERSION = version
    with psycopg.connect(url) as connection:
        connection.execute(APPEND_EVENTS.replace("{name}", name).encode())
    statements = load_store_statements("seriatim")
    for statement in ("append_events", "append_decided_events"):
        statements[statement] = statements[statement].replace(
            '"seriatim".append_events', f"{name}.append_events"
        )

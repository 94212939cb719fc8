"""The validated path of appends: decide a group under the write lock, insert the accepted ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from seriatim.core.request import Request
from seriatim.store.contexts import Contexts, foreseen
from seriatim.store.grouping import Placed, decide_group
from seriatim.store.port import Outcome
from seriatim.store.sqlite.declarations import Declarations
from seriatim.store.sqlite.lookups import state
from seriatim.store.sqlite.rows import Row, tag_rows, tail_of
from seriatim.store.sqlite.statements import SQL
from seriatim.store.sqlite.view import LockedView, evaluate, heads, streams_of


def append(
    connection: sqlite3.Connection,
    group: Sequence[Request],
    declarations: Declarations,
    recorded_us: int,
    *,
    trusting: bool,
) -> list[Placed | Outcome]:
    """Decide a group and insert the accepted appends, in the open transaction.

    Args:
        connection: The connection that holds the write lock.
        group: The appends.
        declarations: The cached declarations.
        recorded_us: The time at which the events are recorded.
        trusting: Assume that all keys and ids are new, and look them up only if an append is
            refused, since a repeated append is no conflict. If one is stored after all, the unique
            indexes reject the insert.

    Returns:
        For each append its placement, the receipt that it repeats, or its error.

    """
    head, version, ends = state(connection, streams_of(group))
    rules = declarations.rules(connection, version)
    contexts = evaluate(connection, Contexts(group, foreseen(group)), head)
    view = LockedView(connection, heads(connection, group, ends, rules), contexts, head)
    if trusting:
        placed = _require_all_placed(
            decide_group(group, view, rules, head, recorded_us, contexts.spent)
        )
        if placed:
            _insert(connection, placed, recorded_us)
            return list(placed)
    view.look_up_known(group)
    results = decide_group(group, view, rules, head, recorded_us, contexts.spent)
    placed = [result for result in results if isinstance(result, Placed)]
    if placed:
        _insert(connection, placed, recorded_us)
    return results


def _require_all_placed(results: Sequence[Placed | Outcome]) -> list[Placed]:
    placed = [result for result in results if isinstance(result, Placed)]
    return placed if len(placed) == len(results) else []


def _insert(connection: sqlite3.Connection, placed: list[Placed], recorded_us: int) -> None:
    events: list[Row] = []
    tags: list[Row] = []
    commands: list[Row] = []
    for one in placed:
        first = position = one.first_position
        for event, seq in zip(one.request.events, one.stream_seqs, strict=True):
            events.append((position, first, seq, recorded_us, *tail_of(event)))
            if event.tags or event.term_keys:
                tags.extend(tag_rows(event, position))
            position += 1
        command = one.request.command
        if command is not None:
            values = command.command_key, command.request_hash, command.response
            commands.append((*values, first, position - 1, recorded_us))
    connection.executemany(SQL["insert_event"], events)
    if tags:
        connection.executemany(SQL["insert_tag"], tags)
    if commands:
        connection.executemany(SQL["insert_command"], commands)

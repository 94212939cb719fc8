"""The validated path of appends: decide a group under the write lock, insert the accepted ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from seriatim.core.request import AppendRequest
from seriatim.store.append_group import PlacedAppend, decide_group
from seriatim.store.contexts import GroupContexts, collect_evaluated_contexts
from seriatim.store.port import Outcome
from seriatim.store.sqlite.declarations import SqliteDeclarations
from seriatim.store.sqlite.lookups import (
    SqliteLockedView,
    add_newest_events,
    collect_stream_keys,
    find_stream_heads,
    read_log_state,
)
from seriatim.store.sqlite.rows import Row, encode_event, encode_index_rows
from seriatim.store.sqlite.statements import SQL


def append_group(
    connection: sqlite3.Connection,
    group: Sequence[AppendRequest],
    declarations: SqliteDeclarations,
    recorded_us: int,
    *,
    assume_new: bool,
) -> list[PlacedAppend | Outcome]:
    """Decide a group and insert the accepted appends, in the open transaction.

    Args:
        connection: The connection that holds the write lock.
        group: The appends.
        declarations: The cached declarations.
        recorded_us: The time at which the events are recorded.
        assume_new: Assume that all keys and ids are new, and look them up only if an append is
            refused, since a repeated append is no conflict. If one is stored after all, the unique
            indexes reject the insert.

    Returns:
        For each append its placement, the receipt that it repeats, or its error.

    """
    head, version, ends = read_log_state(connection, collect_stream_keys(group))
    rules = declarations.load_rules(connection, version)
    contexts = add_newest_events(
        connection, GroupContexts(group, collect_evaluated_contexts(group)), head
    )
    view = SqliteLockedView(
        connection, find_stream_heads(connection, group, ends, rules), contexts, head
    )
    if assume_new:
        placed = _require_all_placed(
            decide_group(group, view, rules, head, recorded_us, contexts.lock_budget)
        )
        if placed:
            _insert(connection, placed, recorded_us)
            return list(placed)
    view.look_up_known(group)
    results = decide_group(group, view, rules, head, recorded_us, contexts.lock_budget)
    placed = [result for result in results if isinstance(result, PlacedAppend)]
    if placed:
        _insert(connection, placed, recorded_us)
    return results


def _require_all_placed(results: Sequence[PlacedAppend | Outcome]) -> list[PlacedAppend]:
    placed = [result for result in results if isinstance(result, PlacedAppend)]
    return placed if len(placed) == len(results) else []


def _insert(connection: sqlite3.Connection, placed: list[PlacedAppend], recorded_us: int) -> None:
    events: list[Row] = []
    tags: list[Row] = []
    commands: list[Row] = []
    for one in placed:
        first = position = one.first_position
        for event, seq in zip(one.request.events, one.stream_seqs, strict=True):
            events.append((position, first, seq, recorded_us, *encode_event(event)))
            if event.tags or event.term_keys:
                tags.extend(encode_index_rows(event, position))
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

"""Append groups: on the fast path in one statement, or decided under the write lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from seriatim.core.decide import DecisionTrace, trace_decision
from seriatim.core.kinds import Rules
from seriatim.core.request import AppendRequest, PreparedEvent
from seriatim.store.append_group import PlacedAppend, decide_group, place_in_order
from seriatim.store.contexts import GroupContexts, collect_evaluated_contexts
from seriatim.store.port import Outcome
from seriatim.store.sqlite.consumers import get_now_us
from seriatim.store.sqlite.declarations import SqliteDeclarations
from seriatim.store.sqlite.lookups import (
    SqliteLockedView,
    add_newest_events,
    collect_stream_keys,
    find_stream_heads,
    read_log_state,
)
from seriatim.store.sqlite.statements import (
    INSERT_COLUMNS,
    SQL,
    Row,
    encode_event,
    encode_index_rows,
)


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
    # All reads follow BEGIN IMMEDIATE, so no other process can write before the commit.
    view, rules = _read_view(connection, group, declarations)
    head, budget = view.head(), view.contexts.lock_budget
    if assume_new:
        placed = _require_all_placed(decide_group(group, view, rules, head, recorded_us, budget))
        if placed:
            _insert(connection, placed, recorded_us)
            return list(placed)
    view.look_up_stored(group)
    results = decide_group(group, view, rules, head, recorded_us, budget)
    placed = [result for result in results if isinstance(result, PlacedAppend)]
    if placed:
        _insert(connection, placed, recorded_us)
    return results


def explain_append(
    connection: sqlite3.Connection, request: AppendRequest, declarations: SqliteDeclarations
) -> DecisionTrace:
    """Decide an append in an open read transaction, and return the steps."""
    view, rules = _read_view(connection, [request], declarations)
    view.look_up_stored([request])
    return trace_decision(request, view, rules)


def _read_view(
    connection: sqlite3.Connection, group: Sequence[AppendRequest], declarations: SqliteDeclarations
) -> tuple[SqliteLockedView, Rules]:
    """Read the state that a group is decided on, in the open transaction."""
    head, version, last_seqs = read_log_state(connection, collect_stream_keys(group))
    rules = declarations.load_rules(connection, version)
    contexts = add_newest_events(
        connection, GroupContexts(group, collect_evaluated_contexts(group)), head
    )
    heads = find_stream_heads(connection, group, last_seqs, rules)
    return SqliteLockedView(connection, heads, contexts, head), rules


def _require_all_placed(results: Sequence[PlacedAppend | Outcome]) -> list[PlacedAppend]:
    placed = [result for result in results if isinstance(result, PlacedAppend)]
    return placed if len(placed) == len(results) else []


def _insert(connection: sqlite3.Connection, placed: list[PlacedAppend], recorded_us: int) -> None:
    events: list[Row] = []
    tags: list[Row] = []
    commands: list[Row] = []
    for place in placed:
        first = position = place.first_position
        for event, seq in zip(place.request.events, place.stream_seqs, strict=True):
            events.append((position, first, seq, recorded_us, *encode_event(event)))
            if event.tags or event.term_keys:
                tags.extend(encode_index_rows(event, position))
            position += 1
        command = place.request.command
        if command is not None:
            values = command.command_key, command.request_hash, command.response
            commands.append((*values, first, position - 1, recorded_us))
    connection.executemany(SQL["insert_event"], events)
    if tags:
        connection.executemany(SQL["insert_tag"], tags)
    if commands:
        connection.executemany(SQL["insert_command"], commands)


FAST_PATH_EVENTS_MAX = 64  # each group size is a separate prepared statement
_WIDTH = 5 + len(INSERT_COLUMNS)  # placement values precede the columns of an event
_SEQS_DECODER = msgspec.json.Decoder(list[int | None])


def is_fast_path(group: Sequence[AppendRequest], rules: Rules) -> bool:
    """Return True if the database itself can check all appends of a group."""
    events = 0
    for request in group:
        events += len(request.events)
        if (
            events > FAST_PATH_EVENTS_MAX
            or request.conditions
            or request.command is not None
            or request.rules_version != rules.version
        ):
            return False
        for event in request.events:
            if not _is_fast_path_event(event, rules):
                return False
    return True


def _is_fast_path_event(event: PreparedEvent, rules: Rules) -> bool:
    if event.tags or event.term_keys or event.requested_seq is not None:
        return False
    return event.stream_type is None or not rules.kind_of(event.stream_type).expected_seq_required


class FastPathInsert:
    """The insertion of one group on the fast path."""

    def __init__(self, group: Sequence[AppendRequest], rules: Rules) -> None:
        self._group = group
        self._rules = rules
        self.recorded_us = 0

    def insert(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Insert the whole group in one statement, which commits it.

        Raises:
            sqlite3.IntegrityError: A key or id is stored already, a rule of a stream is broken, or
                the rules have changed.

        """
        self.recorded_us = get_now_us()
        if len(self._group) == len(self._group[0].events) == 1:
            return connection.execute(
                SQL["append_event"], self._encode_single(self._group[0].events[0])
            )
        values = self._encode_group()
        return connection.execute(_build_group_insert(len(values) // _WIDTH), values)

    def _encode_single(self, event: PreparedEvent) -> tuple[Any, ...]:
        first_seq = self._get_first_seq(event)
        placement = (self._rules.version, event.stream_key, first_seq, self.recorded_us)
        return placement + encode_event(event)

    def _encode_group(self) -> list[Any]:
        values: list[Any] = []
        counts: dict[bytes | None, int] = {}  # events of each stream so far
        number = 0
        for request in self._group:
            append_number = number + 1
            for event in request.events:
                number += 1
                seq_offset = counts.get(event.stream_key, 0)
                counts[event.stream_key] = seq_offset + 1
                values += (
                    number,
                    append_number,
                    self._get_first_seq(event),
                    seq_offset,
                    self.recorded_us,
                )
                values += encode_event(event)
        values.append(self._rules.version)
        return values

    def _get_first_seq(self, event: PreparedEvent) -> int | None:
        if event.stream_type is None:
            return None
        return self._rules.kind_of(event.stream_type).first_seq

    def read_placements(self, cursor: sqlite3.Cursor) -> list[PlacedAppend]:
        """Return the placements of the inserted appends; none if the rules have changed."""
        if cursor.rowcount <= 0 or cursor.lastrowid is None:
            return []
        # A position is the row's own id, and those of one statement are consecutive.
        last = cursor.lastrowid
        position = last - cursor.rowcount + 1
        (seqs,) = cursor.connection.execute(SQL["list_stream_seqs"], (position, last)).fetchone()
        return place_in_order(self._group, position, _SEQS_DECODER.decode(seqs))


@cache
def _build_group_insert(events: int) -> str:
    row = f"({', '.join('?' * _WIDTH)})"
    return SQL["append_group"].replace("{rows}", ", ".join([row] * events))

"""The fast path of appends: one statement commits a group that needs nothing but positions.

The statement is its own transaction: it takes the lock, checks the version of the rules, numbers
the events and inserts them. Unique indexes and the trigger reject conflicts; the group then uses
the validated path.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from seriatim.core.kinds import Rules
from seriatim.core.request import AppendRequest, PreparedEvent
from seriatim.store.append_group import PlacedAppend, place_in_order
from seriatim.store.sqlite.consumers import get_now_us
from seriatim.store.sqlite.rows import encode_event
from seriatim.store.sqlite.statements import INSERT_COLUMNS, SQL

FAST_PATH_EVENTS_MAX = 64  # each group size is a separate prepared statement
_WIDTH = 5 + len(INSERT_COLUMNS)
_NUMBERS = msgspec.json.Decoder(list[int | None])


def is_fast_path(group: Sequence[AppendRequest], rules: Rules) -> bool:
    """Return True if the database itself can check all appends of a group."""
    return sum(len(request.events) for request in group) <= FAST_PATH_EVENTS_MAX and all(
        not request.conditions
        and request.command is None
        and request.rules_version == rules.version
        and all(_is_fast_path_event(event, rules) for event in request.events)
        for request in group
    )


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
        """Insert the whole group in one statement, which commits it."""
        self.recorded_us = get_now_us()
        if len(self._group) == len(self._group[0].events) == 1:
            return connection.execute(
                SQL["insert_plain"], self._encode_single(self._group[0].events[0])
            )
        values = self._encode_group()
        return connection.execute(_build_group_insert(len(values) // _WIDTH), values)

    def _encode_single(self, event: PreparedEvent) -> tuple[Any, ...]:
        first_seq = self._get_first_seq(event)
        placement = (self._rules.version, event.stream_key, first_seq, self.recorded_us)
        return placement + encode_event(event)

    def _encode_group(self) -> list[Any]:
        values: list[Any] = []
        before: dict[bytes | None, int] = {}  # earlier events of each stream in the group
        number = 0
        for request in self._group:
            append_number = number + 1
            for event in request.events:
                number += 1
                offset = before.get(event.stream_key, 0)
                before[event.stream_key] = offset + 1
                values += (
                    number,
                    append_number,
                    self._get_first_seq(event),
                    offset,
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
        last = cursor.lastrowid
        position = last - cursor.rowcount + 1
        found = cursor.connection.execute(SQL["stream_seqs"], (position, last)).fetchone()
        return place_in_order(self._group, position, _NUMBERS.decode(found[0]))


@cache
def _build_group_insert(events: int) -> str:
    row = f"({', '.join('?' * _WIDTH)})"
    return SQL["insert_plain_group"].replace("{rows}", ", ".join([row] * events))

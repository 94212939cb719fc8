"""Plain appends: most ask for no more than their place, and one statement can give it.

The statement is its own transaction: it takes the lock, looks at the rules' version, numbers and
inserts. Unique indexes and the trigger object to all else, and then the group is decided in core.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from seriatim.core.kinds import Rules
from seriatim.core.request import Prepared, Request
from seriatim.store.grouping import Placed, placed_in_order
from seriatim.store.sqlite.consumers import now_us
from seriatim.store.sqlite.rows import tail_of
from seriatim.store.sqlite.statements import SQL, TAIL

EVENTS_MAX = 64  # each size has a statement of its own
_WIDTH = 5 + len(TAIL)
_NUMBERS = msgspec.json.Decoder(list[int | None])


def is_plain(group: Sequence[Request], rules: Rules) -> bool:
    """Tell whether no append of a group depends on more than what the database itself checks."""
    return sum(len(request.events) for request in group) <= EVENTS_MAX and all(
        not request.conditions
        and request.command is None
        and request.rules_version == rules.version
        and all(_is_plain(event, rules) for event in request.events)
        for request in group
    )


def _is_plain(event: Prepared, rules: Rules) -> bool:
    if event.tags or event.term_keys or event.given_seq is not None:
        return False
    return event.stream_type is None or not rules.kind_of(event.stream_type).expected_seq_required


class Plain:
    """One plain group on its way into the file."""

    def __init__(self, group: Sequence[Request], rules: Rules) -> None:
        self._group = group
        self._rules = rules
        self.recorded_us = 0

    def insert(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Insert the group and commit, or nothing at all."""
        self.recorded_us = now_us()
        if len(self._group) == len(self._group[0].events) == 1:
            return connection.execute(SQL["insert_plain"], self._alone(self._group[0].events[0]))
        values = self._together()
        return connection.execute(_group_text(len(values) // _WIDTH), values)

    def _alone(self, event: Prepared) -> tuple[Any, ...]:
        first_seq = self._first_seq(event)
        place = (self._rules.version, event.stream_key, first_seq, self.recorded_us)
        return place + tail_of(event)

    def _together(self) -> list[Any]:
        values: list[Any] = []
        before: dict[bytes | None, int] = {}  # how many of a stream stand before in the group
        number = 0
        for request in self._group:
            append_number = number + 1
            for event in request.events:
                number += 1
                nth = before.get(event.stream_key, 0)
                before[event.stream_key] = nth + 1
                values += (number, append_number, self._first_seq(event), nth, self.recorded_us)
                values += tail_of(event)
        values.append(self._rules.version)
        return values

    def _first_seq(self, event: Prepared) -> int | None:
        if event.stream_type is None:
            return None
        return self._rules.kind_of(event.stream_type).first_seq

    def places(self, cursor: sqlite3.Cursor) -> list[Placed]:
        """Return the places that the group was given: none if the rules had changed."""
        if cursor.rowcount <= 0 or cursor.lastrowid is None:
            return []
        last = cursor.lastrowid
        position = last - cursor.rowcount + 1
        found = cursor.connection.execute(SQL["stream_seqs"], (position, last)).fetchone()
        return placed_in_order(self._group, position, _NUMBERS.decode(found[0]))


@cache
def _group_text(events: int) -> str:
    row = f"({', '.join('?' * _WIDTH)})"
    return SQL["insert_plain_group"].replace("{rows}", ", ".join([row] * events))

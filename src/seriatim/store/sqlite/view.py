"""What a decision sees of the file while the write lock is held."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from seriatim.core.decide import Head, View
from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import ExpectedContext, ExpectedSeq, Prepared, Request, StoredCommand
from seriatim.store.sqlite import queries
from seriatim.store.sqlite.lookups import look_up
from seriatim.store.sqlite.rows import Row, record_of
from seriatim.store.sqlite.statements import SQL

# By tenant and identity of the query: the head it was asked at, and its version there.
Foreseen = dict[tuple[str, int], tuple[int, int | None]]


def head(connection: sqlite3.Connection) -> int:
    """Return the highest position, 0 for an empty log."""
    (position,) = connection.execute(SQL["head"]).fetchone()
    return int(position)


def record(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> EventRecord | None:
    """Return the one record a statement finds, if any."""
    row = connection.execute(SQL[name], values).fetchone()
    return None if row is None else record_of(row)


def has_contexts(group: Sequence[Request]) -> bool:
    """Tell whether some append of the group depends on a context."""
    return any(
        isinstance(condition, ExpectedContext)
        for request in group
        for condition in request.conditions
    )


def foresee(connection: sqlite3.Connection, group: Sequence[Request], rules: Rules) -> Foreseen:
    """Evaluate the contexts of a group before the lock is taken.

    The log is immutable and grows at its end only, so what was true up to a head stays true, and
    under the lock no more than the events after it are looked at.
    """
    seen = head(connection)
    found: Foreseen = {}
    for request in group:
        for condition in request.conditions:
            if isinstance(condition, ExpectedContext):
                key = request.tenant_id, id(condition.query)
                version = queries.context_version(
                    connection, request.tenant_id, condition.query, rules, after=0, until=seen
                )
                found[key] = seen, version
    return found


class LockedView(View):
    """The look-ups of a decision, on the connection that holds the lock.

    What the group's events are sure to ask for is looked up at once, for all of them together.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        head: int,
        foreseen: Foreseen,
        group: Sequence[Request],
        rules: Rules,
    ) -> None:
        self._connection = connection
        self._head = head
        self._foreseen = foreseen
        self._rules = rules
        events = [event for request in group for event in request.events]
        self._heads = _heads(connection, _streams(group, events))
        keys = dict.fromkeys(
            (event.idempotency_index,) for event in events if event.idempotency_index is not None
        )
        self._known_keys = _known(connection, "known_keys", list(keys))
        ids = dict.fromkeys(
            (event.event_key, event.tenant_id) for event in events if event.given_id
        )
        self._known_ids = _known(connection, "known_ids", list(ids))

    def stream_head(self, stream_key: bytes) -> Head | None:
        """Return the end of a stream."""
        return self._heads.get(stream_key)

    def by_key(self, idempotency_index: bytes) -> EventRecord | None:
        """Return the event stored under an idempotency key."""
        if (idempotency_index,) not in self._known_keys:
            return None
        return record(self._connection, "by_key", (idempotency_index,))

    def by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        """Return the event with an id."""
        if (event_key, tenant_id) not in self._known_ids:
            return None
        return record(self._connection, "by_id", (event_key, tenant_id))

    def between(self, first: int, last: int) -> tuple[EventRecord, ...]:
        """Return a range of the log."""
        return tuple(map(record_of, self._connection.execute(SQL["between"], (first, last))))

    def context(self, tenant_id: str, query: Query) -> int | None:
        """Return the version of a context now."""
        seen, version = self._foreseen.get((tenant_id, id(query)), (0, None))
        if seen >= self._head:
            return version
        newer = queries.context_version(
            self._connection, tenant_id, query, self._rules, after=seen, until=self._head
        )
        return version if newer is None else newer

    def command(self, command_key: bytes) -> StoredCommand | None:
        """Return what is stored under a command's key."""
        row = self._connection.execute(SQL["command"], (command_key,)).fetchone()
        return None if row is None else StoredCommand(*row)


def _streams(group: Sequence[Request], events: Sequence[Prepared]) -> list[bytes]:
    keys = {event.stream_key for event in events if event.stream_key is not None}
    keys.update(
        stream_key(request.tenant_id, *condition.stream)
        for request in group
        for condition in request.conditions
        if isinstance(condition, ExpectedSeq)
    )
    return list(keys)


def _heads(connection: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, Head]:
    found = look_up(connection, "stream_heads", [(key,) for key in keys])
    return {keys[number]: Head(seq, event_type) for number, seq, event_type in found}


def _known(connection: sqlite3.Connection, name: str, keys: list[Row]) -> set[Row]:
    return {keys[number] for number in look_up(connection, name, keys)}

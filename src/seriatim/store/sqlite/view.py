"""What a decision sees of the file while the write lock is held."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from seriatim.core.decide import ByKey, Head, View
from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import ExpectedContext, ExpectedSeq, Request, StoredCommand
from seriatim.store.contexts import (
    NEWEST_BYTES_MAX,
    NEWEST_EVENTS_MAX,
    ContextKey,
    Contexts,
    Seen,
    contexts_of,
)
from seriatim.store.sqlite import queries
from seriatim.store.sqlite.lookups import look_up
from seriatim.store.sqlite.rows import Row, record_of
from seriatim.store.sqlite.statements import SQL


def head(connection: sqlite3.Connection) -> int:
    """Return the highest position, 0 for an empty log."""
    (position,) = connection.execute(SQL["head"]).fetchone()
    return int(position)


def record(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> EventRecord | None:
    """Return the one record a statement finds, if any."""
    row = connection.execute(SQL[name], values).fetchone()
    return None if row is None else record_of(row)


def by_event_key(connection: sqlite3.Connection) -> ByKey:
    """Return the look-up of the event stored under the key of an id."""
    return lambda tenant_id, key: record(connection, "by_id", (key, tenant_id))


def has_contexts(request: Request) -> bool:
    """Tell whether an append depends on a context."""
    return any(isinstance(condition, ExpectedContext) for condition in request.conditions)


def foresee(
    connection: sqlite3.Connection, request: Request, rules: Rules
) -> dict[ContextKey, Seen]:
    """Evaluate the contexts of an append before the lock is taken, equal ones once."""
    seen = head(connection)
    return {
        key: Seen(
            seen,
            queries.context_version(
                connection, request.tenant_id, query, rules, after=0, until=seen
            ),
        )
        for key, query in contexts_of((request,)).items()
    }


def evaluate(connection: sqlite3.Connection, contexts: Contexts, head: int) -> Contexts:
    """Take into account, under the lock, what was appended since contexts were seen."""
    for tenant_id, after in contexts.behind(head).items():
        values = {
            "tenant": tenant_id,
            "after": after,
            "events": NEWEST_EVENTS_MAX,
            "bytes": NEWEST_BYTES_MAX,
        }
        rows = connection.execute(SQL["newest_of_tenant"], values).fetchall()
        complete = not rows or (len(rows) == rows[0][-1] < NEWEST_EVENTS_MAX)
        newest = (record_of(row[:-1]) for row in rows)
        contexts.add_newest(tenant_id, newest, complete=complete, head=head)
    return contexts


class LockedView(View):
    """The look-ups of a decision, on the connection that holds the lock.

    The ends of the group's streams come with it. That its keys and ids are new is believed until
    `look_up_known`: almost always they are, and the unique indexes object if not.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        heads: dict[bytes, Head],
        contexts: Contexts,
        head: int,
    ) -> None:
        self._connection = connection
        self._heads = heads
        self._contexts = contexts
        self._head = head
        self._known_keys: set[Row] = set()
        self._known_ids: set[Row] = set()
        self._sought_ids: dict[Row, None] | None = None  # before any was looked up

    def look_up_known(self, group: Sequence[Request]) -> None:
        """Find out which keys and ids of the group's events are stored."""
        events = [event for request in group for event in request.events]
        keys = dict.fromkeys(
            (event.idempotency_index,) for event in events if event.idempotency_index is not None
        )
        self._known_keys = _known(self._connection, "known_keys", list(keys))
        ids = dict.fromkeys(
            (event.event_key, event.tenant_id) for event in events if event.given_id
        )
        self._known_ids = _known(self._connection, "known_ids", list(ids))
        self._sought_ids = ids

    def head(self) -> int:
        """Return the log's last position."""
        return self._head

    def stream_head(self, stream_key: bytes) -> Head | None:
        """Return the end of a stream."""
        return self._heads.get(stream_key)

    def by_key(self, idempotency_index: bytes) -> EventRecord | None:
        """Return the event stored under an idempotency key."""
        if (idempotency_index,) not in self._known_keys:
            return None
        return record(self._connection, "by_key", (idempotency_index,))

    def by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        """Return the event stored under the key of an id."""
        sought = self._sought_ids is None or (event_key, tenant_id) in self._sought_ids
        if sought and (event_key, tenant_id) not in self._known_ids:
            return None
        return record(self._connection, "by_id", (event_key, tenant_id))

    def between(self, first: int, last: int) -> tuple[EventRecord, ...]:
        """Return a range of the log."""
        return tuple(map(record_of, self._connection.execute(SQL["between"], (first, last))))

    def context(self, tenant_id: str, query: Query) -> int | None:
        """Return the version of a context now."""
        return self._contexts.version(tenant_id, query)

    def command(self, command_key: bytes) -> StoredCommand | None:
        """Return what is stored under a command's key."""
        row = self._connection.execute(SQL["command"], (command_key,)).fetchone()
        return None if row is None else StoredCommand(*row)


def streams_of(group: Sequence[Request]) -> list[bytes]:
    """Return the streams whose ends matter to a group."""
    keys = {
        event.stream_key
        for request in group
        for event in request.events
        if event.stream_key is not None
    }
    for request in group:
        for condition in request.conditions:
            if isinstance(condition, ExpectedSeq):
                keys.add(stream_key(request.tenant_id, *condition.stream))
    return list(keys)


def heads(
    connection: sqlite3.Connection,
    group: Sequence[Request],
    ends: Mapping[bytes, int | None],
    rules: Rules,
) -> dict[bytes, Head]:
    """Return the ends of streams, with the type of the last event where it may be a closing one."""
    found = {key: Head(seq, "") for key, seq in ends.items() if seq is not None}
    if any(kind.closing_types for kind in map(rules.kind_of, _stream_types(group))):
        keys = list(found)
        for number, seq, event_type in look_up(connection, "stream_heads", [(k,) for k in keys]):
            found[keys[number]] = Head(seq, event_type)
    return found


def _stream_types(group: Sequence[Request]) -> set[str]:
    return {
        event.stream_type
        for request in group
        for event in request.events
        if event.stream_type is not None
    }


def _known(connection: sqlite3.Connection, name: str, keys: list[Row]) -> set[Row]:
    return {keys[number] for number in look_up(connection, name, keys)}

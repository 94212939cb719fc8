"""Look up the state of the log that `decide` needs while the write lock is held."""

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
    """Return the last position of the log, 0 if it is empty."""
    (position,) = connection.execute(SQL["head"]).fetchone()
    return int(position)


def record(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> EventRecord | None:
    """Return the record that a statement finds, None if there is none."""
    row = connection.execute(SQL[name], values).fetchone()
    return None if row is None else record_of(row)


def by_event_key(connection: sqlite3.Connection) -> ByKey:
    """Return a function that finds an event by tenant and event key."""
    return lambda tenant_id, key: record(connection, "by_id", (key, tenant_id))


def has_contexts(request: Request) -> bool:
    """Return True if an append depends on a context."""
    return any(isinstance(condition, ExpectedContext) for condition in request.conditions)


def foresee(
    connection: sqlite3.Connection, request: Request, rules: Rules
) -> dict[ContextKey, Seen]:
    """Evaluate the distinct contexts of an append, before the lock is taken."""
    last = head(connection)
    return {
        key: Seen(
            last,
            queries.context_version(
                connection, request.tenant_id, query, rules, after=0, until=last
            ),
        )
        for key, query in contexts_of((request,)).items()
    }


def evaluate(connection: sqlite3.Connection, contexts: Contexts, head: int) -> Contexts:
    """Match the events appended since the contexts were evaluated, under the lock."""
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
    """The view that `decide` uses, on the connection that holds the write lock.

    All keys and ids of the group are assumed to be new until `look_up_known` is called. Almost
    always they are; if not, the unique indexes reject the insert.
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
        self._looked_up_ids: dict[Row, None] | None = None  # None before `look_up_known`

    def look_up_known(self, group: Sequence[Request]) -> None:
        """Look up which keys and ids of the group's events are stored."""
        events = [event for request in group for event in request.events]
        keys = dict.fromkeys(
            (event.idempotency_index,) for event in events if event.idempotency_index is not None
        )
        self._known_keys = _find_known(self._connection, "known_keys", list(keys))
        ids = dict.fromkeys(
            (event.event_key, event.tenant_id) for event in events if event.given_id
        )
        self._known_ids = _find_known(self._connection, "known_ids", list(ids))
        self._looked_up_ids = ids

    def head(self) -> int:
        """Return the last position of the log."""
        return self._head

    def stream_head(self, stream_key: bytes) -> Head | None:
        """Return the last event of a stream: its sequence number and type."""
        return self._heads.get(stream_key)

    def by_key(self, idempotency_index: bytes) -> EventRecord | None:
        """Return the event stored under an idempotency key."""
        if (idempotency_index,) not in self._known_keys:
            return None
        return record(self._connection, "by_key", (idempotency_index,))

    def by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        """Return the event stored under an event key."""
        looked_up = self._looked_up_ids is None or (event_key, tenant_id) in self._looked_up_ids
        if looked_up and (event_key, tenant_id) not in self._known_ids:
            return None
        return record(self._connection, "by_id", (event_key, tenant_id))

    def between(self, first: int, last: int) -> tuple[EventRecord, ...]:
        """Return the events of a range of positions."""
        return tuple(map(record_of, self._connection.execute(SQL["between"], (first, last))))

    def context(self, tenant_id: str, query: Query) -> int | None:
        """Return the current version of a context."""
        return self._contexts.version(tenant_id, query)

    def command(self, command_key: bytes) -> StoredCommand | None:
        """Return the stored command, None if there is none."""
        row = self._connection.execute(SQL["command"], (command_key,)).fetchone()
        return None if row is None else StoredCommand(*row)


def streams_of(group: Sequence[Request]) -> list[bytes]:
    """Return the keys of the streams that a group appends to or has conditions on."""
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
    """Return the last number of each stream, and the type of the last event where it matters.

    The type is only looked up if a kind of the group has closing events.
    """
    found = {key: Head(seq, "") for key, seq in ends.items() if seq is not None}
    if any(kind.closing_types for kind in map(rules.kind_of, _collect_stream_types(group))):
        keys = list(found)
        for number, seq, event_type in look_up(connection, "stream_heads", [(k,) for k in keys]):
            found[keys[number]] = Head(seq, event_type)
    return found


def _collect_stream_types(group: Sequence[Request]) -> set[str]:
    return {
        event.stream_type
        for request in group
        for event in request.events
        if event.stream_type is not None
    }


def _find_known(connection: sqlite3.Connection, name: str, keys: list[Row]) -> set[Row]:
    return {keys[number] for number in look_up(connection, name, keys)}

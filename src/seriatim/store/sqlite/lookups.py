"""Look up the state that a group of appends needs, many keys in one statement.

That costs a third of one statement per key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from seriatim.core.decide import FindByKey, StoreView, StreamHead
from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest, ExpectedContext, ExpectedSeq, StoredCommand
from seriatim.store.contexts import (
    NEWEST_BYTES_MAX,
    NEWEST_EVENTS_MAX,
    ContextKey,
    EvaluatedContext,
    GroupContexts,
    collect_contexts,
)
from seriatim.store.sqlite import queries
from seriatim.store.sqlite.statements import SQL, Row, decode_record


def read_head(connection: sqlite3.Connection) -> int:
    """Return the last position of the log, 0 if it is empty."""
    (position,) = connection.execute(SQL["select_head"]).fetchone()
    return int(position)


def find_record(
    connection: sqlite3.Connection, name: str, values: Sequence[Any]
) -> EventRecord | None:
    """Return the record that a statement finds, None if there is none."""
    row = connection.execute(SQL[name], values).fetchone()
    return None if row is None else decode_record(row)


def make_event_lookup(connection: sqlite3.Connection) -> FindByKey:
    """Return a function that finds an event by tenant and event key."""
    return lambda tenant_id, key: find_record(connection, "find_event_by_id", (key, tenant_id))


def has_contexts(request: AppendRequest) -> bool:
    """Return True if an append depends on a context."""
    return bool(request.conditions) and any(
        isinstance(condition, ExpectedContext) for condition in request.conditions
    )


def evaluate_contexts(
    connection: sqlite3.Connection, request: AppendRequest, rules: Rules
) -> dict[ContextKey, EvaluatedContext]:
    """Evaluate the distinct contexts of an append, before the lock is taken."""
    head = read_head(connection)
    return {
        key: EvaluatedContext(
            head,
            queries.context_version(
                connection, request.tenant_id, query, rules, after=0, until=head
            ),
        )
        for key, query in collect_contexts((request,)).items()
    }


def add_newest_events(
    connection: sqlite3.Connection, contexts: GroupContexts, head: int
) -> GroupContexts:
    """Match the events appended since the contexts were evaluated, under the lock."""
    for tenant_id, after in contexts.find_stale_tenants(head).items():
        values = {
            "tenant": tenant_id,
            "after": after,
            "events": NEWEST_EVENTS_MAX,
            "bytes": NEWEST_BYTES_MAX,
        }
        rows = connection.execute(SQL["list_newest_events"], values).fetchall()
        # The last column counts the rows without the limit in bytes.
        complete = not rows or (len(rows) == rows[0][-1] < NEWEST_EVENTS_MAX)
        newest = (decode_record(row[:-1]) for row in rows)
        contexts.add_newest_events(tenant_id, newest, complete=complete, head=head)
    return contexts


class SqliteLockedView(StoreView):
    """The view that `decide` uses, on the connection that holds the write lock.

    All keys and ids of the group are assumed to be new until `look_up_stored` is called. Almost
    always they are; if not, the unique indexes reject the insert.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        heads: dict[bytes, StreamHead],
        contexts: GroupContexts,
        head: int,
    ) -> None:
        self._connection = connection
        self._heads = heads
        self.contexts = contexts
        self._head = head
        self._stored_keys: set[Row] = set()
        self._stored_ids: set[Row] = set()
        self._looked_up_ids: dict[Row, None] | None = None  # None before `look_up_stored`

    def look_up_stored(self, group: Sequence[AppendRequest]) -> None:
        """Look up which keys and ids of the group's events are stored."""
        events = [event for request in group for event in request.events]
        keys = dict.fromkeys(
            (event.idempotency_index,) for event in events if event.idempotency_index is not None
        )
        self._stored_keys = _find_stored(self._connection, "find_stored_keys", list(keys))
        ids = dict.fromkeys(
            (event.event_key, event.tenant_id) for event in events if event.has_caller_id
        )
        self._stored_ids = _find_stored(self._connection, "find_stored_ids", list(ids))
        self._looked_up_ids = ids

    def head(self) -> int:
        """Return the last position of the log."""
        return self._head

    def stream_head(self, stream_key: bytes) -> StreamHead | None:
        """Return the last event of a stream: its sequence number and type."""
        return self._heads.get(stream_key)

    def find_by_key(self, idempotency_index: bytes) -> EventRecord | None:
        """Return the event stored under an idempotency key."""
        if (idempotency_index,) not in self._stored_keys:
            return None
        return find_record(self._connection, "find_event_by_key", (idempotency_index,))

    def find_by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        """Return the event stored under an event key."""
        # `decide` may ask for further keys of an id whose first key is taken by another id; these
        # were not part of the look-up.
        looked_up = self._looked_up_ids is None or (event_key, tenant_id) in self._looked_up_ids
        if looked_up and (event_key, tenant_id) not in self._stored_ids:
            return None
        return find_record(self._connection, "find_event_by_id", (event_key, tenant_id))

    def read_range(self, first: int, last: int) -> tuple[EventRecord, ...]:
        """Return the events of a range of positions."""
        return tuple(
            map(decode_record, self._connection.execute(SQL["list_events_in_range"], (first, last)))
        )

    def current_context_version(self, tenant_id: str, query: Query) -> int | None:
        """Return the current version of a context."""
        return self.contexts.version(tenant_id, query)

    def find_command(self, command_key: bytes) -> StoredCommand | None:
        """Return the stored command, None if there is none."""
        row = self._connection.execute(SQL["find_command"], (command_key,)).fetchone()
        return None if row is None else StoredCommand(*row)


def collect_stream_keys(group: Sequence[AppendRequest]) -> list[bytes]:
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


def find_stream_heads(
    connection: sqlite3.Connection,
    group: Sequence[AppendRequest],
    last_seqs: Mapping[bytes, int | None],
    rules: Rules,
) -> dict[bytes, StreamHead]:
    """Return the last number of each stream, and the type of the last event where it matters.

    The type is only looked up if a kind of the group has closing events.

    Args:
        connection: The connection.
        group: The appends.
        last_seqs: The last sequence number of each stream, None for a new one.
        rules: The rules of the stored declarations.

    Returns:
        The head of each existing stream, by stream key.

    """
    heads = {key: StreamHead(seq, "") for key, seq in last_seqs.items() if seq is not None}
    if any(kind.closing_types for kind in map(rules.kind_of, _collect_stream_types(group))):
        keys = list(heads)
        for number, seq, event_type in look_up_keys(
            connection, "find_stream_heads", [(key,) for key in keys]
        ):
            heads[keys[number]] = StreamHead(seq, event_type)
    return heads


def _collect_stream_types(group: Sequence[AppendRequest]) -> set[str]:
    return {
        event.stream_type
        for request in group
        for event in request.events
        if event.stream_type is not None
    }


def _find_stored(connection: sqlite3.Connection, name: str, keys: list[Row]) -> set[Row]:
    return {keys[number] for number in look_up_keys(connection, name, keys)}


_KEYS_MAX = 128  # per statement


def look_up_keys(connection: sqlite3.Connection, name: str, keys: Sequence[Row]) -> list[Any]:
    """Run a statement on many keys and return the decoded entries of its JSON list.

    Args:
        connection: A connection.
        name: The statement; it has a `{rows}` placeholder and numbers the keys from 0.
        keys: The keys.

    """
    decoded: list[Any] = []
    for chunk in _split_keys([(number, *key) for number, key in enumerate(keys)]):
        text = _build_lookup(name, len(chunk), len(chunk[0]))
        (entries,) = connection.execute(text, list(chain.from_iterable(chunk))).fetchone()
        decoded.extend(msgspec.json.decode(entries))
    return decoded


def read_log_state(
    connection: sqlite3.Connection, streams: Sequence[bytes]
) -> tuple[int, int, dict[bytes, int | None]]:
    """Return the head, the version of the rules, and the last sequence number of each stream."""
    last_seqs: dict[bytes, int | None] = {}
    for chunk in _split_keys(streams) if streams else ((),):
        text = _build_log_state(len(chunk))
        head, version, *seqs = connection.execute(text, chunk).fetchone()
        last_seqs.update(zip(chunk, seqs, strict=True))
    return head, version, last_seqs


def _split_keys(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split keys into chunks whose size is a power of two, padded with the last key.

    Few sizes mean few different statements, which stay prepared in the cache of the connection.
    """
    for start in range(0, len(keys), _KEYS_MAX):
        chunk = keys[start : start + _KEYS_MAX]
        size = 1 << (len(chunk) - 1).bit_length()
        yield [*chunk, *[chunk[-1]] * (size - len(chunk))]


@cache
def _build_lookup(name: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return SQL[name].replace("{rows}", ", ".join([row] * rows))


@cache
def _build_log_state(streams: int) -> str:
    return SQL["select_log_state"].replace("{last_seqs}", f", {SQL['select_last_seq']}" * streams)

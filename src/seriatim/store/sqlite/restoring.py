"""Storing the events of an archive exactly as they were."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from seriatim.core.decide import with_free_keys
from seriatim.core.request import Prepared
from seriatim.store.port import Restored, check_next
from seriatim.store.sqlite.rows import tag_rows, tail_of
from seriatim.store.sqlite.statements import SQL
from seriatim.store.sqlite.view import by_event_key


def restore(connection: sqlite3.Connection, events: Sequence[Restored]) -> None:
    """Insert events that follow the head, inside the transaction that is open."""
    (head,) = connection.execute(SQL["head"]).fetchone()
    check_next(head, events)
    taken: set[bytes] = set()
    rows = []
    keyed = with_free_keys([one.event for one in events], by_event_key(connection))
    for one, prepared in zip(events, keyed, strict=True):
        event = _without_shared_key(connection, prepared, taken)
        place = one.position, one.append_position, one.stream_seq, one.recorded_us
        rows.append((*place, *tail_of(event)))
    connection.executemany(SQL["insert_event"], rows)
    tags = [row for one in events for row in tag_rows(one.event, one.position)]
    connection.executemany(SQL["insert_tag"], tags)


def _without_shared_key(
    connection: sqlite3.Connection, event: Prepared, taken: set[bytes]
) -> Prepared:
    """Take the key of a command from the index of keys, where another event of it stands."""
    key = event.idempotency_index
    if key is None:
        return event
    if key in taken or connection.execute(SQL["has_key"], (key,)).fetchone():
        return msgspec.structs.replace(event, idempotency_index=None)
    taken.add(key)
    return event

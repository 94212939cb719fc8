"""Restore archived events unchanged."""

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
    """Insert archived events directly after the head, in the open transaction.

    Raises:
        Conflict: The events do not follow the head.

    """
    (head,) = connection.execute(SQL["head"]).fetchone()
    check_next(head, events)
    used_keys: set[bytes] = set()
    rows = []
    with_keys = with_free_keys([one.event for one in events], by_event_key(connection))
    for one, prepared in zip(events, with_keys, strict=True):
        event = _drop_shared_key(connection, prepared, used_keys)
        placement = one.position, one.append_position, one.stream_seq, one.recorded_us
        rows.append((*placement, *tail_of(event)))
    connection.executemany(SQL["insert_event"], rows)
    tags = [row for one in events for row in tag_rows(one.event, one.position)]
    connection.executemany(SQL["insert_tag"], tags)


def _drop_shared_key(
    connection: sqlite3.Connection, event: Prepared, used_keys: set[bytes]
) -> Prepared:
    """Return the event without its index key if another event of the same command has it."""
    key = event.idempotency_index
    if key is None:
        return event
    if key in used_keys or connection.execute(SQL["has_key"], (key,)).fetchone():
        return msgspec.structs.replace(event, idempotency_index=None)
    used_keys.add(key)
    return event

"""Restore archived events unchanged."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from seriatim.core.decide import assign_event_keys
from seriatim.core.request import PreparedEvent
from seriatim.store.port import RestoredEvent, check_contiguous
from seriatim.store.sqlite.lookups import make_event_lookup
from seriatim.store.sqlite.rows import encode_event, encode_index_rows
from seriatim.store.sqlite.statements import SQL


def restore(connection: sqlite3.Connection, events: Sequence[RestoredEvent]) -> None:
    """Insert archived events directly after the head, in the open transaction.

    Raises:
        Conflict: The events do not follow the head.

    """
    (head,) = connection.execute(SQL["head"]).fetchone()
    check_contiguous(head, events)
    used_keys: set[bytes] = set()
    rows = []
    with_keys = assign_event_keys([one.event for one in events], make_event_lookup(connection))
    for one, prepared in zip(events, with_keys, strict=True):
        event = _drop_shared_key(connection, prepared, used_keys)
        placement = one.position, one.append_position, one.stream_seq, one.recorded_us
        rows.append((*placement, *encode_event(event)))
    connection.executemany(SQL["insert_event"], rows)
    tags = [row for one in events for row in encode_index_rows(one.event, one.position)]
    connection.executemany(SQL["insert_tag"], tags)


def _drop_shared_key(
    connection: sqlite3.Connection, event: PreparedEvent, used_keys: set[bytes]
) -> PreparedEvent:
    """Return the event without its index key if another event of the same command has it."""
    key = event.idempotency_index
    if key is None:
        return event
    if key in used_keys or connection.execute(SQL["has_key"], (key,)).fetchone():
        return msgspec.structs.replace(event, idempotency_index=None)
    used_keys.add(key)
    return event

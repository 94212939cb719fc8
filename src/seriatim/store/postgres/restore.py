"""Restore archived events unchanged."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec
import psycopg

from seriatim.config import Settings
from seriatim.core.decide import assign_event_keys
from seriatim.core.event import EventRecord
from seriatim.store.port import RestoredEvent, check_contiguous
from seriatim.store.postgres.binary_format import (
    RowArray,
    RowArrayDumper,
    encode_array,
    encode_event,
)
from seriatim.store.postgres.connection import Connection, ServerInfo
from seriatim.store.postgres.lock import locked_transaction
from seriatim.store.postgres.rows import decode_record
from seriatim.store.postgres.statements import load_store_statements


def restore(
    connection: Connection,
    schema: str,
    server_info: ServerInfo,
    settings: Settings,
    events: Sequence[RestoredEvent],
) -> None:
    """Insert archived events directly after the head, under the log's lock.

    Args:
        connection: A connection in autocommit mode.
        schema: The schema of the log.
        server_info: The lock key and type oids of the log.
        settings: The time limits.
        events: The events, in order of position.

    Raises:
        Conflict: The events do not follow the head.

    """
    try:
        _insert(connection, schema, server_info, settings, events)
    except psycopg.errors.UniqueViolation:
        # Two event ids may hash to one key: the later one is stored under its next key.
        named = load_store_statements(schema)

        def find_by_key(tenant_id: str, key: bytes) -> EventRecord | None:
            values = (uuid.UUID(bytes=key), tenant_id)
            row = connection.execute(named["event_by_id"], values, binary=True).fetchone()
            return None if row is None else decode_record(row)

        with_keys = assign_event_keys([one.event for one in events], find_by_key)
        pairs = zip(events, with_keys, strict=True)
        rekeyed = [msgspec.structs.replace(one, event=event) for one, event in pairs]
        if rekeyed == list(events):
            raise
        _insert(connection, schema, server_info, settings, rekeyed)


def _insert(
    connection: Connection,
    schema: str,
    server_info: ServerInfo,
    settings: Settings,
    events: Sequence[RestoredEvent],
) -> None:
    named = load_store_statements(schema)
    rows = [
        encode_event(one.event, one.position - one.append_position, one.stream_seq, 0)
        for one in events
    ]
    values = {
        "head": events[0].position - 1,
        "rows": encode_array(server_info.row_array, server_info.row_type, rows),
        "times": [one.recorded_us for one in events],
    }
    with (
        locked_transaction(connection, schema, server_info, settings),
        connection.cursor(binary=True) as cursor,
    ):
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        row = cursor.execute(named["head"]).fetchone()
        check_contiguous(0 if row is None else int(row[0]), events)
        cursor.execute(named["restore_events"], values)

"""Decode database rows."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.event import EventRecord
from seriatim.core.times import format_us
from seriatim.store.port import Cursor

_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


def decode_record(row: tuple[Any, ...]) -> EventRecord:
    """Build a record from a row with `statements.RECORD_COLUMNS`; further columns are ignored."""
    recorded_at = format_us(row[10])
    fields = (
        *row[:9],
        row[9] or recorded_at,
        recorded_at,
        *row[11:22],
        {} if row[22] is None else _decode_metadata(row[22]),
        row[23],
        HASH_PREFIX + bytes(row[24]).hex(),
        () if row[25] is None else _decode_tags(row[25]),
    )
    return EventRecord(*fields)


def decode_cursor(row: tuple[Any, ...]) -> Cursor:
    """Build a cursor from a row."""
    tenant_id, purpose, name, position, log_id, epoch, last_event_id, query, updated_us = row
    return Cursor(
        tenant_id=tenant_id,
        purpose=purpose,
        name=name,
        position=position,
        log_id=log_id,
        epoch=epoch,
        last_event_id=last_event_id,
        query=query,
        updated_at=format_us(updated_us),
    )

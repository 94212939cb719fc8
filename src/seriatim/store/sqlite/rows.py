"""Encode prepared events as rows, and decode rows."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.core.canonical import HASH_PREFIX, canonical_text
from seriatim.core.event import EventRecord
from seriatim.core.request import PreparedEvent
from seriatim.core.times import format_us
from seriatim.store.sqlite.statements import COLUMN_NAMES

Row = tuple[Any, ...]

_METADATA_DECODER = msgspec.json.Decoder(dict[str, str])
_TAGS_DECODER = msgspec.json.Decoder(tuple[str, ...])
_OCCURRED, _RECORDED, _METADATA, _HASH, _TAGS = map(
    COLUMN_NAMES.index, ("occurred_at", "recorded_us", "metadata", "payload_hash", "tags")
)


def encode_event(event: PreparedEvent) -> Row:
    """Return the values of an event for `INSERT_COLUMNS`, without its placement columns."""
    return (
        event.event_id,
        event.tenant_id,
        event.stream_type,
        event.stream_id,
        event.event_type,
        event.event_version,
        event.occurred_at,
        event.producer_id,
        event.source_system,
        event.source_subsystem,
        event.actor_type,
        event.actor_id,
        event.request_id,
        event.correlation_id,
        event.causation_id,
        event.idempotency_key,
        event.app_id,
        event.env_id,
        canonical_text(dict(event.metadata)) if event.metadata else None,
        event.payload,
        bytes.fromhex(event.payload_hash[len(HASH_PREFIX) :]),
        canonical_text(event.tags) if event.tags else None,
        event.occurred_us,
        event.event_key,
        event.stream_key,
        event.idempotency_index,
    )


def encode_index_rows(event: PreparedEvent, position: int) -> list[Row]:
    """Return the rows of `event_tags` for the tags and index terms of an event."""
    return [(key, position) for key in event.index_keys()]


def decode_record(row: Row) -> EventRecord:
    """Build a record from a row with `RECORD_COLUMNS`."""
    fields = list(row)
    recorded_at = fields[_RECORDED] = format_us(row[_RECORDED])
    fields[_OCCURRED] = row[_OCCURRED] or recorded_at
    metadata, _, payload_hash, tags = row[_METADATA:]
    fields[_METADATA] = {} if metadata is None else _METADATA_DECODER.decode(metadata)
    fields[_HASH] = HASH_PREFIX + payload_hash.hex()
    fields[_TAGS] = () if tags is None else _TAGS_DECODER.decode(tags)
    return EventRecord(*fields)

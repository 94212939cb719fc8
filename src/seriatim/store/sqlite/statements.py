"""Load named statements from the SQL files of this package."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from seriatim.core.canonical import HASH_PREFIX, canonical_text
from seriatim.core.event import RECORD_COLUMNS as FIELD_COLUMNS
from seriatim.core.event import EventRecord
from seriatim.core.request import PreparedEvent
from seriatim.core.times import format_us

_HERE = files("seriatim.store.sqlite")
_NAME = "-- name: "

# The columns of a record in the order of EventRecord; `rows` converts some of them to text.
COLUMN_NAMES = tuple("recorded_us" if name == "recorded_at" else name for name in FIELD_COLUMNS)
# The columns of an inserted row after its placement, which is known last.
_PLACEMENT = ("position", "append_position", "stream_seq", "recorded_us")
_KEYS = ("occurred_us", "event_key", "stream_key", "idempotency_index")
INSERT_COLUMNS = (*(name for name in COLUMN_NAMES if name not in _PLACEMENT), *_KEYS)
RECORD_COLUMNS = ", ".join(f"events.{name}" for name in COLUMN_NAMES)

_COLUMN_LISTS = {
    "{columns}": RECORD_COLUMNS,
    "{insert_columns}": ", ".join(INSERT_COLUMNS),
    "{insert_placeholders}": ", ".join("?" * len(INSERT_COLUMNS)),
}


def read_sql(path: str) -> str:
    """Return the text of a SQL file in this package."""
    return (_HERE / path).read_text(encoding="utf-8")


def load_sqlite_statements(path: str) -> dict[str, str]:
    """Return the statements of a SQL file by name, with column lists filled in."""
    statements: dict[str, str] = {}
    for part in read_sql(path).split(_NAME)[1:]:
        name, _, text = part.partition("\n")
        for placeholder, columns in _COLUMN_LISTS.items():
            text = text.replace(placeholder, columns)
        statements[name.strip()] = text.strip()
    return statements


def split_script(text: str) -> Iterator[str]:
    """Split a script into statements; the body of a trigger is not split."""
    statement = ""
    for line in text.splitlines():
        if not statement and (not line.strip() or line.startswith("--")):
            continue
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


SQL = load_sqlite_statements("statements.sql")
INDEX_SCANS = load_sqlite_statements("index_scans.sql")
CHECKS = load_sqlite_statements("checks.sql")


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

"""The store's SQL, read once from the .sql files beside this module and called by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files

_HERE = files("seriatim.store.sqlite")
_NAME = "-- name: "

# A record's columns in the order of EventRecord, except for what `rows` turns into text.
COLUMNS = (
    "position",
    "append_position",
    "event_id",
    "tenant_id",
    "stream_type",
    "stream_id",
    "stream_seq",
    "event_type",
    "event_version",
    "occurred_at",
    "recorded_us",
    "producer_id",
    "source_system",
    "source_subsystem",
    "actor_type",
    "actor_id",
    "request_id",
    "correlation_id",
    "causation_id",
    "idempotency_key",
    "app_id",
    "env_id",
    "metadata",
    "payload",
    "payload_hash",
    "tags",
)
# A row's columns after its place in the log, which is known last, and its index keys.
_PLACE = ("position", "append_position", "stream_seq", "recorded_us")
_KEYS = ("occurred_us", "event_key", "stream_key", "idempotency_index")
TAIL = (*(name for name in COLUMNS if name not in _PLACE), *_KEYS)
SELECTED = ", ".join(f"events.{name}" for name in COLUMNS)

_COLUMN_LISTS = {
    "{columns}": SELECTED,
    "{tail}": ", ".join(TAIL),
    "{tail_values}": ", ".join("?" * len(TAIL)),
}


def script(path: str) -> str:
    """Return the text of a .sql file."""
    return (_HERE / path).read_text(encoding="utf-8")


def named(path: str) -> dict[str, str]:
    """Return the statements of a file by name, with the columns of records and rows filled in."""
    found: dict[str, str] = {}
    for part in script(path).split(_NAME)[1:]:
        name, _, text = part.partition("\n")
        for hole, columns in _COLUMN_LISTS.items():
            text = text.replace(hole, columns)
        found[name.strip()] = text.strip()
    return found


def split(text: str) -> Iterator[str]:
    """Split a script into statements, a trigger's body staying whole."""
    statement = ""
    for line in text.splitlines():
        if not statement and (not line.strip() or line.startswith("--")):
            continue
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


SQL = named("statements.sql")
WALKS = named("walks.sql")
CHECKS = named("checks.sql")

"""Load named statements from the SQL files and fill in the schema of a log."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any, LiteralString

import msgspec

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import RECORD_COLUMNS as FIELD_COLUMNS
from seriatim.core.event import EventRecord
from seriatim.core.times import format_us

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")

# The columns of a record in the order of EventRecord; `decode_record` converts some of them.
_COMPUTED_COLUMNS = {
    "event_id": "coalesce(e.event_id, e.event_key::text)",
    "recorded_at": "e.recorded_us",
}
RECORD_COLUMNS = ", ".join(_COMPUTED_COLUMNS.get(name, f"e.{name}") for name in FIELD_COLUMNS)


def check_schema(schema: str) -> str:
    """Return the schema name if it needs no quoting, else raise `InvalidArgument`."""
    if _SCHEMA.fullmatch(schema) is None:
        msg = "schema must be a plain name of at most 41 letters, digits and underscores"
        raise InvalidArgument(msg, details={"argument": "schema"})
    return schema


def get_channel_name(schema: str) -> str:
    """Return the NOTIFY channel on which a log announces new events."""
    return f"seriatim_{schema}"


def render_sql(text: str, schema: str) -> LiteralString:
    """Fill in the placeholders of a SQL text; `check_schema` has validated the name."""
    return (
        text.replace("{schema}", f'"{schema}"')
        .replace("{schema_text}", f"""'"{schema}"'""")
        .replace("{channel}", f"'{get_channel_name(schema)}'")
        .replace("{columns}", RECORD_COLUMNS)
    )


def read_sql(name: str) -> str:
    """Return the text of a SQL file in this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def load_store_statements(schema: str) -> dict[str, LiteralString]:
    """Return the statements of `statements.sql` for a log in this schema."""
    return load_postgres_statements("statements.sql", schema)


@lru_cache(maxsize=64)
def load_postgres_statements(file: str, schema: str) -> dict[str, LiteralString]:
    """Return the statements of a SQL file by name."""
    parts = _NAME.split(read_sql(file))
    return {
        name: render_sql(body.strip().rstrip(";"), schema)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def list_migrations() -> list[tuple[int, str, str]]:
    """Return all migrations as (number, name, text), in order."""
    folder = files(__package__).joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), name[5:-4], read_sql(f"migrations/{name}")) for name in names]


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

"""Load a large log in bulk: rows without triggers and indexes, which are restored afterwards."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import psycopg
from psycopg import sql

import seriatim
from bench.console.consumers import add_consumers
from bench.console.rows import APPEND, ROW_COLUMNS, Row, make_rows
from bench.postgres import vacuum_and_checkpoint
from seriatim.factory import sqlite_path

_COPY_BYTES = 1 << 20
_TAG_KEY_BYTES = 16
_EVENT_ID = ROW_COLUMNS.index("event_id")
_BINARY = tuple(
    ROW_COLUMNS.index(name)
    for name in ("event_key", "stream_key", "idempotency_index", "payload_hash")
)


def load_log(url: str, events: int) -> None:
    """Create a log with generated events, projections and handlers.

    Args:
        url: The URL of a database without a log.
        events: The number of events, rounded down to whole appends.
    """
    with seriatim.open(url):
        pass  # creates the tables
    events -= events % APPEND
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(sqlite_path(url), isolation_level=None)) as connection:
            _fill_sqlite(connection, events)
        add_consumers(url)
    else:
        with psycopg.connect(url, autocommit=True) as connection_:
            _fill_postgres(connection_, events)
        add_consumers(url)
        vacuum_and_checkpoint(url)


# -- Postgres


def _fill_postgres(connection: psycopg.Connection, events: int) -> None:
    indexes = connection.execute(
        "select indexname, indexdef from pg_indexes where schemaname = 'seriatim'"
        " and tablename = 'events' and indexname <> 'events_position'"
    ).fetchall()
    connection.execute("set maintenance_work_mem = '512MB'")
    for table in ("events", "event_tags"):
        connection.execute(_on_table("alter table {} disable trigger user", table))
    for name, _ in indexes:
        connection.execute(sql.SQL("drop index seriatim.{}").format(sql.Identifier(name)))
    tags: list[bytes] = []
    names = [name for name in ROW_COLUMNS if name != "event_id"]  # it is the event key
    _copy(connection, "events", names, map(_format_row, make_rows(events, tags)))
    _copy(connection, "event_tags", ["tag_key", "position"], map(_format_tag, sorted(tags)))
    for _, definition in indexes:
        connection.execute(definition.encode())
    for table in ("events", "event_tags"):
        connection.execute(_on_table("alter table {} enable trigger user", table))


def _on_table(text: str, table: str) -> sql.Composed:
    return sql.SQL(text).format(sql.Identifier("seriatim", table))


def _copy(
    connection: psycopg.Connection, table: str, columns: list[str], lines: Iterator[str]
) -> None:
    into = sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier("seriatim", table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(into) as copy:
        held, size = [], 0
        for line in lines:
            held.append(line)
            size += len(line)
            if size >= _COPY_BYTES:
                copy.write("".join(held))
                held, size = [], 0
        copy.write("".join(held))


def _format_row(row: Row) -> str:
    """Return a line of COPY; the values contain no characters that need escaping."""
    values = list(row)
    for index in _BINARY:
        if (value := values[index]) is not None:
            values[index] = value.hex()
    values[_BINARY[-1]] = f"\\\\x{values[_BINARY[-1]]}"
    del values[_EVENT_ID]
    return "\t".join(["\\N" if value is None else str(value) for value in values]) + "\n"


def _format_tag(tag: bytes) -> str:
    return f"{tag[:_TAG_KEY_BYTES].hex()}\t{int.from_bytes(tag[_TAG_KEY_BYTES:], 'big')}\n"


# -- SQLite


def _fill_sqlite(connection: sqlite3.Connection, events: int) -> None:
    dropped = connection.execute(
        "select type, name, sql from sqlite_master where sql is not null"
        " and (type = 'index' and tbl_name = 'events'"
        " or type = 'trigger' and tbl_name in ('events', 'event_tags'))"
    ).fetchall()
    # Without a journal, each page is written once; a failed run is thrown away.
    for setting in (
        "journal_mode = delete",
        "journal_mode = off",
        "synchronous = off",
        "cache_size = -524288",
    ):
        connection.execute(f"pragma {setting}")
    connection.execute("begin")
    for kind, name, _ in dropped:
        connection.execute(f"drop {kind} {name}")
    tags: list[bytes] = []
    marks = ", ".join("?" * len(ROW_COLUMNS))
    connection.executemany(
        f"insert into events ({', '.join(ROW_COLUMNS)}) values ({marks})",
        make_rows(events, tags),
    )
    connection.executemany(
        "insert into event_tags (tag_key, position) values (?, ?)",
        (
            (tag[:_TAG_KEY_BYTES], int.from_bytes(tag[_TAG_KEY_BYTES:], "big"))
            for tag in sorted(tags)
        ),
    )
    for _, _, definition in dropped:
        connection.execute(definition)
    connection.execute("commit")
    connection.execute("pragma journal_mode = wal")

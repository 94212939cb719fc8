"""Create a log's schema, upgrade an old one, and refuse one that is too new."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from seriatim.core.decide import assign_event_keys
from seriatim.core.request import PreparedEvent
from seriatim.store.port import RestoredEvent, check_contiguous
from seriatim.store.sqlite import failures
from seriatim.store.sqlite.connection import DatabaseFile
from seriatim.store.sqlite.lookups import make_event_lookup
from seriatim.store.sqlite.statements import (
    SQL,
    encode_event,
    encode_index_rows,
    read_sql,
    split_script,
)
from seriatim.store.sqlite.writer import SqliteWriter

MIGRATIONS = (
    "0001_initial.sql",
    "0002_reading.sql",
    "0003_reads.sql",
    "0004_actors.sql",
    "0005_attempts.sql",
)
SCHEMA_VERSION = len(MIGRATIONS)
OLDEST_PROGRAM = 1  # the oldest program, by the schema version it was made for, that still works
APPLICATION_ID = 0x53455249  # "SERI", so that file(1) can identify the file


def ensure_schema(file: DatabaseFile, writer: SqliteWriter, *, create: bool) -> None:
    """Open the file and create or upgrade its schema.

    Args:
        file: The file of the log.
        writer: The writer, which opens its connection.
        create: Whether to create a missing log.

    Raises:
        BackendFailure: There is no log and `create` is False, the file belongs to another program,
            or its schema is too new.

    """
    if not create and not Path(file.path).exists():
        msg = f"there is no log at {file.path}: check the path, or create it"
        raise failures.make_permanent_failure(msg)
    writer.connect(create=create)
    file.record_inode()
    with writer.transaction(bounded=False) as connection:
        # Under the write lock: of several processes only one creates or upgrades the schema.
        version = read_schema_version(connection)
        if version == SCHEMA_VERSION:
            return
        if version == 0:
            _create(connection, file.path, create=create)
        elif version < SCHEMA_VERSION:
            apply_migrations(connection, version)
        else:
            _check_newer(connection, file.path, version)


def read_schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema, 0 if there is none."""
    (version,) = connection.execute("pragma user_version").fetchone()
    return int(version)


def _create(connection: sqlite3.Connection, path: str, *, create: bool) -> None:
    (tables,) = connection.execute("select count(*) from sqlite_schema").fetchone()
    if tables:
        msg = f"{path} contains tables of another program: use a separate file for the log"
        raise failures.make_permanent_failure(msg)
    if not create:
        msg = f"{path} is an empty database without a log: check the path, or create it"
        raise failures.make_permanent_failure(msg)
    apply_migrations(connection, 0)


def apply_migrations(connection: sqlite3.Connection, version: int) -> None:
    """Apply the migrations after `version` in the open transaction; 0 creates a new log."""
    for number, name in enumerate(MIGRATIONS[version:], start=version + 1):
        run_script(connection, f"migrations/{name}")
        _record_version(connection, number)
    if version == 0:
        _insert_identity(connection)


def run_script(connection: sqlite3.Connection, path: str) -> None:
    """Run the statements of a SQL file in the open transaction."""
    for statement in split_script(read_sql(path)):
        connection.execute(statement)


def _record_version(connection: sqlite3.Connection, version: int) -> None:
    connection.execute(f"pragma user_version = {version}")
    connection.execute(f"pragma application_id = {APPLICATION_ID}")
    connection.execute(
        "insert or replace into seriatim_schema (one, version, works_from) values (1, ?, ?)",
        (version, min(version, OLDEST_PROGRAM)),
    )


def _insert_identity(connection: sqlite3.Connection) -> None:
    connection.execute(
        "insert into log (one, log_id, epoch, created_us) values (1, ?, 1, ?)",
        (str(uuid.uuid4()), time.time_ns() // 1000),
    )


def _check_newer(connection: sqlite3.Connection, path: str, version: int) -> None:
    (works_from,) = connection.execute("select works_from from seriatim_schema").fetchone()
    if works_from > SCHEMA_VERSION:
        msg = (
            f"{path} has schema version {version}, but this program supports only "
            f"{SCHEMA_VERSION}: upgrade the package"
        )
        raise failures.make_permanent_failure(msg)


def restore(connection: sqlite3.Connection, events: Sequence[RestoredEvent]) -> None:
    """Insert archived events directly after the head, in the open transaction.

    Raises:
        Conflict: The events do not follow the head.

    """
    (head,) = connection.execute(SQL["select_head"]).fetchone()
    check_contiguous(head, events)
    used_keys: set[bytes] = set()
    rows = []
    with_keys = assign_event_keys(
        [restored.event for restored in events], make_event_lookup(connection)
    )
    for restored, prepared in zip(events, with_keys, strict=True):
        event = _drop_shared_key(connection, prepared, used_keys)
        rows.append(
            (
                restored.position,
                restored.append_position,
                restored.stream_seq,
                restored.recorded_us,
                *encode_event(event),
            )
        )
    connection.executemany(SQL["insert_event"], rows)
    tags = [
        row for restored in events for row in encode_index_rows(restored.event, restored.position)
    ]
    connection.executemany(SQL["insert_tag"], tags)


def _drop_shared_key(
    connection: sqlite3.Connection, event: PreparedEvent, used_keys: set[bytes]
) -> PreparedEvent:
    """Return the event without its index key if another event of the same command has it."""
    key = event.idempotency_index
    if key is None:
        return event
    if key in used_keys or connection.execute(SQL["find_idempotency_key"], (key,)).fetchone():
        return msgspec.structs.replace(event, idempotency_index=None)
    used_keys.add(key)
    return event

"""Create and upgrade a log's schema, without blocking its writers."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from typing import LiteralString

import msgspec
import psycopg
from psycopg import sql

from seriatim.config import Settings
from seriatim.core.decide import assign_event_keys
from seriatim.core.errors import BackendFailure
from seriatim.core.event import EventRecord
from seriatim.store.port import RestoredEvent, check_contiguous
from seriatim.store.postgres.binary_format import (
    RowArray,
    RowArrayDumper,
    encode_array,
    encode_event,
)
from seriatim.store.postgres.connection import (
    Connection,
    LogAddress,
    ServerInfo,
    bounded_transaction,
    check_server_version,
    connect,
    locked_transaction,
    parse_url,
)
from seriatim.store.postgres.failures import translate_error
from seriatim.store.postgres.statements import (
    decode_record,
    list_migrations,
    load_store_statements,
    render_sql,
)

SCHEMA_VERSION = 9
# The oldest program, by the schema version it was made for, that works after each migration.
OLDEST_PROGRAM = {1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1}
_DDL_ATTEMPTS_MAX = 50
_LOCK_POLL_S = 0.1
_INDEX = re.compile(r"create index (?:if not exists) (\w+)\b[^;]*;")

_CREATE_MIGRATIONS_TABLE = """
create schema if not exists {schema};
create table if not exists {schema}.migrations (
    version        integer     primary key,
    name           text        not null,
    oldest_program integer     not null,
    applied_at     timestamptz not null default now()
);
"""
_SELECT_VERSION = "select max(version), max(oldest_program) from {schema}.migrations"
_INSERT_MIGRATION = (
    "insert into {schema}.migrations (version, name, oldest_program) values (%s, %s, %s)"
)
_HAS_EVENTS_TABLE = "select to_regclass({schema_text} || '.events') is not null"
_IS_INDEX_VALID = """
select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid
where c.relname = %s and c.relnamespace = {schema_text}::regnamespace
"""
_HAS_MIGRATIONS_TABLE = "select to_regclass({schema_text} || '.migrations') is not null"

_GRANTS = """
grant usage on schema {schema} to {role};
grant select on all tables in schema {schema} to {role};
grant insert on {schema}.events, {schema}.event_tags, {schema}.declarations,
                {schema}.stream_kinds, {schema}.kind_types to {role};
grant insert, delete on {schema}.commands to {role};
grant insert, update on {schema}.cursors, {schema}.leases to {role};
grant insert, update, delete on {schema}.skipped_batches to {role};
grant execute on all functions in schema {schema} to {role};
"""


def migrate(url: str, *, target: int | None = None) -> int:
    """Create or upgrade the schema of the log at a URL, and return its version.

    Args:
        url: The URL of the log.
        target: The version to upgrade to; None for the newest.

    Raises:
        BackendFailure: The database cannot be reached, or the role lacks privileges.

    """
    address = parse_url(url, Settings())
    with connect(address) as connection:
        return apply_migrations(connection, address, target=target)


def apply_migrations(
    connection: Connection, address: LogAddress, *, target: int | None = None
) -> int:
    """Apply the missing migrations, each in its own short transaction.

    Args:
        connection: A connection in autocommit mode.
        address: The address of the log.
        target: The version to upgrade to; None for the newest.

    Returns:
        The version of the schema.

    Raises:
        BackendFailure: A statement failed; the migrations before it are applied.

    """
    version = SCHEMA_VERSION if target is None else target
    try:
        for number, name, text in list_migrations():
            if number <= version:
                _build_indexes(connection, address, number, text)
                _apply(connection, address.schema, number, name, text)
    except psycopg.Error as error:
        raise translate_error(error, "migrating the log's schema", schema=address.schema) from error
    return version


def _apply(connection: Connection, schema: str, number: int, name: str, text: str) -> None:
    """Apply a migration unless it was applied; DDL that must wait backs off and retries."""
    for attempt in range(_DDL_ATTEMPTS_MAX):
        try:
            # Bounded: the server ends a process that stalls with a lock after lock_hold_s, and
            # cancels statements that hold one longer. Slow work on a large log needs no lock.
            with bounded_transaction(connection, Settings()):
                connection.execute(_build_migration_lock(schema))
                # DDL that waits for the lock of a table blocks every later statement on it, so it
                # gives up soon and tries again.
                connection.execute("set local lock_timeout = '200ms'")
                connection.execute(render_sql(_CREATE_MIGRATIONS_TABLE, schema))
                row = connection.execute(render_sql(_SELECT_VERSION, schema)).fetchone()
                # Checked under the lock: another process may have applied it meanwhile.
                if row is not None and (row[0] or 0) >= number:
                    return
                connection.execute(render_sql(text, schema))
                values = (number, name, OLDEST_PROGRAM[number])
                connection.execute(render_sql(_INSERT_MIGRATION, schema), values)
        except psycopg.errors.LockNotAvailable:
            if attempt == _DDL_ATTEMPTS_MAX - 1:
                raise
            time.sleep(0.1)
        else:
            return


def _build_indexes(connection: Connection, address: LogAddress, number: int, text: str) -> None:
    """Build a migration's indexes concurrently, which is not possible inside a transaction.

    An empty log gets its indexes with the rest of the migration. Concurrent migrations serialize on
    an advisory lock. They poll for it: a statement that waits holds a snapshot, and CREATE INDEX
    CONCURRENTLY waits for older snapshots.
    """
    indexes = list(_INDEX.finditer(text))
    if not indexes or not _has_events(connection, address.schema):
        return
    with connect(address) as locker:
        while True:
            with locker.transaction():
                # This transaction is idle while the other connection builds the indexes.
                locker.execute("set local idle_in_transaction_session_timeout = 0")
                row = locker.execute(_build_index_lock(address.schema)).fetchone()
                if row is not None and row[0]:
                    if read_schema_version(connection, address)[0] < number:
                        for index in indexes:
                            _build_index(connection, address.schema, index)
                    return
            time.sleep(_LOCK_POLL_S)


def _build_index(connection: Connection, schema: str, index: re.Match[str]) -> None:
    """Build one index concurrently; replace an invalid one of an interrupted build."""
    name = f'"{schema}".{index[1]}'
    valid = connection.execute(render_sql(_IS_INDEX_VALID, schema), (index[1],)).fetchone()
    if valid is not None and not valid[0]:
        connection.execute(f"drop index concurrently if exists {name}")
    connection.execute(render_sql(index[0].replace(" index ", " index concurrently ", 1), schema))


def _has_events(connection: Connection, schema: str) -> bool:
    exists = connection.execute(render_sql(_HAS_EVENTS_TABLE, schema)).fetchone()
    if exists is None or not exists[0]:
        return False
    return (
        connection.execute(render_sql("select from {schema}.events limit 1", schema)).rowcount == 1
    )


def _build_index_lock(schema: str) -> LiteralString:
    return f"select pg_try_advisory_xact_lock(hashtextextended('seriatim indexes {schema}', 0))"


def _build_migration_lock(schema: str) -> LiteralString:
    return f"select pg_advisory_xact_lock(hashtextextended('seriatim migrations {schema}', 0))"


def read_schema_version(connection: Connection, address: LogAddress) -> tuple[int, int]:
    """Return the schema version and the oldest program that works with it; zeros without a log."""
    exists = connection.execute(render_sql(_HAS_MIGRATIONS_TABLE, address.schema)).fetchone()
    if exists is None or not exists[0]:
        return 0, 0
    row = connection.execute(render_sql(_SELECT_VERSION, address.schema)).fetchone()
    return (row[0] or 0, row[1] or 0) if row is not None else (0, 0)


def ensure_schema(connection: Connection, address: LogAddress, *, create: bool) -> None:
    """Check that this program can use the schema; create it if it does not exist.

    Args:
        connection: A connection in autocommit mode.
        address: The address of the log.
        create: Whether to create a missing schema.

    Raises:
        BackendFailure: There is no log and `create` is False, or its version does not fit.

    """
    check_server_version(connection, address)
    try:
        version, oldest_program = read_schema_version(connection, address)
    except psycopg.Error as error:
        raise translate_error(
            error, "reading the schema's version", schema=address.schema
        ) from error
    if version == 0:
        if not create:
            msg = f"there is no log in schema {address.schema} of this database: run seriatim init"
            raise BackendFailure(msg, retryable=False)
        apply_migrations(connection, address)
    elif version < SCHEMA_VERSION:
        msg = (
            f"the log in schema {address.schema} has schema version {version}, but this program "
            f"requires {SCHEMA_VERSION}: run seriatim init"
        )
        raise BackendFailure(msg, retryable=False, details={"version": version})
    elif oldest_program > SCHEMA_VERSION:
        msg = (
            f"the log in schema {address.schema} has schema version {version}, but this program "
            f"supports only {SCHEMA_VERSION}: upgrade the package"
        )
        raise BackendFailure(msg, retryable=False, details={"version": version})


def grant(url: str, role: str) -> None:
    """Grant an application role the privileges to append and read; it cannot change events.

    Args:
        url: The URL of the log, as a role that owns the schema.
        role: The name of the role.

    Raises:
        BackendFailure: The role does not exist, or the caller may not grant.

    """
    address = parse_url(url, Settings())
    with connect(address) as connection:
        quoted = sql.Identifier(role).as_string(connection)
        try:
            connection.execute(render_sql(_GRANTS, address.schema).replace("{role}", quoted))
        except psycopg.Error as error:
            raise translate_error(error, "granting rights", schema=address.schema) from error


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
        _insert_restored(connection, schema, server_info, settings, events)
    except psycopg.errors.UniqueViolation:
        # Two event ids may hash to one key: the later one is stored under its next key.
        statements = load_store_statements(schema)

        def find_by_key(tenant_id: str, key: bytes) -> EventRecord | None:
            values = (uuid.UUID(bytes=key), tenant_id)
            row = connection.execute(statements["find_event_by_id"], values, binary=True).fetchone()
            return None if row is None else decode_record(row)

        with_keys = assign_event_keys([restored.event for restored in events], find_by_key)
        pairs = zip(events, with_keys, strict=True)
        rekeyed = [msgspec.structs.replace(restored, event=event) for restored, event in pairs]
        if rekeyed == list(events):
            raise
        _insert_restored(connection, schema, server_info, settings, rekeyed)


def _insert_restored(
    connection: Connection,
    schema: str,
    server_info: ServerInfo,
    settings: Settings,
    events: Sequence[RestoredEvent],
) -> None:
    statements = load_store_statements(schema)
    rows = [
        encode_event(
            restored.event, restored.position - restored.append_position, restored.stream_seq
        )
        for restored in events
    ]
    values = {
        "head": events[0].position - 1,
        "rows": encode_array(server_info.row_array, server_info.row_type, rows),
        "times": [restored.recorded_us for restored in events],
    }
    with (
        locked_transaction(connection, schema, server_info, settings),
        connection.cursor(binary=True) as cursor,
    ):
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        row = cursor.execute(statements["select_head"]).fetchone()
        check_contiguous(0 if row is None else int(row[0]), events)
        cursor.execute(statements["restore_events"], values)

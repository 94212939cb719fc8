"""Creating and upgrading a log's schema, under a lock, without stopping its writers."""

from __future__ import annotations

import time
from typing import LiteralString

import psycopg
from psycopg import sql

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure
from seriatim.store.postgres.connecting import Address, Connection, connect, parse_url
from seriatim.store.postgres.failures import failure
from seriatim.store.postgres.statements import migration_files, render

SCHEMA_VERSION = 3
# The oldest program (by the schema version it was made for) that still works after each migration.
OLDEST_PROGRAM = {1: 1, 2: 1, 3: 1}
_DDL_TRIES = 50

_BOOKKEEPING = """
create schema if not exists {schema};
create table if not exists {schema}.migrations (
    version        integer     primary key,
    name           text        not null,
    oldest_program integer     not null,
    applied_at     timestamptz not null default now()
);
"""
_STATE = "select max(version), max(oldest_program) from {schema}.migrations"
_RECORD = "insert into {schema}.migrations (version, name, oldest_program) values (%s, %s, %s)"
_EXISTS = "select to_regclass({schema_text} || '.migrations') is not null"

_GRANTS = """
grant usage on schema {schema} to {role};
grant select on all tables in schema {schema} to {role};
grant insert on {schema}.events, {schema}.event_tags, {schema}.declarations,
                {schema}.stream_kinds, {schema}.kind_types to {role};
grant insert, delete on {schema}.commands to {role};
grant insert, update on {schema}.cursors, {schema}.leases to {role};
grant execute on all functions in schema {schema} to {role};
"""


def migrate(url: str, *, target: int | None = None) -> int:
    """Bring the log at a URL to the newest schema (or to `target`) and return its version."""
    address = parse_url(url, Settings())
    with connect(address) as connection:
        return migrate_on(connection, address, target=target)


def migrate_on(connection: Connection, address: Address, *, target: int | None = None) -> int:
    """Run what is missing, each migration in its own short transaction."""
    wanted = SCHEMA_VERSION if target is None else target
    try:
        for number, name, text in migration_files():
            if number <= wanted:
                _apply(connection, address.schema, number, name, text)
    except psycopg.Error as error:
        raise failure(error, "migrating the log's schema") from error
    return wanted


def _apply(connection: Connection, schema: str, number: int, name: str, text: str) -> None:
    """Apply one migration unless it is there; DDL that has to wait steps aside and tries again."""
    for attempt in range(_DDL_TRIES):
        try:
            with connection.transaction():
                connection.execute(_lock(schema))
                connection.execute("set local lock_timeout = '200ms'")
                connection.execute(render(_BOOKKEEPING, schema))
                row = connection.execute(render(_STATE, schema)).fetchone()
                if row is not None and (row[0] or 0) >= number:
                    return
                connection.execute(render(text, schema))
                record = (number, name, OLDEST_PROGRAM[number])
                connection.execute(render(_RECORD, schema), record)
        except psycopg.errors.LockNotAvailable:
            if attempt == _DDL_TRIES - 1:
                raise
            time.sleep(0.1)
        else:
            return


def _lock(schema: str) -> LiteralString:
    return f"select pg_advisory_xact_lock(hashtextextended('seriatim migrations {schema}', 0))"


def installed_version(connection: Connection, address: Address) -> tuple[int, int]:
    """Return the schema's version and the oldest program it serves; zeros when there is none."""
    there = connection.execute(render(_EXISTS, address.schema)).fetchone()
    if there is None or not there[0]:
        return 0, 0
    row = connection.execute(render(_STATE, address.schema)).fetchone()
    return (row[0] or 0, row[1] or 0) if row is not None else (0, 0)


def check_version(connection: Connection, address: Address, *, create: bool) -> None:
    """Refuse a schema this program cannot work with; make one where there is none."""
    try:
        version, oldest_program = installed_version(connection, address)
    except psycopg.Error as error:
        raise failure(error, "reading the schema's version") from error
    if version == 0:
        if not create:
            msg = "there is no log in this database: run seriatim init"
            raise BackendFailure(msg, retryable=False)
        migrate_on(connection, address)
    elif version < SCHEMA_VERSION:
        msg = f"the log's schema is version {version}, {SCHEMA_VERSION} is needed: seriatim init"
        raise BackendFailure(msg, retryable=False, details={"version": version})
    elif oldest_program > SCHEMA_VERSION:
        msg = f"the log's schema (version {version}) needs a newer seriatim: upgrade the package"
        raise BackendFailure(msg, retryable=False, details={"version": version})


def grant(url: str, role: str) -> None:
    """Give an application role what it needs: INSERT and SELECT on events, nothing more."""
    address = parse_url(url, Settings())
    with connect(address) as connection:
        quoted = sql.Identifier(role).as_string(connection)
        try:
            connection.execute(render(_GRANTS, address.schema).replace("{role}", quoted))
        except psycopg.Error as error:
            raise failure(error, "granting rights") from error

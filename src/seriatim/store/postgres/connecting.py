"""Connections to a log: how they are made, what they must show, and when they are dead."""

from __future__ import annotations

import select
import uuid
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure
from seriatim.core.event import LogIdentity
from seriatim.store.database_url import (
    check_postgres_url,
    misread_url,
    split_options,
    with_options,
)
from seriatim.store.postgres.connection_failures import ServerAddress, connection_failure
from seriatim.store.postgres.failures import failure
from seriatim.store.postgres.packing import RowArray, RowArrayDumper
from seriatim.store.postgres.statements import check_schema, statements

APPLICATION = "seriatim"
READ_COMMITTED = "read committed"
DEFAULT_SCHEMA = "seriatim"
OLDEST_SERVER = 130000
_LAST_WORD_MS = 5

Connection = psycopg.Connection[tuple[Any, ...]]


class Address(msgspec.Struct, frozen=True):
    """Where a log is: a database, and a schema in it."""

    conninfo: str
    schema: str


class Hello(msgspec.Struct, frozen=True):
    """What a connection learned of the log when it was made."""

    identity: LogIdentity
    row_array: int
    row_type: int
    isolation: str = READ_COMMITTED  # of transactions that do not say

    @property
    def sees_behind_lock(self) -> bool:
        """Whether a lone statement sees what was committed while it waited for the lock."""
        return self.isolation == READ_COMMITTED

    @property
    def lock_key(self) -> int:
        """The key of the log's lock, derived from the log, so that two logs never meet."""
        return int.from_bytes(uuid.UUID(self.identity.log_id).bytes[8:], "big", signed=True)


def parse_url(url: str, settings: Settings) -> Address:
    """Split our `schema` option from the URL and add what every connection of ours needs."""
    check_postgres_url(url)
    base, options = split_options(url)
    schema = check_schema(options.pop("schema", DEFAULT_SCHEMA))
    given = _understood(with_options(base, options))
    if given is None:
        raise misread_url(_unknown(options))
    ours: dict[str, Any] = {
        "connect_timeout": str(max(2, round(settings.connect_timeout_s))),
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "15000",
        # A standby never evaluates a condition and never advances a tail.
        "target_session_attrs": "read-write",
    }
    merged = {**ours, **given, "application_name": APPLICATION}
    return Address(make_conninfo("", **merged), schema)


def _understood(url: str) -> dict[str, Any] | None:
    """Return what libpq reads in a URL; its error is dropped, which may quote a password."""
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return None


def _unknown(options: Mapping[str, str]) -> str | None:
    """Return the first misspelled option of libpq; any other name may be a part of a password."""
    known = [one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults()]
    return next(
        (name for name in options if name not in known and get_close_matches(name, known)), None
    )


def connect(address: Address) -> Connection:
    """Open a connection in which each statement is its own transaction.

    Nothing is prepared by name and no session state is set: a transaction pooler may sit between.
    """
    try:
        connection = psycopg.connect(address.conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise connection_failure(error, address.conninfo) from None
    connection.adapters.register_dumper(RowArray, RowArrayDumper)
    set_isolation(connection)
    return connection


def set_isolation(connection: Connection) -> None:
    """Let transactions of a connection begin at READ COMMITTED, whatever the server's default.

    The driver says so at each BEGIN: nothing is set that a pooler could lose.
    """
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def check_server_version(connection: Connection, address: Address) -> None:
    """Refuse a server that is too old, before any statement that it might not understand."""
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        at = ServerAddress.of(address.conninfo)
        msg = (
            f"Postgres {OLDEST_SERVER // 10000} or newer is needed, the server at {at} is "
            f"{version // 10000}: upgrade it, or connect to another"
        )
        raise BackendFailure(msg, retryable=False)


def greet(connection: Connection, address: Address, settings: Settings) -> Hello:
    """Check that a connection may be used for this log, and learn what it takes to use it."""
    check_server_version(connection, address)
    named = statements(address.schema)
    try:
        row = connection.execute(named["hello"]).fetchone()
    except psycopg.Error as error:
        raise failure(error, "looking for the log", schema=address.schema) from error
    if row is None:
        msg = "the log's schema is there but empty: run seriatim init"
        raise BackendFailure(msg, retryable=False)
    log_id, epoch, same_place, standby, synchronous, _, isolation, row_array, row_type = row
    if standby:
        at = ServerAddress.of(address.conninfo)
        msg = f"the server at {at} is a standby: connect to the primary"
        raise BackendFailure(msg)
    if synchronous == "off" and not settings.allow_async_commit:
        msg = (
            "synchronous_commit is off: a crash would take back acknowledged events; turn it on "
            "for this role, or say allow_async_commit=True and accept that"
        )
        raise BackendFailure(msg, retryable=False)
    if not same_place:
        raised = connection.execute(named["raise_epoch"], (False,)).fetchone()
        epoch = raised[0] if raised and raised[0] else epoch + 1
    return Hello(LogIdentity(log_id, epoch), row_array, row_type, isolation)


def is_dead(connection: Connection) -> bool:
    """Tell whether an idle connection was closed by the other side, before anything is sent."""
    if connection.closed:
        return True
    idle = select.poll()  # select() refuses descriptors from 1024 on
    idle.register(connection.fileno(), select.POLLIN)
    wait_ms = 0
    while idle.poll(wait_ms):
        try:
            connection.pgconn.consume_input()
        except psycopg.Error:
            return True
        if connection.pgconn.status != psycopg.pq.ConnStatus.OK:
            return True
        # It said something unasked: a last word is followed by the end, if by anything.
        wait_ms = _LAST_WORD_MS
    return False

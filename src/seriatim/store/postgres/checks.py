"""Checks of a Postgres log: its integrity (`verify`) and its environment (`doctor`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure
from seriatim.store.common import check_payload_indexes
from seriatim.store.port import Finding
from seriatim.store.postgres.connection import Connection, LogAddress, connect, parse_url
from seriatim.store.postgres.declarations import build_rules
from seriatim.store.postgres.migrate import SCHEMA_VERSION, read_schema_version
from seriatim.store.postgres.statements import load_postgres_statements, load_store_statements

_UNSAFE_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
_RISKS = {
    "fsync": "a power cut can destroy the whole cluster",
    "full_page_writes": "a power cut can leave torn pages",
    "synchronous_commit": "a crash can lose acknowledged events",
}
_GIB = 1 << 30
_PAGE = 5000


def _fetch_all(connection: Connection, text: LiteralString) -> list[tuple[Any, ...]]:
    return connection.execute(text).fetchall()


def verify(connection: Connection, schema: str) -> Iterator[Finding]:
    """Check positions, streams, closed streams and indexes in SQL, without reading events.

    A re-read of all events would have to keep every stream in memory for these checks.

    Args:
        connection: A connection to the database.
        schema: The schema of the log.

    Returns:
        One finding per check.

    """
    statements = load_postgres_statements("checks.sql", schema)
    [(count, first, last)] = _fetch_all(connection, statements["count_positions"])
    complete = count == last - first + 1 and (first == 1 or count == 0)
    message = f"{count} events fill positions 1 to {last}"
    yield (
        Finding("ok", "positions", message)
        if complete
        else Finding(
            "error",
            "positions",
            f"{count} events between positions {first} and {last}: there are gaps",
        )
    )
    broken = _fetch_all(connection, statements["find_broken_streams"])
    yield _make_finding("streams", broken, "every stream is contiguous", "streams with gaps")
    reopened = _fetch_all(connection, statements["find_reopened_streams"])
    yield _make_finding(
        "closings", reopened, "no closed stream continues", "streams continue after closing"
    )
    yield _check_keys(connection, schema, last)
    invalid = _fetch_all(connection, statements["list_invalid_indexes"])
    yield _make_finding(
        "indexes", invalid, "every index is valid", "indexes are invalid: REINDEX them"
    )


def _check_keys(connection: Connection, schema: str, until: int) -> Finding:
    """Compare the expected index keys of all events with the stored ones, and their number."""
    statements = load_postgres_statements("checks.sql", schema)
    rules = build_rules(_fetch_all(connection, load_store_statements(schema)["list_declarations"]))
    values = {"types": list(rules.indexed_paths), "after": 0, "until": until, "limit": _PAGE}
    expected = missing = 0
    first = None
    while rows := connection.execute(statements["list_keyed_events"], values).fetchall():
        pairs = [(key, row[0]) for row in rows for key in rules.row_index_keys(row)]
        parameters = {
            "keys": [uuid.UUID(bytes=key) for key, _ in pairs],
            "positions": [position for _, position in pairs],
        }
        [(absent, position)] = connection.execute(
            statements["count_missing_keys"], parameters
        ).fetchall()
        expected, missing, first = expected + len(pairs), missing + absent, first or position
        values["after"] = rows[-1][0]
    [(stored,)] = connection.execute(statements["count_keys"], values).fetchall()
    if not missing and stored == expected:
        return Finding("ok", "tags", f"all {stored} keys of tags and payload indexes are correct")
    where = f", the first at position {first}" if first else ""
    message = f"{missing} of {expected} keys of tags and payload indexes are missing{where}"
    return Finding("error", "tags", f"{message}; {stored - expected + missing} are superfluous")


def _make_finding(
    check: str, problems: list[tuple[Any, ...]], success: str, failure: str
) -> Finding:
    if not problems:
        return Finding("ok", check, success)
    examples = ", ".join("/".join(map(str, row)) for row in problems[:3])
    return Finding("error", check, f"{failure}: {examples}")


def doctor(
    connection: Connection, schema: str, connect_again: Callable[[], Connection]
) -> Iterator[Finding]:
    """Report problems of a log's database, and how to repair them.

    Args:
        connection: A connection to the database.
        schema: The schema of the log.
        connect_again: Opens further connections, to detect a pooler.

    """
    statements = load_postgres_statements("checks.sql", schema)
    [(standby,)] = _fetch_all(connection, "select pg_is_in_recovery()")
    if standby:
        message = "the server is a standby: it accepts no appends and serves no tails"
        yield Finding("error", "standby", message, "connect to the primary")
    yield from _check_settings(connection, statements)
    try:
        version = _check_version(connection, schema)
    except psycopg.errors.InsufficientPrivilege:
        cure = "run seriatim init --app-role ROLE as the owner"
        yield Finding("error", "grants", "this role may not read the log", cure)
        return
    yield version
    if version.level == "error":
        return
    yield from _check_grants(connection, statements)
    yield from _check_triggers(connection, statements)
    yield _check_row_security(connection, statements)
    yield from _check_transactions(connection, statements)
    yield _check_pooler(connect_again)
    yield from check_payload_indexes(
        build_rules(_fetch_all(connection, load_store_statements(schema)["list_declarations"]))
    )
    [(rows, total, indexes)] = _fetch_all(connection, statements["select_size"])
    sizes = f"{total / _GIB:.2f} GiB, of which {indexes / _GIB:.2f} indexes"
    yield Finding("ok", "size", f"about {max(rows, 0)} events, {sizes}")


def examine_database(url: str, settings: Settings) -> Iterator[Finding]:
    """Run `doctor` without opening the log, since opening it may be the problem."""
    address = parse_url(url, settings)
    conninfo = make_conninfo(address.conninfo, target_session_attrs="any")

    def connect_to_any() -> Connection:  # a standby, too
        return connect(LogAddress(conninfo, address.schema))

    try:
        with closing(connect_to_any()) as connection:
            yield from doctor(connection, address.schema, connect_to_any)
    except BackendFailure as error:
        yield Finding("error", "connection", error.message)


def _check_version(connection: Connection, schema: str) -> Finding:
    version, _ = read_schema_version(connection, LogAddress("", schema))
    if version == SCHEMA_VERSION:
        return Finding("ok", "schema", f"version {version}")
    message = f"version {version}, this program uses {SCHEMA_VERSION}"
    if version == 0:
        return Finding("error", "schema", "there is no log in this database", "run seriatim init")
    if version > SCHEMA_VERSION:
        return Finding("warning", "schema", message, "upgrade the package soon")
    return Finding("error", "schema", message, "run seriatim init")


def _check_settings(
    connection: Connection, statements: dict[str, LiteralString]
) -> Iterator[Finding]:
    settings = dict(_fetch_all(connection, statements["list_settings"]))
    for name, unsafe in _UNSAFE_SETTINGS.items():
        if settings.get(name) == unsafe:
            yield Finding("error", "settings", f"{name} is off: {_RISKS[name]}", f"set {name} = on")
    if settings.get("autovacuum") == "off":
        yield Finding(
            "warning", "settings", "autovacuum is off: plans go stale", "set autovacuum = on"
        )
    yield Finding("ok", "server", f"Postgres {settings.get('server_version')}")


def _check_grants(
    connection: Connection, statements: dict[str, LiteralString]
) -> Iterator[Finding]:
    [(select, insert, change, *rest, role)] = _fetch_all(
        connection, statements["select_privileges"]
    )
    cure = f"run seriatim init --app-role {role} as the owner"
    if not select or not insert or not all(rest):
        yield Finding("error", "grants", f"role {role} lacks privileges on the log", cure)
    elif change:
        message = f"role {role} owns the log or may change it; only triggers protect its events"
        yield Finding("warning", "grants", message, "run applications under a separate role")
    else:
        yield Finding("ok", "grants", f"role {role} may append and read, nothing else")


def _check_triggers(
    connection: Connection, statements: dict[str, LiteralString]
) -> Iterator[Finding]:
    disabled = _fetch_all(connection, statements["list_disabled_triggers"])
    [(present,)] = _fetch_all(connection, statements["count_triggers"])
    expected = 2
    if disabled or present != expected:
        triggers = ", ".join(f"{table}.{name}" for table, name in disabled) or "missing"
        cure = "ALTER TABLE … ENABLE TRIGGER ALL, or restore the schema"
        yield Finding("error", "triggers", f"the log's triggers are off: {triggers}", cure)
    else:
        yield Finding("ok", "triggers", "immutability and sequence are enforced")


def _check_row_security(connection: Connection, statements: dict[str, LiteralString]) -> Finding:
    unprotected = ", ".join(
        name for (name,) in _fetch_all(connection, statements["list_unprotected_tables"])
    )
    if unprotected:
        cure = "ALTER TABLE … ENABLE and FORCE ROW LEVEL SECURITY, or restore the schema"
        return Finding(
            "error", "row security", f"row-level security is off for {unprotected}", cure
        )
    [(bypasses, role)] = _fetch_all(connection, statements["select_row_security"])
    if bypasses:
        message = (
            f"role {role} is a superuser or has BYPASSRLS, so row-level security has no effect"
        )
        cure = "run applications under a role that is no superuser and has no BYPASSRLS"
        return Finding("warning", "row security", message, cure)
    return Finding("ok", "row security", "reads of a tenant see only its own rows")


def _check_transactions(
    connection: Connection, statements: dict[str, LiteralString]
) -> Iterator[Finding]:
    for pid, application, state, seconds in _fetch_all(
        connection, statements["list_long_transactions"]
    ):
        message = (
            f"process {pid} ({application or 'unnamed'}, {state}) has been open for {seconds} s"
        )
        cure = "it bloats tables, but blocks no reader: end it with pg_terminate_backend"
        yield Finding("warning", "long transaction", message, cure)
    for pid, application, state, seconds in _fetch_all(connection, statements["list_lock_holders"]):
        message = f"process {pid} ({application}, {state}) has held the lock for {seconds} s"
        cure = f"select pg_terminate_backend({pid})"
        yield Finding("error", "append lock", message, cure)


def _check_pooler(connect_again: Callable[[], Connection]) -> Finding:
    """Detect a pooler: its sessions run on another backend than the one that accepted them."""
    try:
        with closing(connect_again()) as first, closing(connect_again()) as second:
            # Alternate between two sessions: one alone may get the same backend each time.
            rows = {
                connection.execute("select pg_backend_pid()").fetchone()
                for _ in range(2)
                for connection in (first, second)
            }
            direct = first.info.backend_pid in {row[0] for row in rows if row is not None}
    except psycopg.Error as error:
        return Finding("warning", "pooler", f"could not be checked: {type(error).__name__}")
    if direct:
        return Finding("ok", "pooler", "connections reach the server directly")
    message = (
        "connections go through a transaction pooler: appends and reads work, wake-ups are lost"
    )
    cure = "connect subscribers directly for low latency"
    return Finding("warning", "pooler", message, cure)

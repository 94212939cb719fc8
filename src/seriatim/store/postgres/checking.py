"""What a Postgres log can prove of itself, and what may be wrong with its database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure
from seriatim.store.port import Finding
from seriatim.store.postgres.connecting import Address, Connection, connect, parse_url
from seriatim.store.postgres.declaring import rules_of
from seriatim.store.postgres.migrate import SCHEMA_VERSION, installed_version
from seriatim.store.postgres.statements import named_statements, statements
from seriatim.store.reading import index_findings

_UNSAFE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
_COSTS = {
    "fsync": "a power cut can destroy the whole cluster",
    "full_page_writes": "a power cut can leave torn pages",
    "synchronous_commit": "a crash takes back acknowledged events",
}
_GIB = 1 << 30
_PAGE = 5000


def _all(connection: Connection, text: LiteralString) -> list[tuple[Any, ...]]:
    return connection.execute(text).fetchall()


def verify(connection: Connection, schema: str) -> Iterator[Finding]:
    """Prove by SQL what a re-read cannot hold in memory: gaps, streams, closings, the indexes."""
    named = named_statements("checks.sql", schema)
    [(count, first, last)] = _all(connection, named["gaps"])
    whole = count == last - first + 1 and (first == 1 or count == 0)
    message = f"{count} events fill positions 1 to {last}"
    yield (
        Finding("ok", "positions", message)
        if whole
        else Finding(
            "error", "positions", f"{count} events stand between {first} and {last}: there are gaps"
        )
    )
    broken = _all(connection, named["broken_streams"])
    yield _judged("streams", broken, "every stream is contiguous", "streams with holes")
    reopened = _all(connection, named["reopened_streams"])
    yield _judged("closings", reopened, "no closed stream goes on", "streams go on after closing")
    yield _keys(connection, schema, last)
    invalid = _all(connection, named["invalid_indexes"])
    yield _judged("indexes", invalid, "every index is valid", "indexes are invalid: REINDEX them")


def _keys(connection: Connection, schema: str, until: int) -> Finding:
    """Compare the keys that events have with those that are indexed, each one and their number."""
    named = named_statements("checks.sql", schema)
    rules = rules_of(_all(connection, statements(schema)["declarations"]))
    values = {"types": list(rules.indexed_paths), "after": 0, "until": until, "limit": _PAGE}
    expected = missing = 0
    first = None
    while rows := connection.execute(named["keyed_events"], values).fetchall():
        pairs = [(key, row[0]) for row in rows for key in rules.stored_keys(row)]
        asked = {
            "keys": [uuid.UUID(bytes=key) for key, _ in pairs],
            "positions": [position for _, position in pairs],
        }
        [(absent, where)] = connection.execute(named["missing_keys"], asked).fetchall()
        expected, missing, first = expected + len(pairs), missing + absent, first or where
        values["after"] = rows[-1][0]
    [(stored,)] = connection.execute(named["key_count"], values).fetchall()
    if not missing and stored == expected:
        return Finding("ok", "tags", f"{stored} keys of tags and payload indexes, none else")
    begin = f", the first at position {first}" if first else ""
    message = f"{missing} of {expected} keys of tags and payload indexes are missing{begin}"
    return Finding("error", "tags", f"{message}; {stored - expected + missing} are superfluous")


def _judged(check: str, bad: list[tuple[Any, ...]], good: str, problem: str) -> Finding:
    if not bad:
        return Finding("ok", check, good)
    shown = ", ".join("/".join(map(str, row)) for row in bad[:3])
    return Finding("error", check, f"{problem}: {shown}")


def doctor(
    connection: Connection, schema: str, reach: Callable[[], Connection]
) -> Iterator[Finding]:
    """Name what is wrong with a database, and how to cure it."""
    named = named_statements("checks.sql", schema)
    [(standby,)] = _all(connection, "select pg_is_in_recovery()")
    if standby:
        message = "the server is a standby: it takes no appends and serves no tails"
        yield Finding("error", "standby", message, "connect to the primary")
    yield from _settings(connection, named)
    try:
        version = _version(connection, schema)
    except psycopg.errors.InsufficientPrivilege:
        cure = "run seriatim init --app-role ROLE as the owner"
        yield Finding("error", "grants", "this role may not even read the log", cure)
        return
    yield version
    if version.level == "error":
        return
    yield from _grants(connection, named)
    yield from _triggers(connection, named)
    yield _row_security(connection, named)
    yield from _transactions(connection, named)
    yield _pooler(reach)
    yield from index_findings(rules_of(_all(connection, statements(schema)["declarations"])))
    [(rows, total, indexes)] = _all(connection, named["size"])
    sizes = f"{total / _GIB:.2f} GiB, of which {indexes / _GIB:.2f} indexes"
    yield Finding("ok", "size", f"about {max(rows, 0)} events, {sizes}")


def examine(url: str, settings: Settings) -> Iterator[Finding]:
    """Examine a database without opening its log, which may be what does not work."""
    address = parse_url(url, settings)
    anywhere = make_conninfo(address.conninfo, target_session_attrs="any")

    def reach() -> Connection:
        return connect(Address(anywhere, address.schema))

    try:
        with closing(reach()) as connection:
            yield from doctor(connection, address.schema, reach)
    except BackendFailure as error:
        yield Finding("error", "connection", error.message)


def _version(connection: Connection, schema: str) -> Finding:
    version, _ = installed_version(connection, Address("", schema))
    if version == SCHEMA_VERSION:
        return Finding("ok", "schema", f"version {version}")
    message = f"version {version}, this program has {SCHEMA_VERSION}"
    if version == 0:
        return Finding("error", "schema", "there is no log in this database", "run seriatim init")
    if version > SCHEMA_VERSION:
        return Finding("warning", "schema", message, "upgrade the package soon")
    return Finding("error", "schema", message, "run seriatim init")


def _settings(connection: Connection, named: dict[str, LiteralString]) -> Iterator[Finding]:
    settings = dict(_all(connection, named["settings"]))
    for name, unsafe in _UNSAFE.items():
        if settings.get(name) == unsafe:
            yield Finding("error", "settings", f"{name} is off: {_COSTS[name]}", f"set {name} = on")
    if settings.get("autovacuum") == "off":
        yield Finding(
            "warning", "settings", "autovacuum is off: plans go stale", "set autovacuum = on"
        )
    yield Finding("ok", "server", f"Postgres {settings.get('server_version')}")


def _grants(connection: Connection, named: dict[str, LiteralString]) -> Iterator[Finding]:
    [(select, insert, change, *rest, role)] = _all(connection, named["grants"])
    cure = f"run seriatim init --app-role {role} as the owner"
    if not select or not insert or not all(rest):
        yield Finding("error", "grants", f"role {role} lacks rights on the log", cure)
    elif change:
        message = f"role {role} owns the log or may change it; triggers alone protect events"
        yield Finding("warning", "grants", message, "run applications under a role of their own")
    else:
        yield Finding("ok", "grants", f"role {role} may append and read, nothing more")


def _triggers(connection: Connection, named: dict[str, LiteralString]) -> Iterator[Finding]:
    disabled = _all(connection, named["disabled_triggers"])
    [(present,)] = _all(connection, named["present_triggers"])
    wanted = 2
    if disabled or present != wanted:
        shown = ", ".join(f"{table}.{name}" for table, name in disabled) or "missing"
        cure = "ALTER TABLE … ENABLE TRIGGER ALL, or restore the schema"
        yield Finding("error", "triggers", f"the log's triggers are off: {shown}", cure)
    else:
        yield Finding("ok", "triggers", "immutability and sequence are enforced")


def _row_security(connection: Connection, named: dict[str, LiteralString]) -> Finding:
    down = ", ".join(name for (name,) in _all(connection, named["open_tables"]))
    if down:
        cure = "ALTER TABLE … ENABLE and FORCE ROW LEVEL SECURITY, or restore the schema"
        return Finding("error", "row security", f"tenants are not kept apart in {down}", cure)
    [(bypasses, role)] = _all(connection, named["row_security"])
    if bypasses:
        message = f"role {role} is a superuser or has BYPASSRLS: it goes through the second wall"
        cure = "run applications under a role of their own, which is neither"
        return Finding("warning", "row security", message, cure)
    return Finding("ok", "row security", "reads of a tenant see its own rows alone")


def _transactions(connection: Connection, named: dict[str, LiteralString]) -> Iterator[Finding]:
    for pid, application, state, seconds in _all(connection, named["long_transactions"]):
        message = f"process {pid} ({application or 'unnamed'}, {state}) is open for {seconds} s"
        cure = "it bloats tables, never stops readers: end it with pg_terminate_backend"
        yield Finding("warning", "long transaction", message, cure)
    for pid, application, state, seconds in _all(connection, named["lock_holders"]):
        message = f"process {pid} ({application}, {state}) has held the lock for {seconds} s"
        cure = f"select pg_terminate_backend({pid})"
        yield Finding("error", "append lock", message, cure)


def _pooler(reach: Callable[[], Connection]) -> Finding:
    """Tell a pooler by its sessions, whose backend is not the one that greeted them."""
    try:
        with closing(reach()) as first, closing(reach()) as second:
            seen = {one.execute("select pg_backend_pid()").fetchone() for one in (first, second)}
            seen |= {one.execute("select pg_backend_pid()").fetchone() for one in (first, second)}
            direct = first.info.backend_pid in {row[0] for row in seen if row is not None}
    except psycopg.Error as error:
        return Finding("warning", "pooler", f"could not be examined: {type(error).__name__}")
    if direct:
        return Finding("ok", "pooler", "sessions reach the server directly")
    message = "a pooler without sessions sits between: wake-ups are lost, appends and reads are not"
    cure = "give subscribers a direct address for low latency"
    return Finding("warning", "pooler", message, cure)

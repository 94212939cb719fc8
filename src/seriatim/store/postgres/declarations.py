"""Store and load declarations, which all processes and the triggers of the database use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, LiteralString

import msgspec

from seriatim.config import Settings
from seriatim.core.canonical import canonical_text
from seriatim.core.ids import compose_key
from seriatim.core.indexes import PayloadIndex, StoredIndex
from seriatim.core.kinds import Declaration, EventType, Rules, StreamKind
from seriatim.store.postgres.connection import Connection, ServerInfo, locked_transaction
from seriatim.store.postgres.statements import load_store_statements


def build_rules(rows: Iterable[tuple[Any, ...]]) -> Rules:
    """Build the rules from the rows (version, what, body) of all declarations."""
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[StoredIndex] = []
    version = 0
    for version, what, body in rows:  # noqa: B007 - the last version is that of the rules
        if what == "kind":
            kinds.append(msgspec.json.decode(body, type=StreamKind))
        elif what == "type":
            types.append(msgspec.json.decode(body, type=EventType))
        else:
            indexes.append(msgspec.json.decode(body, type=StoredIndex))
    return Rules(tuple(kinds), tuple(types), version, tuple(indexes))


def declare(
    connection: Connection,
    schema: str,
    server_info: ServerInfo,
    settings: Settings,
    declaration: Declaration,
) -> None:
    """Store a declaration under the log's lock, unless it is stored already."""
    named = load_store_statements(schema)
    # Searching a large log takes long: it is done before the lock is taken.
    found_before = _find_events_of_type(connection, named, declaration)
    with locked_transaction(connection, schema, server_info, settings):
        rules = build_rules(connection.execute(named["list_declarations"]).fetchall())
        if isinstance(declaration, StreamKind):
            if not rules.has_kind(declaration):
                key = ("kind", declaration.name, 0)
                _insert_declaration(connection, named, rules, key, declaration)
                _insert_kind(connection, named, declaration)
        elif isinstance(declaration, EventType):
            if not rules.has_type(declaration):
                key = ("type", declaration.event_type, declaration.event_version)
                _insert_declaration(connection, named, rules, key, declaration)
                if declaration.kind is not None:
                    pair = (declaration.kind, declaration.event_type)
                    connection.execute(named["insert_kind_type"], pair)
        elif not rules.has_index(declaration):
            stored = _make_stored_index(connection, named, declaration, found_before)
            key = ("index", compose_key(declaration.event_type, declaration.path), 0)
            _insert_declaration(connection, named, rules, key, stored)


def _insert_declaration(
    connection: Connection,
    named: dict[str, LiteralString],
    rules: Rules,
    key: tuple[str, str, int],
    declaration: Declaration,
) -> None:
    body = canonical_text(msgspec.to_builtins(declaration))
    connection.execute(named["insert_declaration"], (rules.version + 1, *key, body))


def _insert_kind(connection: Connection, named: dict[str, LiteralString], kind: StreamKind) -> None:
    connection.execute(
        named["insert_kind"],
        (
            kind.name,
            kind.first_seq,
            kind.opening_type,
            list(kind.closing_types),
            kind.catalogue == "closed",
        ),
    )


def _find_events_of_type(
    connection: Connection, named: dict[str, LiteralString], declaration: Declaration
) -> tuple[int, bool]:
    """Return the head, and whether the log has events of an index's type up to it."""
    if not isinstance(declaration, PayloadIndex):
        return 0, False
    row = connection.execute(named["select_head"]).fetchone()
    head = 0 if row is None else int(row[0])
    found = connection.execute(
        named["find_event_of_type"], {"type": declaration.event_type}
    ).fetchone()
    return head, found is not None


def _make_stored_index(
    connection: Connection,
    named: dict[str, LiteralString],
    index: PayloadIndex,
    found_before: tuple[int, bool],
) -> StoredIndex:
    """Return the index to store; it covers all events if its type has no events yet."""
    before, exists = found_before
    row = connection.execute(named["select_head"]).fetchone()
    head = 0 if row is None else int(row[0])
    values = {"after": before, "type": index.event_type}
    newer = connection.execute(named["find_newer_event_of_type"], values).fetchone()
    return StoredIndex(index.event_type, index.path, head if exists or newer else 0)

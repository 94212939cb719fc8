"""Store and load declarations, which all processes and the triggers of the database use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import msgspec

from seriatim.config import Settings
from seriatim.core.canonical import canonical_text
from seriatim.core.ids import compose_key
from seriatim.core.indexes import PayloadIndex, StoredIndex
from seriatim.core.kinds import Declaration, EventType, Rules, StreamKind
from seriatim.store.postgres.connection import Connection, ServerInfo, locked_transaction
from seriatim.store.postgres.statements import load_store_statements


def build_rules(rows: Sequence[tuple[Any, ...]]) -> Rules:
    """Build the rules from the rows (version, what, body) of all declarations, in order."""
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[StoredIndex] = []
    for _, what, body in rows:
        if what == "kind":
            kinds.append(msgspec.json.decode(body, type=StreamKind))
        elif what == "type":
            types.append(msgspec.json.decode(body, type=EventType))
        else:
            indexes.append(msgspec.json.decode(body, type=StoredIndex))
    version = rows[-1][0] if rows else 0  # the last declaration's version is that of the rules
    return Rules(tuple(kinds), tuple(types), version, tuple(indexes))


def declare(
    connection: Connection,
    schema: str,
    server_info: ServerInfo,
    settings: Settings,
    declaration: Declaration,
) -> None:
    """Store a declaration under the log's lock, unless it is stored already."""
    statements = load_store_statements(schema)
    # Searching a large log takes long, so it is done before the lock is taken. Under the lock only
    # the events appended since are searched.
    events_before_lock = _find_events_of_type(connection, statements, declaration)
    with locked_transaction(connection, schema, server_info, settings):
        rules = build_rules(connection.execute(statements["list_declarations"]).fetchall())
        if isinstance(declaration, StreamKind):
            if not rules.has_kind(declaration):
                key = ("kind", declaration.name, 0)
                _insert_declaration(connection, statements, rules, key, declaration)
                _insert_kind(connection, statements, declaration)
        elif isinstance(declaration, EventType):
            if not rules.has_type(declaration):
                key = ("type", declaration.event_type, declaration.event_version)
                _insert_declaration(connection, statements, rules, key, declaration)
                if declaration.kind is not None:
                    pair = (declaration.kind, declaration.event_type)
                    connection.execute(statements["insert_kind_type"], pair)
        elif not rules.has_index(declaration):
            stored = _make_stored_index(connection, statements, declaration, events_before_lock)
            key = ("index", compose_key(declaration.event_type, declaration.path), 0)
            _insert_declaration(connection, statements, rules, key, stored)


def _insert_declaration(
    connection: Connection,
    statements: dict[str, LiteralString],
    rules: Rules,
    key: tuple[str, str, int],
    declaration: Declaration,
) -> None:
    body = canonical_text(msgspec.to_builtins(declaration))
    connection.execute(statements["insert_declaration"], (rules.version + 1, *key, body))


def _insert_kind(
    connection: Connection, statements: dict[str, LiteralString], kind: StreamKind
) -> None:
    connection.execute(
        statements["insert_kind"],
        (
            kind.name,
            kind.first_seq,
            kind.opening_type,
            list(kind.closing_types),
            kind.catalogue == "closed",
        ),
    )


def _find_events_of_type(
    connection: Connection, statements: dict[str, LiteralString], declaration: Declaration
) -> tuple[int, bool]:
    """Return the head, and whether the log has events of an index's type up to it."""
    if not isinstance(declaration, PayloadIndex):
        return 0, False
    row = connection.execute(statements["select_head"]).fetchone()
    head = 0 if row is None else int(row[0])
    event = connection.execute(
        statements["find_event_of_type"], {"type": declaration.event_type}
    ).fetchone()
    return head, event is not None


def _make_stored_index(
    connection: Connection,
    statements: dict[str, LiteralString],
    index: PayloadIndex,
    events_before_lock: tuple[int, bool],
) -> StoredIndex:
    """Return the index to store; it covers all events if its type has no events yet."""
    searched_head, exists = events_before_lock
    row = connection.execute(statements["select_head"]).fetchone()
    head = 0 if row is None else int(row[0])
    values = {"after": searched_head, "type": index.event_type}
    newer = connection.execute(statements["find_newer_event_of_type"], values).fetchone()
    return StoredIndex(index.event_type, index.path, head if exists or newer else 0)

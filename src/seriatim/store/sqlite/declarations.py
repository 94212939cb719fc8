"""Store and load declarations, with a cache of the rules last read."""

from __future__ import annotations

import sqlite3

import msgspec

from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.ids import compose_key
from seriatim.core.indexes import PayloadIndex, StoredIndex
from seriatim.core.kinds import NO_RULES, Declaration, EventType, Rules, StreamKind
from seriatim.store.sqlite.statements import SQL


class SqliteDeclarations:
    """The rules of all declarations, cached until another declaration is stored."""

    def __init__(self) -> None:
        self.last_rules = NO_RULES

    def load_rules(self, connection: sqlite3.Connection, version: int | None = None) -> Rules:
        """Return the current rules, and read them again if their version has changed.

        Declarations are never deleted, so their number is the version.
        """
        if version is None:
            (version,) = connection.execute(SQL["select_rules_version"]).fetchone()
        rules = self.last_rules
        if rules.version != version:
            rules = self.last_rules = _build_rules(connection)
        return rules

    def declare(self, connection: sqlite3.Connection, declaration: Declaration) -> None:
        """Store a declaration unless it is stored already."""
        rules = self.load_rules(connection)
        if isinstance(declaration, StreamKind):
            if not rules.has_kind(declaration):
                _insert_declaration(connection, rules, ("kind", declaration.name, 0), declaration)
        elif isinstance(declaration, EventType):
            if not rules.has_type(declaration):
                key = "type", declaration.event_type, declaration.event_version
                _insert_declaration(connection, rules, key, declaration)
        elif not rules.has_index(declaration):
            key = "index", compose_key(declaration.event_type, declaration.path), 0
            _insert_declaration(connection, rules, key, _make_stored_index(connection, declaration))


def _insert_declaration(
    connection: sqlite3.Connection,
    rules: Rules,
    key: tuple[str, str, int],
    declaration: Declaration,
) -> None:
    body = canonical_text(msgspec.structs.asdict(declaration))
    connection.execute(SQL["insert_declaration"], (rules.version + 1, *key, body))


def _make_stored_index(connection: sqlite3.Connection, index: PayloadIndex) -> StoredIndex:
    """Return the index to store; it covers all events if its type has no events yet."""
    (head,) = connection.execute(SQL["select_head"]).fetchone()
    exists = connection.execute(SQL["find_event_of_type"], (index.event_type,)).fetchone()
    return StoredIndex(index.event_type, index.path, head if exists else 0)


def _build_rules(connection: sqlite3.Connection) -> Rules:
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[StoredIndex] = []
    for what, body in connection.execute(SQL["list_declarations"]):
        fields = decode_stored_json(body)
        if what == "kind":
            kinds.append(msgspec.convert(fields, StreamKind))
        elif what == "type":
            types.append(msgspec.convert(fields, EventType))
        else:
            indexes.append(msgspec.convert(fields, StoredIndex))
    version = len(kinds) + len(types) + len(indexes)
    return Rules(tuple(kinds), tuple(types), version, tuple(indexes))

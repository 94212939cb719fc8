"""The declarations, read anew only when another one was stored."""

from __future__ import annotations

import sqlite3

import msgspec

from seriatim.core.canonical import canonical_text, read_json
from seriatim.core.ids import compose
from seriatim.core.indexes import PayloadIndex, StoredIndex
from seriatim.core.kinds import NO_RULES, Declaration, EventType, Rules, StreamKind
from seriatim.store.sqlite.statements import SQL


class Declarations:
    """The rules as last read from the file."""

    def __init__(self) -> None:
        self.known = NO_RULES

    def rules(self, connection: sqlite3.Connection, version: int | None = None) -> Rules:
        """Return the rules of the newest version; declarations only ever grow in number."""
        if version is None:
            (version,) = connection.execute(SQL["rules_version"]).fetchone()
        rules = self.known
        if rules.version != version:
            rules = self.known = _read(connection)
        return rules

    def declare(self, connection: sqlite3.Connection, declared: Declaration) -> None:
        """Store a declaration unless it is stored already."""
        rules = self.rules(connection)
        if isinstance(declared, StreamKind):
            if not rules.knows_kind(declared):
                _store(connection, rules, ("kind", declared.name, 0), declared)
        elif isinstance(declared, EventType):
            if not rules.knows_type(declared):
                key = "type", declared.event_type, declared.event_version
                _store(connection, rules, key, declared)
        elif not rules.knows_index(declared):
            key = "index", compose(declared.event_type, declared.path), 0
            _store(connection, rules, key, _covering(connection, declared))


def _store(
    connection: sqlite3.Connection,
    rules: Rules,
    key: tuple[str, str, int],
    declared: Declaration,
) -> None:
    body = canonical_text(msgspec.structs.asdict(declared))
    connection.execute(SQL["declare"], (rules.version + 1, *key, body))


def _covering(connection: sqlite3.Connection, index: PayloadIndex) -> StoredIndex:
    """Return the index as it is stored: it knows all events of a type that has none yet."""
    (head,) = connection.execute(SQL["head"]).fetchone()
    there = connection.execute(SQL["has_type"], (index.event_type,)).fetchone()
    return StoredIndex(index.event_type, index.path, head if there else 0)


def _read(connection: sqlite3.Connection) -> Rules:
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[StoredIndex] = []
    for what, body in connection.execute(SQL["declarations"]):
        fields = read_json(body)
        if what == "kind":
            kinds.append(msgspec.convert(fields, StreamKind))
        elif what == "type":
            types.append(msgspec.convert(fields, EventType))
        else:
            indexes.append(msgspec.convert(fields, StoredIndex))
    version = len(kinds) + len(types) + len(indexes)
    return Rules(tuple(kinds), tuple(types), version, tuple(indexes))

"""The declared kinds and event types, read anew only when another declaration was stored."""

from __future__ import annotations

import sqlite3

import msgspec

from seriatim.core.canonical import canonical_text, read_json
from seriatim.core.kinds import NO_RULES, EventType, Rules, StreamKind
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

    def declare(self, connection: sqlite3.Connection, declared: StreamKind | EventType) -> None:
        """Store a declaration unless it is stored already."""
        rules = self.rules(connection)
        if isinstance(declared, StreamKind):
            if not rules.knows_kind(declared):
                _store(connection, rules, ("kind", declared.name, 0), declared)
        elif not rules.knows_type(declared):
            key = "type", declared.event_type, declared.event_version
            _store(connection, rules, key, declared)


def _store(
    connection: sqlite3.Connection,
    rules: Rules,
    key: tuple[str, str, int],
    declared: StreamKind | EventType,
) -> None:
    body = canonical_text(msgspec.structs.asdict(declared))
    connection.execute(SQL["declare"], (rules.version + 1, *key, body))


def _read(connection: sqlite3.Connection) -> Rules:
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    for what, body in connection.execute(SQL["declarations"]):
        fields = read_json(body)
        if what == "kind":
            kinds.append(msgspec.convert(fields, StreamKind))
        else:
            types.append(msgspec.convert(fields, EventType))
    return Rules(tuple(kinds), tuple(types), len(kinds) + len(types))

"""Stream kinds and event types in the database, where every process and the triggers see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.kinds import EventType, Rules, StreamKind
from seriatim.store.postgres.connecting import Connection, Hello
from seriatim.store.postgres.statements import statements


def rules_of(rows: Iterable[tuple[Any, ...]]) -> Rules:
    """Make the rules of all declarations, given as (version, what, body)."""
    kinds: list[StreamKind] = []
    types: list[EventType] = []
    version = 0
    for version, what, body in rows:  # noqa: B007 - the last version is the rules' own
        if what == "kind":
            kinds.append(msgspec.json.decode(body, type=StreamKind))
        else:
            types.append(msgspec.json.decode(body, type=EventType))
    return Rules(tuple(kinds), tuple(types), version)


def declare(
    connection: Connection, schema: str, hello: Hello, declaration: StreamKind | EventType
) -> None:
    """Add a declaration under the log's lock, unless it is there already."""
    named = statements(schema)
    with connection.transaction():
        connection.execute(named["lock"], (hello.lock_key,))
        rules = rules_of(connection.execute(named["declarations"]).fetchall())
        version = rules.version + 1
        body = canonical_text(msgspec.to_builtins(declaration))
        if isinstance(declaration, StreamKind):
            if rules.knows_kind(declaration):
                return
            values = (version, "kind", declaration.name, 0, body)
            connection.execute(named["insert_declaration"], values)
            connection.execute(
                named["insert_kind"],
                (
                    declaration.name,
                    declaration.first_seq,
                    declaration.opening_type,
                    list(declaration.closing_types),
                    declaration.catalogue == "closed",
                ),
            )
            return
        if rules.knows_type(declaration):
            return
        entry = (version, "type", declaration.event_type, declaration.event_version, body)
        connection.execute(named["insert_declaration"], entry)
        if declaration.kind is not None:
            pair = (declaration.kind, declaration.event_type)
            connection.execute(named["insert_kind_type"], pair)

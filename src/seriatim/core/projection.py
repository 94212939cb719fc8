"""Projections as their users declare them: which events, by which key, into which tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.values import VALUES

Policy = Literal["stop", "park", "skip"]
Merge = Literal["sum", "min", "max"]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
Key = str | Callable[[EventRecord], str | None]

RESERVED = frozenset({"tenant_id", "position"})
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_NAME_MAX = 40
STREAM = "stream"  # a key: type and id of the stream, composed
_FIELDS = frozenset({STREAM, *EventRecord.__struct_fields__}) - {"payload", "metadata", "tags"}
_POLICIES = ("stop", "park", "skip")
_MERGES = ("sum", "min", "max")


class Table(msgspec.Struct, frozen=True):
    """A table of a read model: its key columns, then the others.

    Two rows of one key: `keep` says whether the one of the first or of the last event stays;
    columns named in `merge` are added up, or their least or greatest value stays.
    """

    name: str
    key: Mapping[str, type]
    columns: Mapping[str, type]
    keep: Literal["first", "last"] = "last"
    merge: Mapping[str, Merge] = msgspec.field(default_factory=dict)

    @property
    def fields(self) -> dict[str, type]:
        """All columns that a row gives."""
        return {**self.key, **self.columns}

    @property
    def declaration(self) -> dict[str, Any]:
        """The table as JSON has it."""
        return {
            "name": self.name,
            "key": [[name, VALUES[kind].name] for name, kind in self.key.items()],
            "columns": [[name, VALUES[kind].name] for name, kind in self.columns.items()],
            "keep": self.keep,
            "merge": dict(self.merge),
        }


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """A read model of the log, declared once; it runs as catch-up, live, and as a rebuild.

    A fold has `apply`; with a `state` of its own (a type) it returns it with rows by table,
    without one the row of its only table is its state. A frame has `transform`.
    """

    name: str
    tables: tuple[Table, ...]
    events: tuple[str, ...] = ("*",)
    stream_types: tuple[str, ...] | None = None
    key: Key | None = None
    version: int = 1
    on_failure: Policy = "stop"
    upcasters: Mapping[tuple[str, int], Upcaster] = msgspec.field(default_factory=dict)
    apply: Callable[[Any, EventRecord], Any] | None = None
    state: type | None = None
    transform: Callable[[Any], Any] | None = None

    @property
    def is_frame(self) -> bool:
        """Whether it is a DataFrame transformation, not a fold."""
        return self.transform is not None

    @property
    def declaration(self) -> str:
        """The declaration as text; code is not in it, so changed code wants another version."""
        return canonical_text(
            {
                "version": self.version,
                "events": list(self.events),
                "stream_types": None if self.stream_types is None else list(self.stream_types),
                "key": self.key if isinstance(self.key, str) else "function",
                "kind": "frame" if self.is_frame else "fold",
                "upcasters": sorted(f"{name} {version}" for name, version in self.upcasters),
                "tables": [table.declaration for table in self.tables],
            }
        )

    def table(self, name: str) -> Table:
        """Return a table by its name within the projection."""
        for table in self.tables:
            if table.name == name:
                return table
        raise InvalidArgument(
            f"projection {self.name} has no table {name!r:.80}: "
            f"{', '.join(table.name for table in self.tables)}",
            details={"projection": self.name},
        )

    def upcast(self, event: EventRecord) -> EventRecord:
        """Return the event in the newest version that an upcaster leads to."""
        while (step := self.upcasters.get((event.event_type, event.event_version))) is not None:
            payload = canonical_text(step(event.data))
            event = msgspec.structs.replace(
                event, payload=payload, event_version=event.event_version + 1
            )
        return event


def projection(  # noqa: PLR0913 - a declaration is its parts
    name: str,
    *,
    key: Key,
    columns: Mapping[str, type] | None = None,
    tables: Sequence[Table] | None = None,
    state: type | None = None,
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    version: int = 1,
    on_failure: Policy = "stop",
    upcasters: Mapping[tuple[str, int], Upcaster] | None = None,
) -> Callable[[Callable[[Any, EventRecord], Any]], Projection]:
    """Make a projection of a fold `apply(state, event)`.

    With `columns` the fold returns the row of its key (None: no row) and gets it as its state.
    With `tables` and a `state` type it returns `(state, {table: [rows]})`.
    """
    if (columns is None) == (tables is None) or (tables is None) != (state is None):
        raise _bad(name, "give columns, or tables and the type of the state")
    if columns is not None:
        column = key if isinstance(key, str) and key in _FIELDS - RESERVED else "key"
        tables = [Table(name, {column: str}, columns)]

    def declare(apply: Callable[[Any, EventRecord], Any]) -> Projection:
        return checked(
            Projection(
                name=name,
                key=key,
                tables=tuple(tables or ()),
                state=state,
                events=tuple(events),
                stream_types=None if stream_types is None else tuple(stream_types),
                version=version,
                on_failure=on_failure,
                upcasters=upcasters or {},
                apply=apply,
            )
        )

    return declare


def frame_projection(  # noqa: PLR0913 - a declaration is its parts
    name: str,
    *,
    key: Mapping[str, type],
    columns: Mapping[str, type],
    merge: Mapping[str, Merge],
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    version: int = 1,
    upcasters: Mapping[tuple[str, int], Upcaster] | None = None,
) -> Callable[[Callable[[Any], Any]], Projection]:
    """Make a projection of a DataFrame transformation: events in, rows of partial results out.

    `merge` says for every column how the results of two parts of the log become one.
    """

    def declare(transform: Callable[[Any], Any]) -> Projection:
        return checked(
            Projection(
                name=name,
                tables=(Table(name, key, columns, merge=merge),),
                events=tuple(events),
                stream_types=None if stream_types is None else tuple(stream_types),
                version=version,
                upcasters=upcasters or {},
                transform=transform,
            )
        )

    return declare


def checked(made: Projection) -> Projection:
    """Return a projection that can run, or say what is wrong with its declaration."""
    _check_name(made.name, made.name)
    if not made.events or not all(map(_is_pattern, made.events)):
        raise _bad(made.name, "events is a list of types, such as 'seat.reserved' or 'seat.*'")
    if made.on_failure not in _POLICIES:
        raise _bad(made.name, f"on_failure is one of {', '.join(_POLICIES)}")
    if type(made.version) is not int or made.version < 1:
        raise _bad(made.name, "version counts from 1")
    if isinstance(made.key, str) and made.key not in _FIELDS and not is_path(made.key):
        raise _bad(
            made.name, f"key {made.key!r:.80} is no field of an event: name one, or payload.name"
        )
    for table in made.tables:
        _check_table(made, table)
    return made


def _is_pattern(text: str) -> bool:
    return text == "*" or bool(text.removesuffix(".*") and "*" not in text.removesuffix(".*"))


def is_path(key: str) -> bool:
    """Tell whether a key names a place in the payload, such as `payload.seat`."""
    parts = key.split(".")
    return parts[0] == "payload" and len(parts) > 1 and all(parts)


def _check_table(made: Projection, table: Table) -> None:
    _check_name(made.name, table.name)
    for column, kind in table.fields.items():
        _check_name(made.name, column)
        if column in RESERVED:
            raise _bad(made.name, f"the column {column} is the read model's own")
        if kind not in VALUES:
            known = ", ".join(one.__name__ for one in VALUES)
            raise _bad(made.name, f"column {column} has no type a table can hold: {known}")
    if not table.key or table.key.keys() & table.columns.keys():
        raise _bad(made.name, f"table {table.name} needs a key apart from its columns")
    if set(table.key.values()) - {str, int, datetime}:
        raise _bad(made.name, f"key columns of table {table.name} are str, int or datetime")
    if made.is_frame and table.merge.keys() != table.columns.keys():
        raise _bad(made.name, "merge says for every column how two partial results become one")
    if set(table.merge.values()) - set(_MERGES):
        raise _bad(made.name, f"a column merges by {', '.join(_MERGES)}")


def _check_name(projection_name: str, name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise _bad(
            projection_name,
            f"{name!r:.80} is no name for a table or column: lower case letters, digits and "
            f"single underscores, at most {_NAME_MAX}",
        )


def _bad(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"projection {name!r:.80}: {problem}", details={"argument": "projection"}
    )

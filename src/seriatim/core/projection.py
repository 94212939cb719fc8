"""Projections as their users declare them: which events, by which key, into which tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text, safe_text
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.patterns import is_pattern
from seriatim.core.projection_key import FIELDS, STORED, Key, is_key, key_of
from seriatim.core.values import VALUES

Policy = Literal["stop", "park", "skip"]
Merge = Literal["sum", "min", "max"]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

# Ours, and those that every table of Postgres has.
RESERVED = frozenset({"tenant_id", "position", "cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
_OWN_NAMES = frozenset({"seriatim", "sqlite"})  # how tables of ours and of SQLite begin
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_NAME_MAX = 40
_TABLE_MAX = 55  # Postgres cuts names at 63 bytes, and a shadow's is longer by 8
_POLICIES = ("stop", "park", "skip")
_MERGES = ("sum", "min", "max")


class Table(msgspec.Struct, frozen=True):
    """A table of a read model: its key columns, then the others.

    Two rows of one key: `keep` says whether the one of the first or of the last event stays. In a
    DataFrame projection `merge` says of each column that it is added up, or that its least or
    greatest value stays.
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
    def _kind(self) -> str:
        if self.is_frame:
            return "frame"
        return "fold" if self.state is None else "fold with a state"

    @property
    def declaration(self) -> str:
        """The declaration as text; code is not in it, so changed code wants another version."""
        return canonical_text(
            {
                "version": self.version,
                "events": list(self.events),
                "stream_types": None if self.stream_types is None else list(self.stream_types),
                "key": self.key if isinstance(self.key, str) else "function",
                "kind": self._kind,
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

    def key_of(self, event: EventRecord) -> str | None:
        """Return the key of an event as it is stored; None passes the event over."""
        assert self.key is not None  # noqa: S101 - a fold has a key
        return key_of(self.key, event if self.key in STORED else self.upcast(event))

    def upcast(self, event: EventRecord) -> EventRecord:
        """Return the event in the newest version that an upcaster leads to."""
        while (step := self.upcasters.get((event.event_type, event.event_version))) is not None:
            made: Any = step(event.data)
            if not isinstance(made, dict):
                msg = (
                    f"the upcaster of {event.event_type} {event.event_version} returns a payload, "
                    f"got {type(made).__name__}"
                )
                raise TypeError(msg)
            event = msgspec.structs.replace(
                event, payload=safe_text(made), event_version=event.event_version + 1
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
        column = key if isinstance(key, str) and key in FIELDS - RESERVED else "key"
        tables = [Table(name, {column: str}, columns)]

    def declare(apply: Callable[[Any, EventRecord], Any]) -> Projection:
        return checked(
            Projection(
                name=name,
                key=key,
                tables=tuple(tables or ()),
                state=state,
                events=_texts(name, "events", events),
                stream_types=_texts(name, "stream_types", stream_types),
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
                events=_texts(name, "events", events),
                stream_types=_texts(name, "stream_types", stream_types),
                version=version,
                upcasters=upcasters or {},
                transform=transform,
            )
        )

    return declare


def _texts(projection_name: str, argument: str, given: Any) -> Any:
    if given is None or isinstance(given, str):
        return given
    try:
        return tuple(given)
    except TypeError:
        raise _bad(projection_name, f"{argument} is a list of types") from None


def checked(made: Projection) -> Projection:
    """Return a projection that can run, or say what is wrong with its declaration."""
    _check_name(made.name, made.name)
    if made.name.split("_")[0] in _OWN_NAMES:
        raise _bad(made.name, "names that begin with seriatim or sqlite are taken")
    if not _are_types(made.events, is_pattern):
        raise _bad(made.name, "events is a list of types, such as 'seat.reserved' or 'seat.*'")
    if made.stream_types is not None and not _are_types(made.stream_types, _is_type):
        raise _bad(made.name, "stream_types is a list of types, such as 'seat'")
    if made.on_failure not in _POLICIES:
        raise _bad(made.name, f"on_failure is one of {', '.join(_POLICIES)}")
    if type(made.version) is not int or made.version < 1:
        raise _bad(made.name, "version counts from 1")
    _check_code(made)
    _check_tables(made)
    return made


def _check_tables(made: Projection) -> None:
    if not made.tables:
        raise _bad(made.name, "it needs a table")
    if len({table.name for table in made.tables}) < len(made.tables):
        raise _bad(made.name, "two tables have one name")
    for table in made.tables:
        _check_table(made, table)
    alone = len(made.tables) == 1 and list(made.tables[0].key.values()) == [str]
    if not (made.is_frame or made.state is not None or alone):
        raise _bad(made.name, "several tables, or another key than one text, need a state's type")


def _check_code(made: Projection) -> None:
    if not callable(made.transform if made.is_frame else made.apply):
        raise _bad(made.name, "it needs a function to apply, or to transform with")
    if not made.is_frame and not is_key(made.key):
        raise _bad(
            made.name,
            f"key {made.key!r:.80} is no field of an event: name one, or payload.name, or "
            'payload["odd.name"], or give a function',
        )
    for known, step in made.upcasters.items():
        if not _is_version(known) or not callable(step):
            raise _bad(made.name, "upcasters are functions by (event type, version from 1)")
    if made.state is not None and not _is_state(made.state):
        raise _bad(made.name, f"a state is of a type that JSON can hold, not {made.state!r:.80}")


def _is_version(known: Any) -> bool:
    match known:
        case (str(), int(version)):
            return type(version) is int and version > 0
    return False


def _is_state(kind: Any) -> bool:
    try:
        return not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except (TypeError, NameError):
        return False


def _are_types(given: Any, rule: Callable[[str], bool]) -> bool:
    # A comma parts them in an option of the source.
    return (
        isinstance(given, tuple)
        and bool(given)
        and all(isinstance(one, str) and "," not in one and rule(one) for one in given)
    )


def _is_type(text: str) -> bool:
    return bool(text)


def _check_table(made: Projection, table: Table) -> None:
    _check_name(made.name, table.name)
    if table.name != made.name and len(made.name) + 1 + len(table.name) > _TABLE_MAX:
        raise _bad(made.name, f"its name and that of table {table.name} exceed {_TABLE_MAX}")
    fields: dict[str, Any] = dict(table.fields)
    for column, kind in fields.items():
        _check_name(made.name, column)
        if column in RESERVED:
            raise _bad(made.name, f"the column {column} is the read model's own")
        if not isinstance(kind, type) or kind not in VALUES:
            known = ", ".join(one.__name__ for one in VALUES)
            raise _bad(made.name, f"column {column} has no type a table can hold: {known}")
    if not table.key or table.key.keys() & table.columns.keys():
        raise _bad(made.name, f"table {table.name} needs a key apart from its columns")
    if set(table.key.values()) - {str, int, datetime}:
        raise _bad(made.name, f"key columns of table {table.name} are str, int or datetime")
    if table.keep not in ("first", "last"):
        raise _bad(made.name, f"table {table.name} keeps first or last")
    _check_merge(made, table)


def _check_merge(made: Projection, table: Table) -> None:
    if not made.is_frame:
        if table.merge:
            raise _bad(made.name, "merge is for frame_projection: a fold adds up in its state")
        return
    if table.merge.keys() != table.columns.keys():
        raise _bad(made.name, "merge says for every column how two partial results become one")
    for column, rule in table.merge.items():
        kind: Any = table.columns[column]
        if rule not in _MERGES:
            raise _bad(made.name, f"a column merges by {', '.join(_MERGES)}")
        if rule == "sum" and kind is not int:
            # Floats added in another order differ in their last digits.
            raise _bad(made.name, f"column {column} is a sum: only ints add up to the same again")
        if VALUES[kind].name == "json":
            raise _bad(made.name, f"column {column} is JSON, which has no least or greatest")


def _check_name(projection_name: str, name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise _bad(
            projection_name,
            f"{name!r:.80} is no name for a table or column: lower case letters, digits and "
            f"single underscores, at most {_NAME_MAX}",
        )


def _bad(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"projection {name!r:.80}: {problem}", details={"argument": "projection"}
    )

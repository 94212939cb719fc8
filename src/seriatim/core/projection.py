"""Declarations of projections: which events, by which key, into which tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text, check_and_encode, decode_stored_json
from seriatim.core.column_types import COLUMN_TYPES, stored_text_problem
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import RECORD_COLUMNS, EventRecord
from seriatim.core.ids import compose_key
from seriatim.core.indexes import parse_path
from seriatim.core.patterns import is_pattern

KeyExtractor = Callable[[EventRecord], str | None]
Key = str | KeyExtractor

STREAM_KEY = "stream"  # the key made of the stream's type and id
KEY_FIELDS = frozenset({STREAM_KEY, *RECORD_COLUMNS}) - {
    "payload",
    "metadata",
    "tags",
}
UPCAST_SAFE_FIELDS = KEY_FIELDS - {"event_version"}  # fields that upcasters do not change
_PAYLOAD = "payload"


def is_key(key: Any) -> bool:
    """Return whether a projection may declare this key."""
    return callable(key) or (isinstance(key, str) and (key in KEY_FIELDS or is_payload_path(key)))


def is_payload_path(key: str) -> bool:
    """Return whether a key is a path in the payload, such as `payload.seat`."""
    return parse_key_path(key) is not None


@lru_cache(maxsize=256)
def parse_key_path(key: str) -> tuple[str, ...] | None:
    """Parse a path in the payload into object keys; return None for another kind of key.

    A path is `payload.order.customer`, or `payload.labels["odd.key"]` if an object key contains a
    dot, a bracket or a quote.
    """
    path = key.removeprefix(_PAYLOAD)
    if path == key or path[:1] not in (".", "["):
        return None
    try:
        steps = parse_path(path.removeprefix("."))
    except InvalidArgument:
        return None
    names = tuple(step for step in steps if step is not None)
    return names if len(names) == len(steps) else None


def extract_key(key: Key, event: EventRecord) -> str | None:
    """Return the key of an event, or None if the event is to be skipped.

    Args:
        key: The declared key of the projection.
        event: The event, after the projection's upcasters.

    Raises:
        TypeError: A key function returned a value that is not a str.
        ValueError: The key is empty or cannot be stored.
    """
    return make_key_extractor(key)(event)


def make_key_extractor(key: Key) -> KeyExtractor:
    """Return the function that extracts a key; see `extract_key`."""
    if callable(key):
        return lambda event: _check_key(key(event))
    path = parse_key_path(key)
    if path is not None:
        return lambda event: extract_payload_key(path, event.payload_json)
    if key == STREAM_KEY:
        return _extract_stream
    read_field = attrgetter(key)
    return lambda event: format_key(read_field(event))


def _extract_stream(event: EventRecord) -> str | None:
    stream = event.stream
    return None if stream is None else compose_key(*stream)


def extract_payload_key(path: Sequence[str], payload: str) -> str | None:
    """Return the key at a path of a payload, given as its canonical text."""
    value = decode_stored_json(payload)
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return format_key(value)


def format_key(value: Any) -> str | None:
    """Return the key for a value of an event, or None for null."""
    if value is None:
        return None
    return _check_key(value if isinstance(value, str) else canonical_text(value))


def _check_key(key: Any) -> str | None:
    if key is None:
        return None
    if type(key) is not str:
        msg = f"a key must be a str, got {type(key).__name__}"
        raise TypeError(msg)
    if not key:
        msg = "the key is empty"
        raise ValueError(msg)
    if problem := stored_text_problem(key):
        raise ValueError(problem)
    return key


FailurePolicy = Literal["stop", "park", "skip"]
MergeRule = Literal["sum", "min", "max"]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

# The columns of read models, and the system columns of every Postgres table.
RESERVED_COLUMNS = frozenset(
    {"tenant_id", "position", "cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"}
)
_RESERVED_PREFIXES = frozenset({"seriatim", "sqlite"})  # of internal tables and those of SQLite
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_NAME_MAX = 40
_TABLE_MAX = 55  # Postgres truncates names at 63 bytes, and the name of a shadow is 8 longer
_POLICIES = ("stop", "park", "skip")
_MERGES = ("sum", "min", "max")


class Table(msgspec.Struct, frozen=True):
    """A table of a read model.

    Attributes:
        name: The name of the table.
        key: The key columns and their types.
        columns: The other columns and their types.
        keep: Which of two rows with the same key stays: that of the `first` or the `last` event.
        merge: In a DataFrame projection, how each column combines partial results: `sum`, `min`
            or `max`.

    Example:
        seats = Table("seats", key={"seat": str}, columns={"guest": str})
    """

    name: str
    key: Mapping[str, type]
    columns: Mapping[str, type]
    keep: Literal["first", "last"] = "last"
    merge: Mapping[str, MergeRule] = msgspec.field(default_factory=dict)

    @property
    def fields(self) -> dict[str, type]:
        """All columns of a row: the key columns, then the others."""
        return {**self.key, **self.columns}

    @property
    def declaration(self) -> dict[str, Any]:
        """The declaration of the table as JSON."""
        return {
            "name": self.name,
            "key": [[name, COLUMN_TYPES[kind].name] for name, kind in self.key.items()],
            "columns": [[name, COLUMN_TYPES[kind].name] for name, kind in self.columns.items()],
            "keep": self.keep,
            "merge": dict(self.merge),
        }


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """A declared read model of the log; the same declaration catches up, runs live and rebuilds.

    Attributes:
        name: The name of the projection.
        tables: The tables of its read model.
        events: Event types or patterns that it selects.
        stream_types: Stream types that it selects; None for all.
        key: The key of a fold: a field, a path in the payload, or a function.
        version: Increased when the code or the meaning changes.
        on_failure: The reaction to a failed event: `stop`, `park` its key, or `skip` it.
        upcasters: Functions by (event type, version) that return the next version's payload.
        apply: The fold. With a `state` type it returns the state and rows by table; without one,
            the row of its only table is the state.
        state: The type of the state, if the fold has one.
        transform: The transformation of a DataFrame projection, which has no `apply`.
    """

    name: str
    tables: tuple[Table, ...]
    events: tuple[str, ...] = ("*",)
    stream_types: tuple[str, ...] | None = None
    key: Key | None = None
    version: int = 1
    on_failure: FailurePolicy = "stop"
    upcasters: Mapping[tuple[str, int], Upcaster] = msgspec.field(default_factory=dict)
    apply: Callable[[Any, EventRecord], Any] | None = None
    state: type | None = None
    transform: Callable[[Any], Any] | None = None

    @property
    def is_frame(self) -> bool:
        """Whether this is a DataFrame projection instead of a fold."""
        return self.transform is not None

    @property
    def _kind(self) -> str:
        if self.is_frame:
            return "frame"
        return "fold" if self.state is None else "fold with a state"

    @property
    def declaration(self) -> str:
        """The declaration as text, without code: increase `version` when the code changes."""
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
        """Return a table by its name, or raise `InvalidArgument`."""
        for table in self.tables:
            if table.name == name:
                return table
        raise InvalidArgument(
            f"projection {self.name} has no table {name!r:.80}; its tables are "
            f"{', '.join(table.name for table in self.tables)}",
            details={"projection": self.name},
        )

    def extract_key(self, event: EventRecord) -> str | None:
        """Return the key of a stored event, or None if the event is to be skipped."""
        return self.make_key_extractor()(event)

    def make_key_extractor(self) -> KeyExtractor:
        """Return the function that extracts the key of stored events; see `extract_key`."""
        assert self.key is not None  # noqa: S101 - a fold has a key
        extract = make_key_extractor(self.key)
        if self.key in UPCAST_SAFE_FIELDS or not self.upcasters:
            return extract
        return lambda event: extract(self.upcast(event))

    def upcast(self, event: EventRecord) -> EventRecord:
        """Apply upcasters until the event has the newest version that they produce.

        Raises:
            TypeError: An upcaster returned a value that is not a dict.
        """
        while (step := self.upcasters.get((event.event_type, event.event_version))) is not None:
            payload: Any = step(event.payload)
            if not isinstance(payload, dict):
                msg = (
                    f"the upcaster of {event.event_type} version {event.event_version} must return "
                    f"a dict, got {type(payload).__name__}"
                )
                raise TypeError(msg)
            event = msgspec.structs.replace(
                event, payload_json=check_and_encode(payload), event_version=event.event_version + 1
            )
        return event


def projection(
    name: str,
    *,
    key: Key,
    columns: Mapping[str, type] | None = None,
    tables: Sequence[Table] | None = None,
    state: type | None = None,
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    version: int = 1,
    on_failure: FailurePolicy = "stop",
    upcasters: Mapping[tuple[str, int], Upcaster] | None = None,
) -> Callable[[Callable[[Any, EventRecord], Any]], Projection]:
    """Declare a projection with a fold function `apply(state, event)`.

    With `columns` the fold returns the row of its key, or None for no row, and receives it as its
    state. With `tables` and a `state` type it returns `(state, {table: [rows]})`.

    Args:
        name: The name of the projection and, with `columns`, of its table.
        key: A field of the event, a path such as `payload.seat`, or a function of the event.
        columns: The columns of the only table, without its key column.
        tables: The tables of a fold with a separate state.
        state: The type of the state, which JSON must be able to represent.
        events: Event types or patterns such as `seat.*`.
        stream_types: Stream types; None selects all events.
        version: Increase it when the code or the meaning changes.
        on_failure: What a failed event does: `stop` the projection, `park` its key, or `skip` it.
        upcasters: Functions by (event type, version) that return the payload of the next version.

    Returns:
        A decorator that turns the fold into a `Projection`.

    Raises:
        InvalidArgument: The declaration is invalid.

    Example:
        @projection("seats", key="payload.seat", columns={"taken": bool}, events=["seat.*"])
        def seats(row, event):
            return {"taken": event.event_type == "seat.reserved"}
    """
    if (columns is None) == (tables is None) or (tables is None) != (state is None):
        raise _declaration_error(name, "pass either columns, or tables and a state type")
    if columns is not None:
        column = key if isinstance(key, str) and key in KEY_FIELDS - RESERVED_COLUMNS else "key"
        tables = [Table(name, {column: str}, columns)]

    def declare(apply: Callable[[Any, EventRecord], Any]) -> Projection:
        return check_projection(
            Projection(
                name=name,
                key=key,
                tables=tuple(tables or ()),
                state=state,
                events=_to_tuple(name, "events", events),
                stream_types=_to_tuple(name, "stream_types", stream_types),
                version=version,
                on_failure=on_failure,
                upcasters=upcasters or {},
                apply=apply,
            )
        )

    return declare


def frame_projection(
    name: str,
    *,
    key: Mapping[str, type],
    columns: Mapping[str, type],
    merge: Mapping[str, MergeRule],
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    version: int = 1,
    upcasters: Mapping[tuple[str, int], Upcaster] | None = None,
) -> Callable[[Callable[[Any], Any]], Projection]:
    """Declare a projection with a DataFrame transformation from events to partial results.

    Args:
        name: The name of the projection and of its table.
        key: The key columns and their types.
        columns: The other columns and their types.
        merge: For each column how the results of two parts of the log combine: `sum`, `min` or
            `max`.
        events: Event types or patterns such as `seat.*`.
        stream_types: Stream types; None selects all events.
        version: Increase it when the code or the meaning changes.
        upcasters: Functions by (event type, version) that return the payload of the next version.

    Returns:
        A decorator that turns the transformation into a `Projection`.

    Raises:
        InvalidArgument: The declaration is invalid.

    Example:
        @frame_projection(
            "sales", key={"day": str}, columns={"orders": int}, merge={"orders": "sum"}
        )
        def sales(events):
            from pyspark.sql import functions as f

            day = f.to_date(events.recorded_at).cast("string").alias("day")
            return events.groupBy(day).agg(f.count("*").alias("orders"))
    """

    def declare(transform: Callable[[Any], Any]) -> Projection:
        return check_projection(
            Projection(
                name=name,
                tables=(Table(name, key, columns, merge=merge),),
                events=_to_tuple(name, "events", events),
                stream_types=_to_tuple(name, "stream_types", stream_types),
                version=version,
                upcasters=upcasters or {},
                transform=transform,
            )
        )

    return declare


def _to_tuple(projection_name: str, argument: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value  # `check_projection` rejects a str with a better message
    try:
        return tuple(value)
    except TypeError:
        raise _declaration_error(projection_name, f"{argument} must be a list of types") from None


def check_projection(declared: Projection) -> Projection:
    """Return the projection if its declaration is valid, or raise `InvalidArgument`."""
    _check_name(declared.name, declared.name)
    if declared.name.split("_")[0] in _RESERVED_PREFIXES:
        raise _declaration_error(
            declared.name, "names that begin with seriatim or sqlite are reserved"
        )
    if not _are_types(declared.events, is_pattern):
        raise _declaration_error(
            declared.name, "events must be a list of types, such as 'seat.reserved' or 'seat.*'"
        )
    if declared.stream_types is not None and not _are_types(declared.stream_types, _is_not_empty):
        raise _declaration_error(
            declared.name, "stream_types must be a list of types, such as 'seat'"
        )
    if declared.on_failure not in _POLICIES:
        raise _declaration_error(declared.name, f"on_failure must be one of {', '.join(_POLICIES)}")
    if type(declared.version) is not int or declared.version < 1:
        raise _declaration_error(declared.name, "version must be a whole number from 1")
    _check_code(declared)
    _check_tables(declared)
    return declared


def _check_tables(declared: Projection) -> None:
    if not declared.tables:
        raise _declaration_error(declared.name, "it needs at least one table")
    if len({table.name for table in declared.tables}) < len(declared.tables):
        raise _declaration_error(declared.name, "two tables have the same name")
    for table in declared.tables:
        _check_table(declared, table)
    is_row_of_key = len(declared.tables) == 1 and list(declared.tables[0].key.values()) == [str]
    if not (declared.is_frame or declared.state is not None or is_row_of_key):
        raise _declaration_error(
            declared.name,
            "several tables, or a key that is not one str column, require a state type",
        )


def _check_code(declared: Projection) -> None:
    if not callable(declared.transform if declared.is_frame else declared.apply):
        raise _declaration_error(
            declared.name, "it needs a function: apply for a fold, or transform"
        )
    if not declared.is_frame and not is_key(declared.key):
        raise _declaration_error(
            declared.name,
            f"key {declared.key!r:.80} is not a field of an event: use a field, payload.name, "
            'payload["odd.name"] or a function',
        )
    for versioned_type, upcaster in declared.upcasters.items():
        if not _is_versioned_type(versioned_type) or not callable(upcaster):
            raise _declaration_error(
                declared.name, "upcasters must map (event type, version from 1) to functions"
            )
    if declared.state is not None and not _is_state(declared.state):
        raise _declaration_error(
            declared.name,
            f"state must be a type that JSON can represent, not {declared.state!r:.80}",
        )


def _is_versioned_type(versioned_type: Any) -> bool:
    match versioned_type:
        case (str(), int(version)):
            return type(version) is int and version > 0
    return False


def _is_state(kind: Any) -> bool:
    try:
        return not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except (TypeError, NameError):
        return False


def _are_types(value: Any, is_valid: Callable[[str], bool]) -> bool:
    # No commas: the option of the Spark source that carries the types separates them with commas.
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(isinstance(item, str) and "," not in item and is_valid(item) for item in value)
    )


def _is_not_empty(text: str) -> bool:
    return bool(text)


def _check_table(declared: Projection, table: Table) -> None:
    _check_name(declared.name, table.name)
    if table.name != declared.name and len(declared.name) + 1 + len(table.name) > _TABLE_MAX:
        raise _declaration_error(
            declared.name, f"its name and table name {table.name} exceed {_TABLE_MAX} characters"
        )
    fields: dict[str, Any] = dict(table.fields)
    for column, kind in fields.items():
        _check_name(declared.name, column)
        if column in RESERVED_COLUMNS:
            raise _declaration_error(
                declared.name, f"column {column} is reserved for the read model"
            )
        if not isinstance(kind, type) or kind not in COLUMN_TYPES:
            supported = ", ".join(supported_type.__name__ for supported_type in COLUMN_TYPES)
            raise _declaration_error(
                declared.name, f"column {column} has an unsupported type; use one of {supported}"
            )
    if not table.key or table.key.keys() & table.columns.keys():
        raise _declaration_error(
            declared.name, f"table {table.name} needs key columns that are not in columns"
        )
    if set(table.key.values()) - {str, int, datetime}:
        raise _declaration_error(
            declared.name, f"key columns of table {table.name} must be str, int or datetime"
        )
    if table.keep not in ("first", "last"):
        raise _declaration_error(declared.name, f"keep of table {table.name} must be first or last")
    _check_merge(declared, table)


def _check_merge(declared: Projection, table: Table) -> None:
    if not declared.is_frame:
        if table.merge:
            raise _declaration_error(
                declared.name, "merge is for frame_projection only: a fold aggregates in its state"
            )
        return
    if table.merge.keys() != table.columns.keys():
        raise _declaration_error(declared.name, "merge must have a rule for every column")
    for column, rule in table.merge.items():
        kind: Any = table.columns[column]
        if rule not in _MERGES:
            raise _declaration_error(
                declared.name, f"merge rules must be one of {', '.join(_MERGES)}"
            )
        if rule == "sum" and kind is not int:
            # The sum of floats depends on their order, which differs between runs.
            raise _declaration_error(
                declared.name, f"column {column} has merge rule sum, which requires type int"
            )
        if COLUMN_TYPES[kind].name == "json":
            raise _declaration_error(
                declared.name, f"column {column} is JSON, which has no min or max"
            )


def _check_name(projection_name: str, name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise _declaration_error(
            projection_name,
            f"{name!r:.80} is not a valid name of a table or column: use lower case letters, "
            f"digits and single underscores, at most {_NAME_MAX} characters",
        )


def _declaration_error(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"projection {name!r:.80}: {problem}", details={"argument": "projection"}
    )

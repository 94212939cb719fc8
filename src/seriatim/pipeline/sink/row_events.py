"""Conversion of DataFrame rows to new events, with event ids that a rerun derives again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from seriatim.core.canonical import canonical_text, parse_strict_json
from seriatim.core.errors import InvalidArgument, InvalidEvent, ValidationError
from seriatim.core.event import COMMITTED_FIELDS, NewEvent
from seriatim.core.ids import derive_uuid
from seriatim.core.times import format_us

SOURCE_ID_COLUMN = "source_event_id"
BACKFILL_TAG_PREFIX = "backfill:"

_EVENT_COLUMNS = {*NewEvent.__struct_fields__, "stream_type", "stream_id"} - {"stream"}
# Columns of a frame that was read from a log which a new event does not have. The log assigns
# sequence numbers again, and `occurred_text` is `occurred_at` as the producer wrote it.
_READ_COLUMNS = COMMITTED_FIELDS | {"stream_seq"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TOO_DEEP = "payload is nested too deeply"

Row = dict[str, Any]


class RowMapping(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become events: which columns are dropped, and how event ids are derived.

    Attributes:
        name: The name of the source, which is part of derived ids.
        id_columns: The columns that an id is derived from; by default all columns.
        drop_committed: Whether columns that only the log sets are dropped, instead of refused.
        backfill: The name of a backfill, whose ids are derived from `source_event_id`.
    """

    name: str = ""
    id_columns: tuple[str, ...] = ()
    drop_committed: bool = False
    backfill: str | None = None


def check_columns(schema: t.StructType, mapping: RowMapping) -> None:
    """Check that every column can become part of an event, before anything is stored.

    Raises:
        InvalidArgument: A column is unknown, missing, set by the log alone, or of a wrong type.
    """
    _check_names(schema, mapping)
    _check_required(set(schema.names), mapping)
    dropped = _READ_COLUMNS if mapping.drop_committed else frozenset[str]()
    for field in schema:
        if field.name not in dropped and (
            problem := _find_type_problem(field.name, field.dataType)
        ):
            raise _column_error(field.name, f"the column {field.name} {problem}")


def _check_names(schema: t.StructType, mapping: RowMapping) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise _column_error(name, f"the column {name!r:.80} occurs twice")
        if name in _EVENT_COLUMNS or name in mapping.id_columns:
            continue
        if name in COMMITTED_FIELDS or name == "occurred_text":
            if not mapping.drop_committed:
                msg = (
                    f"the column {name} is set by the log alone: drop it, or use "
                    'option("committed", "drop") for rows that were read from a log'
                )
                raise _column_error(name, msg)
        elif not (name == SOURCE_ID_COLUMN and mapping.backfill is not None):
            raise _column_error(name, f"an event has no column {name!r:.80}")


def _check_required(names: set[str], mapping: RowMapping) -> None:
    if "event_type" not in names:
        raise _column_error("event_type", "the column event_type is required")
    for name in mapping.id_columns:
        if name not in names:
            raise _column_error(
                name, f"idColumns contains {name!r:.80}, which is not a column of the rows"
            )
    if mapping.backfill is not None and (SOURCE_ID_COLUMN not in names or "event_id" in names):
        msg = (
            "a backfill requires the column source_event_id and derives ids from it: drop event_id"
        )
        raise _column_error(SOURCE_ID_COLUMN, msg)


_TEXTS = (t.StringType, t.CharType, t.VarcharType)
_JSON_SCALARS = (*_TEXTS, t.BooleanType, t.IntegralType, t.FloatType, t.DoubleType, t.VariantType)


def _find_type_problem(name: str, kind: t.DataType) -> str | None:
    """Return why a column of this type cannot become part of an event, None if it can."""
    if isinstance(kind, t.NullType) or name not in {
        *_EVENT_COLUMNS,
        "occurred_text",
        SOURCE_ID_COLUMN,
    }:
        return None
    actual = kind.simpleString()[:80]
    match name:
        case "payload":
            if isinstance(kind, (*_TEXTS, t.VariantType)):
                return None
            if not isinstance(kind, t.StructType | t.MapType | t.ArrayType):
                return f"is {actual}: it must be JSON text, a VARIANT, a struct, a map or an array"
            return _find_nested_problem(kind)
        case "tags":
            valid = isinstance(kind, t.ArrayType) and isinstance(kind.elementType, _TEXTS)
            return None if valid else f"is {actual}: it must be array<string>"
        case "metadata":
            valid = isinstance(kind, t.MapType) and all(
                isinstance(part, _TEXTS) for part in (kind.keyType, kind.valueType)
            )
            return None if valid else f"is {actual}: it must be map<string,string>"
        case "event_version" | "stream_seq":
            valid = isinstance(kind, t.IntegralType)
            return None if valid else f"is {actual}: it must be a whole number"
        case "occurred_at":
            valid = isinstance(kind, (*_TEXTS, t.TimestampType))
            return (
                None if valid else f"is {actual}: it must be text or a timestamp with a time zone"
            )
    return None if isinstance(kind, _TEXTS) else f"is {actual}: it must be text"


def _find_nested_problem(kind: t.DataType) -> str | None:
    """Return why a type inside a payload cannot be written as JSON, None if it can."""
    if isinstance(kind, t.StructType):
        if len(set(kind.names)) < len(kind.names):
            return "has the same name twice in one struct"
        return next(filter(None, (_find_nested_problem(field.dataType) for field in kind)), None)
    if isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, _TEXTS):
            keys = kind.keyType.simpleString()
            return f"contains a map with keys of type {keys}: JSON keys are texts"
        return _find_nested_problem(kind.valueType)
    if isinstance(kind, t.ArrayType):
        return _find_nested_problem(kind.elementType)
    if isinstance(kind, (*_JSON_SCALARS, t.NullType)):
        return None
    return f"contains {kind.simpleString()[:80]}, which JSON lacks: cast it to text or a number"


def _column_error(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(message, details={"column": name})


class EventBuilder:
    """Builds new events from the rows of a DataFrame."""

    def __init__(self, schema: t.StructType, mapping: RowMapping) -> None:
        self._mapping = mapping
        self._converters = {
            field.name: _make_converter(field.dataType)
            for field in schema
            if field.name in ("payload", "metadata")
        }
        dropped = _READ_COLUMNS if mapping.drop_committed else frozenset[str]()
        self._dropped = dropped | {SOURCE_ID_COLUMN, "occurred_text"}
        self._dropped |= {name for name in mapping.id_columns if name not in _EVENT_COLUMNS}

    def decode_rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows of a batch as Python values; payloads and metadata as JSON values.

        A value that cannot be converted becomes an `UnreadableValue`, so that only its own row is
        refused.
        """
        for row in _to_python_rows(batch):
            for name, convert in self._converters.items():
                if row[name] is not None and not isinstance(row[name], UnreadableValue):
                    row[name] = _try_convert(convert, row[name])
            yield row

    def build_event(self, row: Row) -> NewEvent:
        """Build the event of a row.

        Raises:
            InvalidEvent: The row is not a valid event.
        """
        for name, value in row.items():
            if isinstance(value, UnreadableValue):
                raise InvalidEvent(f"{name} {value}", details={"field": name})
        try:
            return self._build(row)
        except RecursionError:
            raise InvalidEvent(_TOO_DEEP, details={"field": "payload"}) from None

    def _build(self, row: Row) -> NewEvent:
        fields = {
            name: value
            for name, value in row.items()
            if value is not None and name not in self._dropped
        }
        fields["event_id"] = self._derive_id(row)
        if "payload" in fields and isinstance(fields["payload"], str):
            fields["payload"] = _parse_payload(fields["payload"])
        if (occurred := row.get("occurred_text") or fields.get("occurred_at")) is not None:
            fields["occurred_at"] = _format_time(occurred)
        tags = tuple(fields.get("tags", ()))
        if self._mapping.backfill is not None:
            tags += (BACKFILL_TAG_PREFIX + self._mapping.backfill,)
        fields["tags"] = tags
        return NewEvent.from_mapping(fields)

    def _derive_id(self, row: Row) -> str:
        """Return the row's own event id, or one derived from the row, the same in every run."""
        mapping = self._mapping
        if mapping.backfill is not None:
            source = row[SOURCE_ID_COLUMN]
            if not source:
                msg = "a row of a backfill must name its source event in source_event_id"
                raise InvalidEvent(msg, details={"field": SOURCE_ID_COLUMN})
            return derive_uuid("backfill", mapping.backfill, str(source))
        if row.get("event_id") is not None:  # an empty id is refused later, like any invalid id
            return str(row["event_id"])
        # Sorted, because the order of columns in a DataFrame says nothing about the row.
        names = mapping.id_columns or sorted(row)
        return derive_uuid("row", mapping.name, *(_to_canonical_text(row[name]) for name in names))


def _to_canonical_text(value: object) -> str | None:
    return None if value is None else canonical_text(_to_json_value(value))


def _to_json_value(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _parse_payload(text: str) -> Any:
    """Parse the JSON text of a payload.

    Raises:
        InvalidEvent: The text is not JSON, or an object has the same key twice.
    """
    raw = text.encode(errors="surrogatepass")
    try:
        value = msgspec.json.decode(raw)
        # Hot path: if encoding the decoded value gives the same bytes, no key occurred twice.
        if msgspec.json.encode(value) == raw:
            return value
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the strict parser below explains the problem, or accepts the text
    try:
        return parse_strict_json(text)
    except ValidationError as error:
        too_deep = error.message.endswith("RecursionError")
        msg = _TOO_DEEP if too_deep else f"payload is not JSON: {error.message}"
        raise InvalidEvent(msg, details={"field": "payload"}) from None


class UnreadableValue(str):
    """The reason why a value could not be converted, in place of the value."""

    __slots__ = ()


def _to_python_rows(batch: pa.RecordBatch) -> Iterable[Row]:
    """Return the rows of a batch as Python values.

    Spark has times and texts that Python cannot represent; those become unreadable values.
    """
    try:
        rows: list[Row] = batch.to_pylist()
    except (OverflowError, ValueError):
        columns = [[_try_convert(_as_py, value) for value in column] for column in batch.columns]
        names = batch.schema.names
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return rows


def _as_py(value: pa.Scalar) -> Any:
    return value.as_py()


def _try_convert(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a value; return an unreadable value with the reason if that fails."""
    try:
        return convert(value)
    except RecursionError:
        return UnreadableValue("is nested too deeply")
    except InvalidEvent as error:
        return UnreadableValue(f"cannot be read: {error.message}"[:200])
    except (OverflowError, TypeError, ValueError) as error:
        return UnreadableValue(f"cannot be read: {error}"[:200])


def _format_time(value: object) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            msg = "occurred_at must be text or a timestamp with a time zone"
            raise InvalidEvent(msg, details={"field": "occurred_at"})
        return format_us((value - _EPOCH) // _MICROSECOND)
    return str(value)


def _make_converter(kind: t.DataType) -> Callable[[Any], Any]:
    """Return a function from a value of a Spark type, as Arrow returns it, to a JSON value."""
    if isinstance(kind, t.VariantType):
        # Through JSON text: as Python values, fractions and large numbers would be decimals.
        return lambda value: _parse_payload(
            t.VariantVal(value["value"], value["metadata"]).toJson()
        )
    if isinstance(kind, t.StructType):
        parts = {field.name: _make_converter(field.dataType) for field in kind}
        return lambda value: {
            name: parts[name](part) for name, part in value.items() if part is not None
        }
    if isinstance(kind, t.MapType):
        inner = _make_converter(kind.valueType)
        return lambda value: _build_object(
            (str(key), None if part is None else inner(part)) for key, part in _get_items(value)
        )
    if isinstance(kind, t.ArrayType):
        inner = _make_converter(kind.elementType)
        return lambda value: [None if part is None else inner(part) for part in value]
    return lambda value: value


def _build_object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    items = list(pairs)
    result = dict(items)
    if len(result) < len(items):
        msg = "a map has the same key twice"
        raise ValueError(msg)
    return result


def _get_items(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value

"""From the rows of a DataFrame to new events, with ids that a repetition makes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from seriatim.core.canonical import canonical_text, parse_json
from seriatim.core.errors import Flaw, InvalidArgument, InvalidEvent
from seriatim.core.event import COMMITTED_FIELDS, NewEvent
from seriatim.core.ids import derived_uuid
from seriatim.core.times import format_us

SOURCE_ID = "source_event_id"
TAG = "backfill:"

_EVENT_COLUMNS = {*NewEvent.__struct_fields__, "stream_type", "stream_id"} - {"stream"}
# What a frame that was read from a log has, and a new event has not. The number in its stream is
# the log's to give, and `occurred_text` is another spelling of `occurred_at`.
_READ_COLUMNS = COMMITTED_FIELDS | {"stream_seq"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TOO_DEEP = "payload is nested too deeply"

Row = dict[str, Any]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become events: which columns are dropped, and of what ids are made."""

    name: str = ""
    id_columns: tuple[str, ...] = ()
    drop_committed: bool = False
    backfill: str | None = None


def check_columns(schema: t.StructType, shape: Shape) -> None:
    """Refuse columns that no event has, of another type, or that the log alone sets.

    Nothing is stored then.
    """
    _check_names(schema, shape)
    _check_needed(set(schema.names), shape)
    dropped = _READ_COLUMNS if shape.drop_committed else frozenset[str]()
    for field in schema:
        if field.name not in dropped and (problem := _type_problem(field.name, field.dataType)):
            raise _refused(field.name, f"the column {field.name} {problem}")


def _check_names(schema: t.StructType, shape: Shape) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise _refused(name, f"the rows have the column {name!r:.80} twice")
        if name in _EVENT_COLUMNS or name in shape.id_columns:
            continue
        if name in COMMITTED_FIELDS or name == "occurred_text":
            if not shape.drop_committed:
                msg = (
                    f"the column {name} is set by the log alone: drop it, or say "
                    'option("committed", "drop") for rows that were read from a log'
                )
                raise _refused(name, msg)
        elif not (name == SOURCE_ID and shape.backfill is not None):
            raise _refused(name, f"an event has no column {name!r:.80}")


def _check_needed(names: set[str], shape: Shape) -> None:
    if "event_type" not in names:
        raise _refused("event_type", "the column event_type is needed")
    for name in shape.id_columns:
        if name not in names:
            raise _refused(name, f"idColumns names {name!r:.80}, which the rows do not have")
    if shape.backfill is not None and (SOURCE_ID not in names or "event_id" in names):
        msg = "a backfill takes the column source_event_id, of which it makes ids, and no event_id"
        raise _refused(SOURCE_ID, msg)


_TEXTS = (t.StringType, t.CharType, t.VarcharType)
_PLAIN = (*_TEXTS, t.BooleanType, t.IntegralType, t.FloatType, t.DoubleType, t.VariantType)


def _type_problem(name: str, kind: t.DataType) -> str | None:
    """Say why a column of this type cannot become a part of an event, None when it can."""
    if isinstance(kind, t.NullType) or name not in {*_EVENT_COLUMNS, "occurred_text", SOURCE_ID}:
        return None
    shown = kind.simpleString()[:80]
    match name:
        case "payload":
            if isinstance(kind, (*_TEXTS, t.VariantType)):
                return None
            if not isinstance(kind, t.StructType | t.MapType | t.ArrayType):
                return f"is {shown}: it must be JSON text, a VARIANT, a struct, a map or an array"
            return _nested_problem(kind)
        case "tags":
            fits = isinstance(kind, t.ArrayType) and isinstance(kind.elementType, _TEXTS)
            return None if fits else f"is {shown}: it must be array<string>"
        case "metadata":
            fits = isinstance(kind, t.MapType) and all(
                isinstance(one, _TEXTS) for one in (kind.keyType, kind.valueType)
            )
            return None if fits else f"is {shown}: it must be map<string,string>"
        case "event_version" | "stream_seq":
            fits = isinstance(kind, t.IntegralType)
            return None if fits else f"is {shown}: it must be a whole number"
        case "occurred_at":
            fits = isinstance(kind, (*_TEXTS, t.TimestampType))
            return None if fits else f"is {shown}: it must be text or a timestamp with a time zone"
    return None if isinstance(kind, _TEXTS) else f"is {shown}: it must be text"


def _nested_problem(kind: t.DataType) -> str | None:
    """Say why a type inside a payload has no JSON, None when it has."""
    if isinstance(kind, t.StructType):
        if len(set(kind.names)) < len(kind.names):
            return "has the same name twice in one struct"
        return next(filter(None, (_nested_problem(field.dataType) for field in kind)), None)
    if isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, _TEXTS):
            return f"holds a map whose keys are {kind.keyType.simpleString()}: JSON has texts"
        return _nested_problem(kind.valueType)
    if isinstance(kind, t.ArrayType):
        return _nested_problem(kind.elementType)
    if isinstance(kind, (*_PLAIN, t.NullType)):
        return None
    return f"holds {kind.simpleString()[:80]}, which JSON has not: cast it to text or a number"


def _refused(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(message, details={"column": name})


class Maker:
    """Makes the events of rows."""

    def __init__(self, schema: t.StructType, shape: Shape) -> None:
        self._shape = shape
        readers = {f.name: _reader(f.dataType) for f in schema if f.name in ("payload", "metadata")}
        self._readers = readers
        dropped = _READ_COLUMNS if shape.drop_committed else frozenset[str]()
        self._dropped = dropped | {SOURCE_ID, "occurred_text"}
        self._dropped |= {name for name in shape.id_columns if name not in _EVENT_COLUMNS}

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Return the rows of a batch as plain values, nested ones as JSON has them."""
        for row in _plain_rows(batch):
            for name, read in self._readers.items():
                if row[name] is not None and not isinstance(row[name], Unreadable):
                    row[name] = _read(read, row[name])
            yield row

    def event(self, row: Row) -> NewEvent:
        """Make the event of a row, or refuse it."""
        for name, value in row.items():
            if isinstance(value, Unreadable):
                raise InvalidEvent(f"{name} {value}", details={"field": name})
        try:
            return self._event(row)
        except RecursionError:
            raise InvalidEvent(_TOO_DEEP, details={"field": "payload"}) from None

    def _event(self, row: Row) -> NewEvent:
        fields = {k: v for k, v in row.items() if v is not None and k not in self._dropped}
        fields["event_id"] = self._id(row)
        if "payload" in fields and isinstance(fields["payload"], str):
            fields["payload"] = _json(fields["payload"])
        if (occurred := row.get("occurred_text") or fields.get("occurred_at")) is not None:
            fields["occurred_at"] = _time(occurred)
        tags = tuple(fields.get("tags", ()))
        if self._shape.backfill is not None:
            tags += (TAG + self._shape.backfill,)
        fields["tags"] = tags
        return NewEvent.from_mapping(fields)

    def _id(self, row: Row) -> str:
        """Return the event's own id, or one that the same row always gets."""
        shape = self._shape
        if shape.backfill is not None:
            source = row[SOURCE_ID]
            if not source:
                msg = "a row of a backfill must name its source event"
                raise InvalidEvent(msg, details={"field": SOURCE_ID})
            return derived_uuid("backfill", shape.backfill, str(source))
        if row.get("event_id") is not None:  # an empty one is refused as any bad id is
            return str(row["event_id"])
        names = shape.id_columns or sorted(row)
        return derived_uuid("row", shape.name, *(_text(row[name]) for name in names))


def _text(value: object) -> str | None:
    return None if value is None else canonical_text(_json_value(value))


def _json_value(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _json(text: str) -> Any:
    """Parse the text of a payload; a key twice in one object is refused."""
    raw = text.encode(errors="surrogatepass")
    try:
        value = msgspec.json.decode(raw)
        # What comes out as it went in, once read and written again, has no key twice.
        if msgspec.json.encode(value) == raw:
            return value
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the strict reader says what is wrong, or knows it
    try:
        return parse_json(text)
    except Flaw as flaw:
        deep = flaw.message.endswith("RecursionError")
        msg = _TOO_DEEP if deep else f"payload is no JSON text: {flaw.message}"
        raise InvalidEvent(msg, details={"field": "payload"}) from None


class Unreadable(str):
    """Stands for a value that could not be read, and says why."""

    __slots__ = ()


def _plain_rows(batch: pa.RecordBatch) -> Iterable[Row]:
    """Return a batch as Python's values; Spark has times and texts that Python has not."""
    try:
        rows: list[Row] = batch.to_pylist()
    except (OverflowError, ValueError):
        columns = [[_read(_as_py, one) for one in column] for column in batch.columns]
        names = batch.schema.names
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return rows


def _as_py(value: pa.Scalar) -> Any:
    return value.as_py()


def _read(read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except RecursionError:
        return Unreadable("is nested too deeply")
    except InvalidEvent as error:
        return Unreadable(f"cannot be read: {error.message}"[:200])
    except (OverflowError, TypeError, ValueError) as error:
        return Unreadable(f"cannot be read: {error}"[:200])


def _time(value: object) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            msg = "occurred_at must be a text or a timestamp with a time zone"
            raise InvalidEvent(msg, details={"field": "occurred_at"})
        return format_us((value - _EPOCH) // _MICROSECOND)
    return str(value)


def _reader(kind: t.DataType) -> Callable[[Any], Any]:
    """Return what turns a value of a Spark type, as Arrow shows it, into one that JSON has."""
    if isinstance(kind, t.VariantType):
        # Its JSON, not its Python values: fractions and large numbers would be decimals there.
        return lambda value: _json(t.VariantVal(value["value"], value["metadata"]).toJson())
    if isinstance(kind, t.StructType):
        parts = {f.name: _reader(f.dataType) for f in kind}
        return lambda value: {k: parts[k](v) for k, v in value.items() if v is not None}
    if isinstance(kind, t.MapType):
        inner = _reader(kind.valueType)
        return lambda value: _object(
            (str(k), None if v is None else inner(v)) for k, v in _pairs(value)
        )
    if isinstance(kind, t.ArrayType):
        inner = _reader(kind.elementType)
        return lambda value: [None if one is None else inner(one) for one in value]
    return lambda value: value


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    given = list(pairs)
    found = dict(given)
    if len(found) < len(given):
        msg = "a map has the same key twice"
        raise ValueError(msg)
    return found


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value

"""From the rows of a DataFrame to new events, with ids that a repetition makes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from seriatim.core.canonical import canonical_text, read_json
from seriatim.core.errors import InvalidArgument, InvalidEvent
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

Row = dict[str, Any]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become events: which columns are dropped, and of what ids are made."""

    name: str = ""
    id_columns: tuple[str, ...] = ()
    drop_committed: bool = False
    backfill: str | None = None


def check_columns(schema: t.StructType, shape: Shape) -> None:
    """Refuse columns that no event has, or that the log alone sets, before anything is stored."""
    names = set(schema.names)
    for name in schema.names:
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
    if "event_type" not in names:
        raise _refused("event_type", "the column event_type is needed")
    for name in shape.id_columns:
        if name not in names:
            raise _refused(name, f"idColumns names {name!r:.80}, which the rows do not have")
    if shape.backfill is not None and (SOURCE_ID not in names or "event_id" in names):
        msg = "a backfill takes the column source_event_id, of which it makes ids, and no event_id"
        raise _refused(SOURCE_ID, msg)


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
        for row in batch.to_pylist():
            for name, read in self._readers.items():
                if row[name] is not None:
                    row[name] = read(row[name])
            yield row

    def event(self, row: Row) -> NewEvent:
        """Make the event of a row, or refuse it."""
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
        if row.get("event_id"):
            return str(row["event_id"])
        names = shape.id_columns or sorted(row)
        return derived_uuid("row", shape.name, *(_text(row[name]) for name in names))


def _text(value: object) -> str | None:
    return None if value is None else canonical_text(_json_value(value))


def _json_value(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        msg = "payload is no JSON text"
        raise InvalidEvent(msg, details={"field": "payload"}) from None


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
        return lambda value: t.VariantVal(value["value"], value["metadata"]).toPython()
    if isinstance(kind, t.StructType):
        parts = {f.name: _reader(f.dataType) for f in kind}
        return lambda value: {k: parts[k](v) for k, v in value.items() if v is not None}
    if isinstance(kind, t.MapType):
        inner = _reader(kind.valueType)
        return lambda value: {str(k): None if v is None else inner(v) for k, v in _pairs(value)}
    if isinstance(kind, t.ArrayType):
        inner = _reader(kind.elementType)
        return lambda value: [None if one is None else inner(one) for one in value]
    return lambda value: value


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value

"""Arrow and Spark schemas of events, shared by the data source, the archive and the lake."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as t

from seriatim.core.event import ENVELOPE_TEXTS

_TIME = pa.timestamp("us", tz="UTC")

# Columns are in the order of EventRecord's fields. `occurred_text` is `occurred_at` exactly as the
# producer wrote it; it is null where the log set the time itself. Archived segments contain these
# columns, so a change of the schema is a new version of the archive format.
EVENT_SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("append_position", pa.int64(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("tenant_id", pa.string(), nullable=False),
        pa.field("stream_type", pa.string()),
        pa.field("stream_id", pa.string()),
        pa.field("stream_seq", pa.int64()),
        pa.field("event_type", pa.string(), nullable=False),
        pa.field("event_version", pa.int32(), nullable=False),
        pa.field("occurred_at", _TIME, nullable=False),
        pa.field("occurred_text", pa.string()),
        pa.field("recorded_at", _TIME, nullable=False),
        *(pa.field(name, pa.string()) for name in ENVELOPE_TEXTS),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.string(), nullable=False),
        pa.field("payload_hash", pa.string(), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
    ]
)
EVENT_COLUMNS: tuple[str, ...] = tuple(EVENT_SCHEMA.names)

_SPARK_TYPES: dict[pa.DataType, t.DataType] = {
    pa.int64(): t.LongType(),
    pa.int32(): t.IntegerType(),
    pa.string(): t.StringType(),
    _TIME: t.TimestampType(),
    pa.map_(pa.string(), pa.string()): t.MapType(t.StringType(), t.StringType()),
    pa.list_(pa.string()): t.ArrayType(t.StringType()),
}


def build_spark_schema(names: tuple[str, ...] = EVENT_COLUMNS) -> t.StructType:
    """Return the Spark schema of the given event columns.

    Args:
        names: Column names of an event, in the order the schema should have.

    Returns:
        A struct type with the types and nullability of `EVENT_SCHEMA`.
    """
    fields = [EVENT_SCHEMA.field(name) for name in names]
    return t.StructType(
        [t.StructField(field.name, _SPARK_TYPES[field.type], field.nullable) for field in fields]
    )

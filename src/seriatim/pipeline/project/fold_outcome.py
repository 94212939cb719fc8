"""The outcome of a fold: rows, states and failures, encoded by tasks, decoded by the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from seriatim.core.column_types import COLUMN_TYPES
from seriatim.core.fold import Failure, Fold, ReadModelRow, Row
from seriatim.core.projection import Projection, Table
from seriatim.pipeline.source.watermarks import find_covered_range
from seriatim.runs.projection_job import FoldOutcome, get_failure_status
from seriatim.store.readmodel.port import ProjectionStep

# One row per item; `kind` decides which columns are set.
OUTCOME_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # state_row, row, state, failure, watermark or count
        ("table", pa.string()),
        ("tenant_id", pa.string()),
        ("key", pa.string()),
        ("position", pa.int64()),
        ("body", pa.string()),
    ]
)
SPARK_OUTCOME_SCHEMA = t.StructType(
    [
        t.StructField(field.name, t.LongType() if field.name == "position" else t.StringType())
        for field in OUTCOME_SCHEMA
    ]
)
_BATCH_ROWS = 20_000

OutcomeRow = tuple[str, str | None, str | None, str | None, int | None, str | None]


class RowCodec:
    """Encodes the rows of a table as JSON text and decodes them."""

    def __init__(self, table: Table) -> None:
        self._values = [(name, COLUMN_TYPES[kind]) for name, kind in table.fields.items()]
        self.key_columns = tuple(table.key)

    def encode(self, row: Row) -> str:
        """Encode a row in its stored form."""
        values = [
            None if row[name] is None else value.to_json(row[name]) for name, value in self._values
        ]
        return msgspec.json.encode(values).decode()

    def decode(self, text: str) -> Row:
        """Decode a row."""
        return {
            name: None if item is None else value.from_json(item)
            for (name, value), item in zip(self._values, msgspec.json.decode(text), strict=True)
        }


def encode_fold(fold: Fold, watermarks: Iterable[tuple[int, int]]) -> Iterator[OutcomeRow]:
    """Encode the watermarks, failures, rows and states of a task's fold."""
    yield from (("watermark", None, None, None, until, str(after)) for after, until in watermarks)
    for failure in fold.failures:
        body = msgspec.json.encode(failure).decode()
        yield "failure", None, failure.tenant_id, failure.key, failure.position, body
    projection = fold.projection
    codecs = {table.name: RowCodec(table) for table in projection.tables}
    if projection.state is None:
        codec = codecs[projection.tables[0].name]
        for (tenant_id, key), model_row in fold.state_rows():
            text = None if model_row.row is None else codec.encode(model_row.row)
            yield "state_row", None, tenant_id, key, model_row.position, text
        return
    for (tenant_id, key), position in fold.changed.items():
        yield "state", None, tenant_id, key, position, fold.states[tenant_id, key]
    for name, rows in fold.rows.items():
        for model_row in rows.values():
            if model_row.row is not None:
                yield (
                    "row",
                    name,
                    model_row.tenant_id,
                    None,
                    model_row.position,
                    codecs[name].encode(model_row.row),
                )


def encode_count(events: int) -> OutcomeRow:
    """Encode the number of events that a task read."""
    return "count", None, None, None, events, None


def to_record_batches(rows: Iterable[OutcomeRow]) -> Iterator[pa.RecordBatch]:
    """Group rows into record batches of bounded size."""
    group: list[OutcomeRow] = []
    for row in rows:
        group.append(row)
        if len(group) == _BATCH_ROWS:
            yield _make_batch(group)
            group = []
    if group:
        yield _make_batch(group)


def _make_batch(group: list[OutcomeRow]) -> pa.RecordBatch:
    columns = zip(zip(*group, strict=True), OUTCOME_SCHEMA.types, strict=True)
    arrays = [pa.array(column, kind) for column, kind in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=OUTCOME_SCHEMA)


def decode_outcome(projection: Projection, table: pa.Table) -> FoldOutcome:
    """Decode and combine the rows that the tasks of a batch returned."""
    decoder = _OutcomeDecoder(projection)
    for batch in table.to_batches():
        columns = [column.to_pylist() for column in batch.columns]
        for kind, *fields in zip(*columns, strict=True):
            getattr(decoder, kind)(*fields)
    return decoder.outcome()


class _OutcomeDecoder:
    """Combines rows; it has one method for each `kind`, called by name."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._codecs = {table.name: RowCodec(table) for table in projection.tables}
        self._state_codec = self._codecs[projection.tables[0].name]
        self._rows: dict[str, dict[tuple[Any, ...], ReadModelRow]] = {}
        self._step = ProjectionStep(after=0, until=0, last_event_id="")
        self._watermarks: list[tuple[int, int]] = []
        self._events_read = 0
        self._status = get_failure_status(projection)

    def watermark(self, _t: Any, _tenant: Any, _key: Any, position: int, body: str) -> None:
        self._watermarks.append((int(body), position))

    def count(self, _t: Any, _tenant: Any, _key: Any, events: int, _body: Any) -> None:
        self._events_read += events

    def failure(self, _t: Any, _tenant: Any, _key: Any, _position: Any, body: str) -> None:
        self._step.failures.append((msgspec.json.decode(body, type=Failure), self._status))

    def state_row(self, _t: Any, tenant_id: str, key: str, position: int, body: str | None) -> None:
        row = None if body is None else self._state_codec.decode(body)
        self._step.state_rows[tenant_id, key] = ReadModelRow(tenant_id, position, row)

    def state(self, _t: Any, tenant_id: str, key: str, position: int, body: str) -> None:
        self._step.states[tenant_id, key] = (position, body)

    def row(self, table: str, tenant_id: str, _key: Any, position: int, body: str) -> None:
        codec = self._codecs[table]
        row = codec.decode(body)
        key = (tenant_id, *(row[name] for name in codec.key_columns))
        rows = self._rows.setdefault(table, {})
        existing = rows.get(key)
        # Several keys of the projection may write one row: the declaration says which one wins.
        first = self._projection.table(table).keep == "first"
        if existing is None or (position < existing.position) == first:
            rows[key] = ReadModelRow(tenant_id, position, row)

    def outcome(self) -> FoldOutcome:
        self._step.rows = {table: list(rows.values()) for table, rows in self._rows.items()}
        return FoldOutcome(self._step, find_covered_range(self._watermarks), self._events_read)

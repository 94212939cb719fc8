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
from seriatim.store.readmodel.port import FailureStatus, ProjectionStep

# One row per item; `kind` decides which columns are set.
OUTCOME_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # own, row, state, failure, mark or count
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
_STATUS: dict[str, FailureStatus] = {"stop": "stopped", "park": "parked", "skip": "skipped"}

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
            name: None if found is None else value.from_json(found)
            for (name, value), found in zip(self._values, msgspec.json.decode(text), strict=True)
        }


def encode_fold(fold: Fold, marks: Iterable[tuple[int, int]]) -> Iterator[OutcomeRow]:
    """Encode the watermarks, failures, rows and states of a task's fold."""
    yield from (("mark", None, None, None, until, str(after)) for after, until in marks)
    for failure in fold.failures:
        body = msgspec.json.encode(failure).decode()
        yield "failure", None, failure.tenant_id, failure.key, failure.position, body
    projection = fold.projection
    coders = {table.name: RowCodec(table) for table in projection.tables}
    if projection.state is None:
        coder = coders[projection.tables[0].name]
        for (tenant_id, key), kept in fold.state_rows():
            text = None if kept.row is None else coder.encode(kept.row)
            yield "own", None, tenant_id, key, kept.position, text
        return
    for (tenant_id, key), position in fold.changed.items():
        yield "state", None, tenant_id, key, position, fold.states[tenant_id, key]
    for name, rows in fold.rows.items():
        for kept in rows.values():
            if kept.row is not None:
                yield (
                    "row",
                    name,
                    kept.tenant_id,
                    None,
                    kept.position,
                    coders[name].encode(kept.row),
                )


def encode_count(events: int) -> OutcomeRow:
    """Encode the number of events that a task read."""
    return "count", None, None, None, events, None


def to_record_batches(lines: Iterable[OutcomeRow]) -> Iterator[pa.RecordBatch]:
    """Group rows into record batches of bounded size."""
    group: list[OutcomeRow] = []
    for line in lines:
        group.append(line)
        if len(group) == _BATCH_ROWS:
            yield _batch(group)
            group = []
    if group:
        yield _batch(group)


def _batch(group: list[OutcomeRow]) -> pa.RecordBatch:
    columns = zip(zip(*group, strict=True), OUTCOME_SCHEMA.types, strict=True)
    arrays = [pa.array(column, kind) for column, kind in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=OUTCOME_SCHEMA)


class FoldOutcome(msgspec.Struct):
    """The outcome of a batch.

    Attributes:
        step: The changes of the read model; the caller sets its range.
        seen: The range of positions that the batch covers, if it has watermarks.
        read: The number of events that were read.

    """

    step: ProjectionStep
    position_range: tuple[int, int] | None
    events_read: int = 0

    @property
    def first_failure(self) -> Failure | None:
        """The failure with the lowest position, or None."""
        failures = (failure for failure, _ in self.step.failures)
        return min(failures, key=lambda failure: failure.position, default=None)


def decode_outcome(projection: Projection, found: pa.Table) -> FoldOutcome:
    """Decode and combine the rows that the tasks of a batch returned."""
    decoder = _OutcomeDecoder(projection)
    for batch in found.to_batches():
        columns = [column.to_pylist() for column in batch.columns]
        for kind, *line in zip(*columns, strict=True):
            getattr(decoder, kind)(*line)
    return decoder.outcome()


class _OutcomeDecoder:
    """Combines rows; it has one method for each `kind`, called by name."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._coders = {table.name: RowCodec(table) for table in projection.tables}
        self._own = self._coders[projection.tables[0].name]
        self._rows: dict[str, dict[tuple[Any, ...], ReadModelRow]] = {}
        self._step = ProjectionStep(after=0, until=0, last_event_id="")
        self._marks: list[tuple[int, int]] = []
        self._read = 0
        self._status = _STATUS[projection.on_failure]

    def mark(self, _t: Any, _tenant: Any, _key: Any, position: int, body: str) -> None:
        self._marks.append((int(body), position))

    def count(self, _t: Any, _tenant: Any, _key: Any, events: int, _body: Any) -> None:
        self._read += events

    def failure(self, _t: Any, _tenant: Any, _key: Any, _position: Any, body: str) -> None:
        self._step.failures.append((msgspec.json.decode(body, type=Failure), self._status))

    def own(self, _t: Any, tenant_id: str, key: str, position: int, body: str | None) -> None:
        row = None if body is None else self._own.decode(body)
        self._step.state_rows[tenant_id, key] = ReadModelRow(tenant_id, position, row)

    def state(self, _t: Any, tenant_id: str, key: str, position: int, body: str) -> None:
        self._step.states[tenant_id, key] = (position, body)

    def row(self, table: str, tenant_id: str, _key: Any, position: int, body: str) -> None:
        coder = self._coders[table]
        row = coder.decode(body)
        key = (tenant_id, *(row[name] for name in coder.key_columns))
        rows = self._rows.setdefault(table, {})
        known = rows.get(key)
        # Several keys of the projection may write one row: the declaration says which one wins.
        first = self._projection.table(table).keep == "first"
        if known is None or (position < known.position) == first:
            rows[key] = ReadModelRow(tenant_id, position, row)

    def outcome(self) -> FoldOutcome:
        self._step.rows = {table: list(rows.values()) for table, rows in self._rows.items()}
        return FoldOutcome(self._step, find_covered_range(self._marks), self._read)

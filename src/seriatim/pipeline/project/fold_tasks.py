"""Spark tasks that fold the events of their keys, and return or store the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import InvalidArgument, ProjectionFailed
from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold, ReadModelRow, RowFormat, TenantKey
from seriatim.core.projection import (
    STREAM_KEY,
    Projection,
    Table,
    extract_payload_key,
    is_payload_path,
    parse_key_path,
)
from seriatim.factory import open_read_model
from seriatim.pipeline.project.fold_outcome import encode_count, encode_fold, to_record_batches
from seriatim.pipeline.record_batches import decode_records
from seriatim.pipeline.spark_errors import annotate_errors
from seriatim.runs.stateful_fold import FAILED_KEY, StatefulFold
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import ProjectionStep

KEY_COLUMN = "_key"
_CHUNK = 10_000

# A Python worker of Spark runs many tasks, so its connections outlive them.
_models: dict[str, ReadModel] = {}


def get_read_model(target: str) -> ReadModel:
    """Return this process's connection to a read model, which is reused for many batches."""
    if target not in _models:
        _models[target] = open_read_model(target)
    return _models[target]


def prepare_for_tasks(projection: Projection) -> Projection:
    """Return the projection to send to tasks.

    A DataFrame transformation is replaced by a placeholder: it runs in the driver and may refer to
    objects that exist only there.

    Raises:
        InvalidArgument: The projection cannot be pickled.

    """
    task_projection = projection
    if projection.is_frame:
        task_projection = msgspec.structs.replace(projection, transform=_refuse_transform)
    try:
        cloudpickle.dumps(task_projection)  # type: ignore[no-untyped-call] # Spark's copy
    except Exception as error:
        msg = (
            f"projection {projection.name} cannot be sent to Spark's tasks: "
            f"{summarize_error(error)}; "
            "create such an object inside the function that uses it"
        )
        raise InvalidArgument(msg, details={"projection": projection.name}) from error
    return task_projection


def _refuse_transform(_events: Any) -> Any:
    """Replace a transformation, which tasks never call."""
    raise NotImplementedError


class FoldTask(msgspec.Struct, frozen=True, kw_only=True):
    """Folds the events of a partition in a range of positions, starting from the stored states.

    The range is after `after` and up to `until`. `only_key` folds one key from its first event,
    regardless of the stored state.
    """

    projection: Projection
    target: str
    shadow: bool = False
    after: int = 0
    until: int | None = None
    only_key: TenantKey | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold a partition whose events are in ascending order of position."""
        with annotate_errors():
            yield from self.fold_batches(batches, get_read_model(self.target))

    def fold_batches(
        self, batches: Iterable[pa.RecordBatch], model: ReadModel
    ) -> Iterator[pa.RecordBatch]:
        """Fold events in ascending order of position, and yield the encoded outcome."""
        fold, watermarks, event_count = self.fold(
            batches, model, without_states=self.only_key is not None
        )
        yield from to_record_batches((encode_count(event_count), *encode_fold(fold, watermarks)))

    def fold(
        self, batches: Iterable[pa.RecordBatch], model: ReadModel, *, without_states: bool
    ) -> tuple[Fold, list[tuple[int, int]], int]:
        """Fold a partition.

        Args:
            batches: Events in ascending order of position, with their keys.
            model: The read model with states, parked keys and skipped events.
            without_states: Whether to start without stored states.

        Returns:
            The fold, the ranges of the watermarks, and the number of events.

        """
        stateful = StatefulFold(
            self.projection,
            model,
            shadow=self.shadow,
            only_key=self.only_key,
            with_states=not without_states,
        )
        watermarks: list[tuple[int, int]] = []
        event_count = 0
        for batch in batches:
            keyed_events = list(self._events(batch, watermarks))
            event_count += len(keyed_events)
            stateful.add(keyed_events)
        return stateful.fold, watermarks, event_count

    def _events(
        self, batch: pa.RecordBatch, watermarks: list[tuple[int, int]]
    ) -> Iterator[tuple[str, EventRecord]]:
        keys = batch.column(KEY_COLUMN).to_pylist()
        for key, event in zip(keys, decode_records(batch), strict=True):
            if not event.event_type:
                watermarks.append((event.append_position, event.position))
            elif self._selects(key, event):
                yield key, event

    def _selects(self, key: str, event: EventRecord) -> bool:
        if event.position <= self.after or event.position > (self.until or event.position):
            return False
        return self.only_key is None or self.only_key == (event.tenant_id, key)


class LoadTask(FoldTask, frozen=True, kw_only=True):
    """Folds a partition without stored states and writes it to the shadow: part of a rebuild."""

    owner: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store rows and states, and yield only failures and the number of events."""
        # The tasks write their own rows: those of a whole log would not fit into the driver.
        with annotate_errors():
            model = get_read_model(self.target)
            fold, watermarks, event_count = self.fold(batches, model, without_states=True)
            for step in split_steps(fold):
                model.write_shadow_part(self.projection, step, self.owner)
        empty = Fold(self.projection)
        empty.failures = fold.failures
        yield from to_record_batches((encode_count(event_count), *encode_fold(empty, watermarks)))


def split_steps(fold: Fold) -> Iterator[ProjectionStep]:
    """Split the changes of a fold into steps of bounded size."""
    if fold.projection.state is None:
        state_rows = iter(fold.state_rows())
        while chunk := dict(islice(state_rows, _CHUNK)):
            yield ProjectionStep(after=0, until=0, last_event_id="", state_rows=chunk)
        return
    changed = iter(fold.changed.items())
    while states := dict(islice(changed, _CHUNK)):
        encoded = {owner: (position, fold.states[owner]) for owner, position in states.items()}
        yield ProjectionStep(after=0, until=0, last_event_id="", states=encoded)
    for name, rows in fold.rows.items():
        remaining = iter(rows.values())
        while rows_chunk := list(islice(remaining, _CHUNK)):
            yield ProjectionStep(after=0, until=0, last_event_id="", rows={name: rows_chunk})


def key_fields(projection: Projection) -> tuple[str, ...]:
    """Return the fields of an event that form its key; empty if a function computes it."""
    key = projection.key
    if not isinstance(key, str):
        return ()
    if key == STREAM_KEY:
        return "stream_type", "stream_id"
    return ("payload",) if is_payload_path(key) else (key,)


class KeyTask(msgspec.Struct, frozen=True):
    """Adds the key column if Spark cannot compute it; the key is empty where that fails."""

    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the column to each batch."""
        key = self.projection.key
        path = (
            parse_key_path(key) if isinstance(key, str) and not self.projection.upcasters else None
        )
        for batch in batches:
            keys = self._keys(batch) if path is None else self._keys_at(path, batch)
            yield batch.append_column(KEY_COLUMN, pa.array(keys, pa.string()))

    def _keys(self, batch: pa.RecordBatch) -> Iterator[str | None]:
        extract = self.projection.make_key_extractor()
        for event in decode_records(batch):
            yield self._key(extract, event) if event.event_type else None

    def _keys_at(self, path: Sequence[str], batch: pa.RecordBatch) -> Iterator[str | None]:
        extract = partial(extract_payload_key, path)
        for payload in batch.column("payload").to_pylist():
            yield self._key(extract, payload)

    def _key(self, extract: Callable[[Any], str | None], value: Any) -> str | None:
        try:
            return extract(value)
        except Exception:  # noqa: BLE001 - the fold records it with the event
            return FAILED_KEY


class FrameLoadTask(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the rows of a DataFrame projection to the shadow: part of a rebuild."""

    projection: Projection
    target: str
    until: int
    owner: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store each batch, and yield nothing."""
        table = self.projection.tables[0]
        with annotate_errors():
            model = get_read_model(self.target)
            for batch in batches:
                rows = list(convert_rows(table, batch, self.until))
                step = ProjectionStep(after=0, until=0, last_event_id="", rows={table.name: rows})
                model.write_shadow_part(self.projection, step, self.owner)
        yield from ()


def convert_rows(table: Table, batch: pa.RecordBatch, until: int) -> Iterator[ReadModelRow]:
    """Convert the rows of a DataFrame to their stored form.

    Raises:
        ProjectionFailed: A row has a value that cannot be stored, or no tenant.

    """
    row_format, names = RowFormat(table), list(table.fields)
    for values in batch.to_pylist():
        try:
            row = row_format.normalize({name: values[name] for name in names})
        except (TypeError, ValueError) as error:
            key = {name: values[name] for name in table.key}
            msg = (
                f"the transformation of table {table.name} returned a row that cannot be stored, "
                f"with key {key!r:.200}: {error}"
            )
            raise ProjectionFailed(msg, details={"table": table.name}) from None
        yield ReadModelRow(_check_tenant_id(table, values["tenant_id"]), until, row)


def _check_tenant_id(table: Table, tenant_id: str | None) -> str:
    if tenant_id is None:
        msg = f"the transformation of table {table.name} returned a row without a tenant_id"
        raise ProjectionFailed(msg, details={"table": table.name})
    return tenant_id

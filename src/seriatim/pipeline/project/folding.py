"""What a task does: fold the events of its keys, and send back or store what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle

from seriatim.core.errors import InvalidArgument, ProjectionFailed
from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold, Kept, Owner, Shape
from seriatim.core.projection import Projection, Table
from seriatim.core.projection_key import STREAM, is_path, key_path, payload_key
from seriatim.core.reasons import reason_of
from seriatim.opening import open_read_model
from seriatim.pipeline.failures import noted_errors
from seriatim.pipeline.project.outcome import batches_of, count_line, lines_of
from seriatim.pipeline.records import records_of
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import Step

KEY = "_key"
_CHUNK = 10_000

_models: dict[str, ReadModel] = {}


def read_model(target: str) -> ReadModel:
    """Return this process's connection to a read model; a worker serves many batches."""
    if target not in _models:
        _models[target] = open_read_model(target)
    return _models[target]


def sendable(projection: Projection) -> Projection:
    """Return a projection as tasks are given it, or refuse one that cannot be sent to them.

    A transformation stays in the driver: it may hold what exists only there.
    """
    sent = projection
    if projection.is_frame:
        sent = msgspec.structs.replace(projection, transform=_in_the_driver)
    try:
        cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]
    except Exception as error:
        msg = (
            f"projection {projection.name} cannot be sent to Spark's tasks: {reason_of(error)}; "
            "make such an object inside of the function that uses it"
        )
        raise InvalidArgument(msg, details={"projection": projection.name}) from error
    return sent


def _in_the_driver(_events: Any) -> Any:
    """Stand for a transformation, which no task calls."""
    raise NotImplementedError


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """Folds the events of a partition that lie in a range, from the states that are stored."""

    projection: Projection
    target: str
    shadow: bool = False
    after: int = 0
    until: int | None = None
    only: Owner | None = None  # fold this key anew, from nothing

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold a partition whose events come in ascending position."""
        with noted_errors():
            yield from self.outcome(batches, read_model(self.target))

    def outcome(
        self, batches: Iterable[pa.RecordBatch], model: ReadModel
    ) -> Iterator[pa.RecordBatch]:
        """Fold events that come in ascending position."""
        fold, marks, read = self.folded(batches, model, fresh=self.only is not None)
        yield from batches_of((count_line(read), *lines_of(fold, marks)))

    def folded(
        self, batches: Iterable[pa.RecordBatch], model: ReadModel, *, fresh: bool
    ) -> tuple[Fold, list[tuple[int, int]], int]:
        """Return the fold over a partition, the ranges of its events, and their number."""
        parked, passed = model.exceptions(self.projection.name, shadow=self.shadow)
        fold = Fold(
            self.projection,
            parked=() if self.only else parked,
            skipped=passed,
        )
        marks: list[tuple[int, int]] = []
        known: set[Owner] = set()
        read = 0
        for batch in batches:
            found = list(self._events(batch, marks))
            read += len(found)
            if not fresh:
                owners = {(event.tenant_id, key) for key, event in found} - known
                known |= owners
                fold.states |= self._states(model, list(owners))
            for key, event in found:
                self._take(fold, key, event)
        return fold, marks, read

    def _events(
        self, batch: pa.RecordBatch, marks: list[tuple[int, int]]
    ) -> Iterator[tuple[str, EventRecord]]:
        keys = batch.column(KEY).to_pylist()
        for key, event in zip(keys, records_of(batch), strict=True):
            if not event.event_type:
                marks.append((event.append_position, event.position))
            elif self._wants(key, event):
                yield key, event

    def _wants(self, key: str, event: EventRecord) -> bool:
        if event.position <= self.after or event.position > (self.until or event.position):
            return False
        return self.only is None or self.only == (event.tenant_id, key)

    def _states(self, model: ReadModel, owners: Sequence[Owner]) -> dict[Owner, Any]:
        if not owners:
            return {}
        return model.states(self.projection, owners, shadow=self.shadow)

    def _take(self, fold: Fold, key: str, event: EventRecord) -> None:
        if key:
            fold.add(key, event)
            return
        # No key could be found before the shuffle: find the reason now.
        try:
            self.projection.key_of(event)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            fold.fail((event.tenant_id, ""), event, error)


class Loader(Folder, frozen=True, kw_only=True):
    """Folds a partition from nothing and stores it in the shadow itself: a part of a rebuild."""

    owner: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store rows and states, and send back failures and the number of events."""
        with noted_errors():
            model = read_model(self.target)
            fold, marks, read = self.folded(batches, model, fresh=True)
            for step in steps_of(fold):
                model.load(self.projection, step, self.owner)
        empty = Fold(self.projection)
        empty.failures = fold.failures
        yield from batches_of((count_line(read), *lines_of(empty, marks)))


def steps_of(fold: Fold) -> Iterator[Step]:
    """Yield what a fold made in parts of bounded size."""
    if fold.projection.state is None:
        own = iter(fold.own_rows())
        while part := dict(islice(own, _CHUNK)):
            yield Step(after=0, until=0, tip="", own=part)
        return
    changed = iter(fold.changed.items())
    while states := dict(islice(changed, _CHUNK)):
        encoded = {owner: (position, fold.states[owner]) for owner, position in states.items()}
        yield Step(after=0, until=0, tip="", states=encoded)
    for name, rows in fold.rows.items():
        kept = iter(rows.values())
        while part_rows := list(islice(kept, _CHUNK)):
            yield Step(after=0, until=0, tip="", rows={name: part_rows})


def key_fields(projection: Projection) -> tuple[str, ...]:
    """Return the fields of an event that make up its key; none if a function finds it."""
    key = projection.key
    if not isinstance(key, str):
        return ()
    if key == STREAM:
        return "stream_type", "stream_id"
    return ("payload",) if is_path(key) else (key,)


class Keyer(msgspec.Struct, frozen=True):
    """Adds the key column where Python must find it; empty where that fails."""

    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the column to every batch."""
        key = self.projection.key
        path = key_path(key) if isinstance(key, str) and not self.projection.upcasters else None
        for batch in batches:
            keys = self._keys(batch) if path is None else self._keys_at(path, batch)
            yield batch.append_column(KEY, pa.array(keys, pa.string()))

    def _keys(self, batch: pa.RecordBatch) -> Iterator[str | None]:
        for event in records_of(batch):
            yield self._key(self.projection.key_of, event) if event.event_type else None

    def _keys_at(self, path: Sequence[str], batch: pa.RecordBatch) -> Iterator[str | None]:
        find = partial(payload_key, path)
        for payload in batch.column("payload").to_pylist():
            yield self._key(find, payload)

    def _key(self, find: Callable[[Any], str | None], given: Any) -> str | None:
        try:
            return find(given)
        except Exception:  # noqa: BLE001 - the fold tells it with the event
            return ""


class FrameLoader(msgspec.Struct, frozen=True, kw_only=True):
    """Stores the rows of a DataFrame projection in the shadow: a part of a rebuild."""

    projection: Projection
    target: str
    until: int
    owner: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store every batch, and send nothing back."""
        table = self.projection.tables[0]
        with noted_errors():
            model = read_model(self.target)
            for batch in batches:
                rows = list(kept_rows(table, batch, self.until))
                step = Step(after=0, until=0, tip="", rows={table.name: rows})
                model.load(self.projection, step, self.owner)
        yield from ()


def kept_rows(table: Table, batch: pa.RecordBatch, until: int) -> Iterator[Kept]:
    """Yield the rows of a DataFrame in their kept form; say which row cannot be stored."""
    shape, names = Shape(table), list(table.fields)
    for found in batch.to_pylist():
        try:
            row = shape.kept({name: found[name] for name in names})
        except (TypeError, ValueError) as error:
            key = {name: found[name] for name in table.key}
            msg = (
                f"the transformation of table {table.name} made a row that cannot be stored, with "
                f"key {key!r:.200}: {error}"
            )
            raise ProjectionFailed(msg, details={"table": table.name}) from None
        yield Kept(_tenant(table, found["tenant_id"]), until, row)


def _tenant(table: Table, tenant_id: str | None) -> str:
    if tenant_id is None:
        msg = f"the transformation of table {table.name} made a row without a tenant_id"
        raise ProjectionFailed(msg, details={"table": table.name})
    return tenant_id

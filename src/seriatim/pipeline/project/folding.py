"""What a task does: fold the events of its keys, and send back or store what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from seriatim.core.canonical import canonical_text
from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold, Kept, Owner, Shape
from seriatim.core.projection import STREAM, Projection, Table, is_path
from seriatim.core.values import VALUES
from seriatim.opening import open_read_model
from seriatim.pipeline.project.outcome import batches_of, lines_of
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
        yield from self.outcome(batches, read_model(self.target))

    def outcome(
        self, batches: Iterable[pa.RecordBatch], model: ReadModel
    ) -> Iterator[pa.RecordBatch]:
        """Fold events that come in ascending position."""
        fold, marks = self.folded(batches, model, fresh=self.only is not None)
        yield from batches_of(lines_of(fold, marks))

    def folded(
        self, batches: Iterable[pa.RecordBatch], model: ReadModel, *, fresh: bool
    ) -> tuple[Fold, list[tuple[int, int]]]:
        """Return the fold over a partition, and the ranges its events were taken from."""
        parked, passed = model.exceptions(self.projection.name, shadow=self.shadow)
        fold = Fold(
            self.projection,
            parked=() if self.only else parked,
            skipped=passed,
        )
        marks: list[tuple[int, int]] = []
        known: set[Owner] = set()
        for batch in batches:
            found = list(self._events(batch, marks))
            if not fresh:
                owners = {(event.tenant_id, key) for key, event in found} - known
                known |= owners
                fold.states |= self._states(model, list(owners))
            for key, event in found:
                self._take(fold, key, event)
        return fold, marks

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
        # The function that gives the key failed before the shuffle: hear its reason now.
        try:
            key_of(self.projection, event)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            fold.fail((event.tenant_id, ""), event, error)


class Loader(Folder, frozen=True, kw_only=True):
    """Folds a partition from nothing and stores it in the shadow itself: a part of a rebuild."""

    owner: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store rows and states, and send back failures only."""
        model = read_model(self.target)
        fold, marks = self.folded(batches, model, fresh=True)
        for step in steps_of(fold):
            model.load(self.projection, step, self.owner)
        empty = Fold(self.projection)
        empty.failures = fold.failures
        yield from batches_of(lines_of(empty, marks))


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


def key_of(projection: Projection, event: EventRecord) -> str | None:
    """Return the key of an event as Python finds it; None passes the event over."""
    event = projection.upcast(event)
    key: Any
    if callable(projection.key):
        key = projection.key(event)
    else:
        key = _found(event.data, str(projection.key).split(".")[1:])
    if key is not None and (not isinstance(key, str) or not key):
        msg = f"a key is a text that is not empty, got {type(key).__name__}"
        raise TypeError(msg)
    return None if key is None else VALUES[str].keep(key)


def _found(value: Any, path: Sequence[str]) -> str | None:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else canonical_text(value)


class Keyer(msgspec.Struct, frozen=True):
    """Adds the key column where Python must find it; empty where that fails."""

    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the column to every batch."""
        for batch in batches:
            keys = [self._key(event) for event in records_of(batch)]
            yield batch.append_column(KEY, pa.array(keys, pa.string()))

    def _key(self, event: EventRecord) -> str | None:
        if not event.event_type:
            return None
        try:
            return key_of(self.projection, event)
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
        model = read_model(self.target)
        for batch in batches:
            rows = list(kept_rows(table, batch, self.until))
            step = Step(after=0, until=0, tip="", rows={table.name: rows})
            model.load(self.projection, step, self.owner)
        yield from ()


def kept_rows(table: Table, batch: pa.RecordBatch, until: int) -> Iterator[Kept]:
    """Yield the rows of a DataFrame in their kept form."""
    shape, names = Shape(table), list(table.fields)
    for found in batch.to_pylist():
        row = shape.kept({name: found[name] for name in names})
        yield Kept(found["tenant_id"], until, row)

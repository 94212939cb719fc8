"""The fold of a projection, key by key: states in a dict, rows beside them, failures noted."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.event import EventRecord
from seriatim.core.projection import Projection, Table
from seriatim.core.values import VALUES

Owner = tuple[str, str]  # tenant and key
Row = dict[str, Any]

_REASON_MAX = 500
_DIGEST_END = 1 << 256


class Failure(msgspec.Struct, frozen=True):
    """An event that a fold could not take, and why."""

    tenant_id: str
    key: str
    position: int
    event_id: str
    event_type: str
    reason: str


class Kept(msgspec.Struct, frozen=True):
    """A row as it goes into a table; `row` None takes it away."""

    tenant_id: str
    position: int
    row: Row | None


class Shape:
    """The columns of a table: checks the rows of a fold, and gives them their kept form."""

    def __init__(self, table: Table) -> None:
        self._names = table.fields.keys()
        self._keep = {name: VALUES[kind].keep for name, kind in table.fields.items()}
        self._given = [
            (name, VALUES[kind].given)
            for name, kind in table.fields.items()
            if VALUES[kind].name == "json"
        ]
        self.key = tuple(table.key)

    def kept(self, row: Any) -> Row:
        """Return a row with every column in its kept form; say what is wrong with it."""
        if not isinstance(row, dict):
            msg = f"a row is a dict, got {type(row).__name__}"
            raise TypeError(msg)
        if row.keys() != self._names:
            raise ValueError(_unlike(row, self._names))
        made: Row = {}
        for name, keep in self._keep.items():
            value = row[name]
            try:
                made[name] = None if value is None else keep(value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"column {name}: {error}") from None
        if any(made[name] is None for name in self.key):
            msg = f"the key columns {', '.join(self.key)} must have a value"
            raise ValueError(msg)
        return made

    def given(self, row: Row) -> Row:
        """Return a row of a fold's own, which it may change."""
        copy = dict(row)
        for name, given in self._given:
            if copy[name] is not None:
                copy[name] = given(copy[name])
        return copy


def _unlike(row: Row, names: Iterable[str]) -> str:
    missing = ", ".join(name for name in names if name not in row)
    unknown = ", ".join(str(name)[:40] for name in row if name not in set(names))
    parts = [f"lacks {missing}"] if missing else []
    parts += [f"has the undeclared {unknown}"] if unknown else []
    return f"the row {' and '.join(parts)}"


class Fold:
    """One projection over events in ascending position.

    `parked` keys take no event; events at `skipped` positions are passed over.
    """

    def __init__(
        self,
        projection: Projection,
        *,
        parked: Iterable[Owner] = (),
        skipped: Iterable[int] = (),
    ) -> None:
        self.projection = projection
        self.parked = set(parked)
        self.skipped = frozenset(skipped)
        self.states: dict[Owner, Any] = {}
        self.changed: dict[Owner, int] = {}
        self.rows: dict[str, dict[tuple[Any, ...], Kept]] = {t.name: {} for t in projection.tables}
        self.failures: list[Failure] = []
        self.stopped = False
        self._shapes = {table.name: Shape(table) for table in projection.tables}
        self._main = projection.tables[0]
        self._key_column = next(iter(self._main.key))

    def add(self, key: str, event: EventRecord) -> None:
        """Take in the next event of a key."""
        owner = (event.tenant_id, key)
        if self.stopped or owner in self.parked or event.position in self.skipped:
            return
        try:
            if self.projection.state is None:
                self._step(owner, event)
            else:
                self._step_with_rows(owner, event)
        except Exception as error:  # noqa: BLE001 - whatever a user's fold raises is the event's
            self.fail(owner, event, error)
        else:
            self.changed[owner] = event.position

    def _step(self, owner: Owner, event: EventRecord) -> None:
        assert self.projection.apply is not None  # noqa: S101 - for the type checker
        shape = self._shapes[self._main.name]
        before = self.states.get(owner)
        given = None if before is None else shape.given(before)
        after = self.projection.apply(given, self.projection.upcast(event))
        if isinstance(after, dict):
            after = {self._key_column: owner[1], **after}
        self.states[owner] = None if after is None else shape.kept(after)

    def _step_with_rows(self, owner: Owner, event: EventRecord) -> None:
        assert self.projection.apply is not None  # noqa: S101 - for the type checker
        result = self.projection.apply(self.states.get(owner), self.projection.upcast(event))
        try:
            state, made = result
            emitted = [(table, row) for table, rows in made.items() for row in rows]
        except (TypeError, ValueError, AttributeError):
            msg = "the fold returns (state, {table: [rows]})"
            raise TypeError(msg) from None
        if not isinstance(state, self.projection.state or object):
            msg = f"the fold returned a state of type {type(state).__name__}"
            raise TypeError(msg)
        kept = [(table, self._shape(table).kept(row)) for table, row in emitted]
        for table, row in kept:
            self.emit(table, Kept(owner[0], event.position, row))
        self.states[owner] = state

    def _shape(self, table: str) -> Shape:
        if table not in self._shapes:
            msg = f"the fold wrote to the undeclared table {table!r:.80}"
            raise ValueError(msg)
        return self._shapes[table]

    def emit(self, table: str, kept: Kept) -> None:
        """Merge a row into what its table has of this fold."""
        assert kept.row is not None  # noqa: S101 - only keys of their own table lose rows
        place = (kept.tenant_id, *(kept.row[name] for name in self._shapes[table].key))
        rows = self.rows[table]
        if place not in rows or self.projection.table(table).keep == "last":
            rows[place] = kept

    def fail(self, owner: Owner, event: EventRecord, error: Exception) -> None:
        """Note what an event's key met, and do as the projection says."""
        reason = f"{type(error).__name__}: {error}"[:_REASON_MAX]
        failure = Failure(
            tenant_id=owner[0],
            key=owner[1],
            position=event.position,
            event_id=event.event_id,
            event_type=event.event_type,
            reason=reason,
        )
        self.failures.append(failure)
        if self.projection.on_failure == "stop":
            self.stopped = True
        elif self.projection.on_failure == "park":
            self.parked.add(owner)

    def own_rows(self) -> Iterable[tuple[Owner, Kept]]:
        """Yield the rows of the keys that changed, where the row is the state."""
        for owner, position in self.changed.items():
            yield owner, Kept(owner[0], position, self.states[owner])


class Digest:
    """A digest over rows in any order: the sum of their hashes."""

    def __init__(self) -> None:
        self._sum = 0
        self.count = 0

    def add(self, table: Table, tenant_id: str, row: Row) -> None:
        """Take in one row; the position that is kept beside it is no part of it."""
        self._sum = (self._sum + row_hash(table, tenant_id, row)) % _DIGEST_END
        self.count += 1

    def text(self) -> str:
        """Return the digest over all rows so far."""
        return f"sum-sha256:{self._sum:064x}"


def row_hash(table: Table, tenant_id: str, row: Row) -> int:
    """Return the hash of one row."""
    shown = {
        name: None if row[name] is None else VALUES[kind].to_json(row[name])
        for name, kind in table.fields.items()
    }
    text = canonical_text([table.name, tenant_id, shown])
    return int.from_bytes(sha256(text.encode()).digest(), "big")

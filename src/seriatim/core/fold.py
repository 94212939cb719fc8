"""The fold of a projection, key by key: states in a dict, rows beside them, failures noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.event import EventRecord
from seriatim.core.projection import Projection, Table
from seriatim.core.reasons import reason_of
from seriatim.core.values import VALUES, same

Owner = tuple[str, str]  # tenant and key
Row = dict[str, Any]

_KEY_BYTES_MAX = 2000  # with a tenant's 512, what a page of a Postgres index takes
_KEY_CHARS = _KEY_BYTES_MAX // 4  # so few characters are never too many bytes
_FRESH_MAX = 10_000
_DIGEST_END = 1 << 256


class Failure(msgspec.Struct, frozen=True):
    """An event that a fold could not take, and why."""

    tenant_id: str
    key: str
    position: int
    event_id: str
    event_type: str
    reason: str


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A row as it goes into a table; `row` None takes it away."""

    tenant_id: str
    position: int
    row: Row | None


_Column = tuple[str, Callable[[Any], Any]]


class Shape:
    """The columns of a table: checks the rows of a fold, and gives them their kept form."""

    def __init__(self, table: Table) -> None:
        self._names = table.fields.keys()
        self._keep = [(name, VALUES[kind].keep) for name, kind in table.fields.items()]
        self._given = [
            (name, VALUES[kind].given)
            for name, kind in table.fields.items()
            if VALUES[kind].name == "json"
        ]
        self.key = tuple(table.key)
        self.place = itemgetter(*table.key)

    def kept(self, row: Any) -> Row:
        """Return a row with every column in its kept form; say what is wrong with it."""
        made = self._kept(row, {}, self._keep)
        self._check_key(made)
        return made

    def kept_of(self, key: str, row: Any) -> Row:
        """Do so with the row of a key that was checked; the key's column may be left out."""
        column = self.key[0]
        if isinstance(row, dict):
            given = row.get(column, key)
            if given != key:
                msg = f"column {column} is the key, which a fold cannot change"
                raise ValueError(msg)
            if column in row:
                return self._kept(row, {}, self._keep)
        return self._kept(row, {column: key}, self._keep[1:])

    def _kept(self, row: Any, made: Row, columns: Sequence[_Column]) -> Row:
        if not isinstance(row, dict):
            msg = f"a row is a dict, got {type(row).__name__}"
            raise TypeError(msg)
        if len(row) != len(columns):
            raise ValueError(_unlike(row | made, self._names))
        name = ""
        try:
            for name, keep in columns:
                value = row[name]
                made[name] = value if value is None else keep(value)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the column is told
            if name not in row:
                raise ValueError(_unlike(made | row, self._names)) from None
            kind = TypeError if isinstance(error, TypeError) else ValueError
            msg = f"column {name}: {error}"
            raise kind(msg) from None
        return made

    def _check_key(self, row: Row) -> None:
        size = 0
        for name in self.key:
            value = row[name]
            if value is None:
                msg = f"the key columns {', '.join(self.key)} must have a value"
                raise ValueError(msg)
            size += len(value) if type(value) is str else 0
        if size > _KEY_CHARS:
            _check_key_bytes("".join(row[name] for name in self.key if type(row[name]) is str))

    def given(self, row: Row) -> Row:
        """Return a row of a fold's own, which it may change."""
        copy = dict(row)
        for name, given in self._given:
            if copy[name] is not None:
                copy[name] = given(copy[name])
        return copy


def _check_key_bytes(text: str) -> None:
    if len(text.encode()) > _KEY_BYTES_MAX:
        msg = f"the key is longer than {_KEY_BYTES_MAX} bytes"
        raise ValueError(msg)


def _unlike(row: Row, names: Iterable[str]) -> str:
    missing = ", ".join(name for name in names if name not in row)
    unknown = ", ".join(str(name)[:40] for name in row if name not in set(names))
    parts = [f"lacks {missing}"] if missing else []
    parts += [f"has the undeclared {unknown}"] if unknown else []
    return f"the row {' and '.join(parts)}"


class Fold:
    """One projection over events in ascending position.

    `parked` keys take no event; events at `skipped` positions are passed over. States are kept as
    a database gives them back, the row or JSON text: an event that fails leaves none half changed,
    and a state that could not be loaded again is the failure of the event that made it.
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
        self._last = {table.name for table in projection.tables if table.keep == "last"}
        self._main = self._shapes[projection.tables[0].name]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(projection.state or dict)
        self._fresh: dict[Owner, Any] = {}  # states as loaded, which nobody has touched
        self._upcast = projection.upcast if projection.upcasters else same

    def add(self, key: str, event: EventRecord) -> None:
        """Take in the next event of a key."""
        owner = (event.tenant_id, key)
        if self.stopped or owner in self.parked or event.position in self.skipped:
            return
        try:
            if len(key) > _KEY_CHARS:
                _check_key_bytes(key)
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
        before = self.states.get(owner)
        given = None if before is None else self._main.given(before)
        after = self.projection.apply(given, self._upcast(event))
        self.states[owner] = None if after is None else self._main.kept_of(owner[1], after)

    def _step_with_rows(self, owner: Owner, event: EventRecord) -> None:
        assert self.projection.apply is not None  # noqa: S101 - for the type checker
        result = self.projection.apply(self._loaded(owner), self._upcast(event))
        if not isinstance(result, tuple) or len(result) != 2 or not _is_rows(result[1]):  # noqa: PLR2004
            msg = "the fold returns (state, {table: [rows]})"
            raise TypeError(msg)
        state, made = result
        kept = [
            (table, self._shape(table).kept(row)) for table, rows in made.items() for row in rows
        ]
        text, fresh = self._kept_state(state)
        for table, row in kept:
            self.emit(table, Kept(owner[0], event.position, row))
        self.states[owner] = text
        if len(self._fresh) >= _FRESH_MAX:
            self._fresh.clear()
        self._fresh[owner] = fresh

    def _loaded(self, owner: Owner) -> Any:
        text = self.states.get(owner)
        if text is None:
            return None
        # The fold may change what it gets: it gets it once.
        return self._fresh.pop(owner) if owner in self._fresh else self._decoder.decode(text)

    def _kept_state(self, state: Any) -> tuple[str, Any]:
        try:
            text = msgspec.json.encode(state).decode()
            return text, self._decoder.decode(text)
        except Exception as error:  # noqa: BLE001 - a state's own hooks may raise anything
            msg = f"the state does not come back from JSON as it was declared: {error}"
            raise TypeError(msg) from None

    def _shape(self, table: str) -> Shape:
        if table not in self._shapes:
            msg = f"the fold wrote to the undeclared table {table!r:.80}"
            raise ValueError(msg)
        return self._shapes[table]

    def emit(self, table: str, kept: Kept) -> None:
        """Merge a row into what its table has of this fold."""
        assert kept.row is not None  # noqa: S101 - only keys of their own table lose rows
        place = kept.tenant_id, self._shapes[table].place(kept.row)
        rows = self.rows[table]
        if table in self._last or place not in rows:
            rows[place] = kept

    def fail(self, owner: Owner, event: EventRecord, error: Exception) -> None:
        """Note what an event's key met, and do as the projection says."""
        if self.stopped or event.position in self.skipped:
            return
        failure = Failure(
            tenant_id=owner[0],
            key=owner[1],
            position=event.position,
            event_id=event.event_id,
            event_type=event.event_type,
            reason=reason_of(error),
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


def _is_rows(made: Any) -> bool:
    if type(made) is dict and all(type(rows) is list for rows in made.values()):
        return True
    return isinstance(made, Mapping) and all(
        isinstance(rows, Iterable) and not isinstance(rows, str | Mapping) for rows in made.values()
    )


class Digest:
    """A digest over rows in any order: the sum of their hashes."""

    def __init__(self) -> None:
        self._sum = 0
        self._hashers: dict[str, Hasher] = {}
        self.count = 0

    def add(self, table: Table, tenant_id: str, row: Row) -> None:
        """Take in one row; the position that is kept beside it is no part of it."""
        hasher = self._hashers.get(table.name) or self._hashers.setdefault(
            table.name, Hasher(table)
        )
        self._sum = (self._sum + hasher(tenant_id, row)) % _DIGEST_END
        self.count += 1

    def text(self) -> str:
        """Return the digest over all rows so far."""
        return f"sum-sha256:{self._sum:064x}"


class Hasher:
    """The hashes of the rows of one table, over their canonical JSON."""

    def __init__(self, table: Table) -> None:
        self._name = table.name
        values = {name: VALUES[kind] for name, kind in table.fields.items()}
        self._shown = [
            (name, value.to_json) for name, value in values.items() if value.to_json is not same
        ]

    def __call__(self, tenant_id: str, row: Row) -> int:
        """Return the hash of a row in its kept form."""
        if self._shown:
            row = row | {name: row[name] and to_json(row[name]) for name, to_json in self._shown}
        text = canonical_text([self._name, tenant_id, row])
        return int.from_bytes(sha256(text.encode()).digest(), "big")

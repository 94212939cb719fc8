"""Run the fold of a projection in memory: states by key, rows by table, and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.column_types import COLUMN_TYPES, identity
from seriatim.core.error_summary import summarize_error
from seriatim.core.event import EventRecord
from seriatim.core.projection import Projection, Table

TenantKey = tuple[str, str]  # tenant id and key
Row = dict[str, Any]

_KEY_BYTES_MAX = 2000  # with 512 bytes of tenant id, an entry still fits a Postgres index page
_KEY_CHARS = _KEY_BYTES_MAX // 4  # this many characters never exceed the limit in bytes
_DECODED_STATES_MAX = 10_000  # bounds the memory of a task with many keys
_DIGEST_END = 1 << 256


class Failure(msgspec.Struct, frozen=True):
    """An event that a fold could not process, and the reason."""

    tenant_id: str
    key: str
    position: int
    event_id: str
    event_type: str
    reason: str


class ReadModelRow(msgspec.Struct, frozen=True, gc=False):
    """A normalized row to write to a table of a read model; `row` None deletes it."""

    tenant_id: str
    position: int
    row: Row | None


_Column = tuple[str, Callable[[Any], Any]]


class RowFormat:
    """The columns of a table: validates the rows of a fold and normalizes their values."""

    def __init__(self, table: Table) -> None:
        self._names = table.fields.keys()
        self._columns = [
            (name, COLUMN_TYPES[kind].normalize) for name, kind in table.fields.items()
        ]
        self._json_columns = [
            (name, COLUMN_TYPES[kind].to_python)
            for name, kind in table.fields.items()
            if COLUMN_TYPES[kind].name == "json"
        ]
        self.key_columns = tuple(table.key)
        self.row_key = itemgetter(*table.key)

    def normalize(self, row: Any) -> Row:
        """Return a row with all values normalized, or raise TypeError or ValueError."""
        normalized = self._normalize(row, {}, self._columns)
        self._check_key(normalized)
        return normalized

    def normalize_state(self, key: str, row: Any) -> Row:
        """Return the normalized row of a key; the row may leave out the column of the key.

        Raises:
            TypeError: The row or a value has the wrong type.
            ValueError: A column is missing or undeclared, or the row has another key.
        """
        column = self.key_columns[0]
        if isinstance(row, dict):
            value = row.get(column, key)
            if value != key:
                msg = f"column {column} is the key, which a fold cannot change"
                raise ValueError(msg)
            if column in row:
                return self._normalize(row, {}, self._columns)
        return self._normalize(row, {column: key}, self._columns[1:])

    def _normalize(self, row: Any, normalized: Row, columns: Sequence[_Column]) -> Row:
        if not isinstance(row, dict):
            msg = f"a row must be a dict, got {type(row).__name__}"
            raise TypeError(msg)
        if len(row) != len(columns):
            raise ValueError(_describe_columns(row | normalized, self._names))
        name = ""
        try:
            for name, normalize in columns:
                value = row[name]
                normalized[name] = value if value is None else normalize(value)
        except Exception as error:  # noqa: BLE001 - reported with the name of the column
            if name not in row:
                raise ValueError(_describe_columns(normalized | row, self._names)) from None
            kind = TypeError if isinstance(error, TypeError) else ValueError
            msg = f"column {name}: {error}"
            raise kind(msg) from None
        return normalized

    def _check_key(self, row: Row) -> None:
        size = 0
        for name in self.key_columns:
            value = row[name]
            if value is None:
                msg = f"the key columns {', '.join(self.key_columns)} must have a value"
                raise ValueError(msg)
            size += len(value) if type(value) is str else 0
        if size > _KEY_CHARS:
            _check_key_bytes(
                "".join(row[name] for name in self.key_columns if type(row[name]) is str)
            )

    def copy_for_fold(self, row: Row) -> Row:
        """Return a copy of a row for a fold, which may change it."""
        copy = dict(row)
        for name, to_python in self._json_columns:
            if copy[name] is not None:
                copy[name] = to_python(copy[name])
        return copy


def _check_key_bytes(text: str) -> None:
    if len(text.encode()) > _KEY_BYTES_MAX:
        msg = f"the key is longer than {_KEY_BYTES_MAX} bytes"
        raise ValueError(msg)


def _describe_columns(row: Row, names: Iterable[str]) -> str:
    """Return a message with the missing and the undeclared columns of a row."""
    missing = ", ".join(name for name in names if name not in row)
    unknown = ", ".join(str(name)[:40] for name in row if name not in set(names))
    parts = [f"lacks {missing}"] if missing else []
    parts += [f"has the undeclared {unknown}"] if unknown else []
    return f"the row {' and '.join(parts)}"


class Fold:
    """Fold events into the states and rows of one projection, in ascending position.

    States are kept in the form that a database returns, a normalized row or JSON text. So an event
    that fails leaves no state half changed, and a state that could not be loaded again is a failure
    of the event that produced it.

    Attributes:
        parked: Keys whose further events are ignored after a failure.
        skipped: Positions of events that are ignored.
        states: The state of each key.
        changed: The position of the last event of each changed key.
        rows: The rows to write, by table and key values.
        failures: The events that could not be processed.
        stopped: Whether a failure has stopped the projection.
    """

    def __init__(
        self,
        projection: Projection,
        *,
        parked: Iterable[TenantKey] = (),
        skipped: Iterable[int] = (),
    ) -> None:
        assert projection.apply is not None  # noqa: S101 - only folds are run here
        self.projection = projection
        self._run_fold = projection.apply
        self.parked = set(parked)
        self.skipped = frozenset(skipped)
        self.states: dict[TenantKey, Any] = {}
        self.changed: dict[TenantKey, int] = {}
        self.rows: dict[str, dict[tuple[Any, ...], ReadModelRow]] = {
            table.name: {} for table in projection.tables
        }
        self.failures: list[Failure] = []
        self.stopped = False
        self._formats = {table.name: RowFormat(table) for table in projection.tables}
        self._keep_last = {table.name for table in projection.tables if table.keep == "last"}
        self._state_format = self._formats[projection.tables[0].name]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(projection.state or dict)
        self._decoded_states: dict[TenantKey, Any] = {}  # saves the decoding of an unchanged text
        self._upcast = projection.upcast if projection.upcasters else identity

    def copy(self) -> Fold:
        """Return an independent fold in the same state; both share the normalized values."""
        other = Fold(self.projection, parked=self.parked, skipped=self.skipped)
        other.states, other.changed = dict(self.states), dict(self.changed)
        other.rows = {table: dict(rows) for table, rows in self.rows.items()}
        other.failures, other.stopped = list(self.failures), self.stopped
        return other

    def begin_batch(self) -> None:
        """Forget the changes and failures so far; states and parked keys stay."""
        # New containers: the caller may still use the changes of the last batch.
        self.changed = {}
        self.rows = {table: {} for table in self.rows}
        self.failures = []

    def add(self, key: str, event: EventRecord) -> None:
        """Apply the next event of a key."""
        owner = (event.tenant_id, key)
        if self.stopped or owner in self.parked or event.position in self.skipped:
            return
        try:
            if len(key) > _KEY_CHARS:
                _check_key_bytes(key)
            if self.projection.state is None:
                self._apply(owner, event)
            else:
                self._apply_with_rows(owner, event)
        except Exception as error:  # noqa: BLE001 - a user's fold may raise anything
            self.record_failure(owner, event, error)
        else:
            self.changed[owner] = event.position

    def _apply(self, owner: TenantKey, event: EventRecord) -> None:
        row = self.states.get(owner)
        state = None if row is None else self._state_format.copy_for_fold(row)
        result = self._run_fold(state, self._upcast(event))
        self.states[owner] = (
            None if result is None else self._state_format.normalize_state(owner[1], result)
        )

    def _apply_with_rows(self, owner: TenantKey, event: EventRecord) -> None:
        match self._run_fold(self._load_state(owner), self._upcast(event)):
            case tuple((state, emitted)) if _is_rows(emitted):
                pass
            case _:
                msg = "the fold must return (state, {table: [rows]})"
                raise TypeError(msg)
        # Normalize everything before anything is changed: a bad row must not leave half a result.
        normalized = [
            (table, self._get_format(table).normalize(row))
            for table, rows in emitted.items()
            for row in rows
        ]
        text, decoded = self._encode_state(state)
        for table, row in normalized:
            self.put_row(table, ReadModelRow(owner[0], event.position, row))
        self.states[owner] = text
        if len(self._decoded_states) >= _DECODED_STATES_MAX:
            self._decoded_states.clear()
        self._decoded_states[owner] = decoded

    def _load_state(self, owner: TenantKey) -> Any:
        text = self.states.get(owner)
        if text is None:
            return None
        # A fold may change the object that it receives, so a decoded state is used only once.
        if owner in self._decoded_states:
            return self._decoded_states.pop(owner)
        return self._decoder.decode(text)

    def _encode_state(self, state: Any) -> tuple[str, Any]:
        """Return the JSON text of a state, and the state decoded from that text."""
        try:
            text = msgspec.json.encode(state).decode()
            return text, self._decoder.decode(text)
        except Exception as error:  # noqa: BLE001 - hooks of a state's class may raise anything
            msg = f"the state cannot be restored from JSON as its declared type: {error}"
            raise TypeError(msg) from None

    def _get_format(self, table: str) -> RowFormat:
        if table not in self._formats:
            msg = f"the fold wrote to the undeclared table {table!r:.80}"
            raise ValueError(msg)
        return self._formats[table]

    def put_row(self, table: str, row: ReadModelRow) -> None:
        """Add a row to its table; `keep` decides which of two rows with the same key stays."""
        assert row.row is not None  # noqa: S101 - only rows that are states are deleted
        key = row.tenant_id, self._formats[table].row_key(row.row)
        rows = self.rows[table]
        if table in self._keep_last or key not in rows:
            rows[key] = row

    def record_failure(self, owner: TenantKey, event: EventRecord, error: Exception) -> None:
        """Record the failure of an event, and apply the failure policy of the projection."""
        if self.stopped or event.position in self.skipped:
            return
        failure = Failure(
            tenant_id=owner[0],
            key=owner[1],
            position=event.position,
            event_id=event.event_id,
            event_type=event.event_type,
            reason=summarize_error(error),
        )
        self.failures.append(failure)
        if self.projection.on_failure == "stop":
            self.stopped = True
        elif self.projection.on_failure == "park":
            self.parked.add(owner)

    def state_rows(self) -> Iterable[tuple[TenantKey, ReadModelRow]]:
        """Yield the rows of changed keys, for projections whose state is the row."""
        for owner, position in self.changed.items():
            yield owner, ReadModelRow(owner[0], position, self.states[owner])


def _is_rows(value: Any) -> bool:
    # Hot path: nearly every fold returns a dict of lists, which needs no abstract base class.
    if type(value) is dict and all(type(rows) is list for rows in value.values()):
        return True
    return isinstance(value, Mapping) and all(
        isinstance(rows, Iterable) and not isinstance(rows, str | Mapping)
        for rows in value.values()
    )


class RowDigest:
    """An order-independent digest of rows: the sum of their hashes."""

    def __init__(self) -> None:
        self._sum = 0
        self._hashers: dict[str, RowHasher] = {}
        self.count = 0

    def add(self, table: Table, tenant_id: str, row: Row) -> None:
        """Add one row; the position stored with the row is not part of the digest."""
        hasher = self._hashers.get(table.name) or self._hashers.setdefault(
            table.name, RowHasher(table)
        )
        self._sum = (self._sum + hasher(tenant_id, row)) % _DIGEST_END
        self.count += 1

    def text(self) -> str:
        """Return the digest of all rows added so far."""
        return f"sum-sha256:{self._sum:064x}"


class RowHasher:
    """Hash the rows of one table by their canonical JSON."""

    def __init__(self, table: Table) -> None:
        self._name = table.name
        values = {name: COLUMN_TYPES[kind] for name, kind in table.fields.items()}
        self._converters = [
            (name, value.to_json) for name, value in values.items() if value.to_json is not identity
        ]

    def __call__(self, tenant_id: str, row: Row) -> int:
        """Return the hash of a normalized row."""
        if self._converters:
            row = row | {
                name: row[name] and to_json(row[name]) for name, to_json in self._converters
            }
        text = canonical_text([self._name, tenant_id, row])
        return int.from_bytes(sha256(text.encode()).digest(), "big")

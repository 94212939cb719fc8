"""Step through the state of one key: the fold of a projection, event by event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from markupsafe import Markup

from seriatim.console.renderer import shorten
from seriatim.core import json_path
from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.column_types import COLUMN_TYPES
from seriatim.core.event import RECORD_COLUMNS, EventRecord, StreamRef
from seriatim.core.fold import Fold, TenantKey
from seriatim.core.ids import compose_key
from seriatim.core.patterns import NameFilter
from seriatim.core.projection import STREAM_KEY, Projection, Table

FIELDS_MAX = 200  # of one state in the page
_NAME_CHARS, _VALUE_CHARS = 120, 400  # of a field in the page
_STREAM_ID = "stream_id"
_VALUE_BYTES = 100  # of memory for a value that is no text, and for a failure


class FieldChange(msgspec.Struct, frozen=True):
    """A field of the state before and after an event, as JSON; None where it does not exist."""

    name: str
    before: str | None
    after: str | None

    @property
    def changed(self) -> bool:
        """Whether the event changed the field."""
        return self.before != self.after


class Step(msgspec.Struct, frozen=True):
    """The effect of one event on the state.

    Attributes:
        event: The event.
        changes: All fields of the state before or after the event.
        applied: Whether the projection processes events of this type.
        failure: The reason why the fold failed; empty if it succeeded.
        left_out: The number of fields that are not displayed.
    """

    event: EventRecord
    changes: list[FieldChange]
    applied: bool
    failure: str = ""
    left_out: int = 0

    @property
    def rows(self) -> list[tuple[str, str | None, str | None, bool]]:
        """Name, before, after, and whether the event changed it, for each field, shortened."""
        return [
            (
                shorten(field.name, _NAME_CHARS),
                None if field.before is None else shorten(field.before, _VALUE_CHARS),
                None if field.after is None else shorten(field.after, _VALUE_CHARS),
                field.changed,
            )
            for field in self.changes
        ]


class StepPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of steps.

    Attributes:
        projection: The name of the projection.
        steps: The steps.
        first: The number of the first step, from 0.
        total: The number of events that were folded.
        more: Whether there are steps after these.
        cut: Whether there are more events than the stepper folds.
        stopped: Whether a failure stopped the projection, or parked the key.
        searched: The position up to which events were searched, None for the whole log.
        indexed: Whether an index found the events.
        body: The rendered steps.
    """

    projection: str
    steps: list[Step]
    first: int
    total: int
    more: bool
    cut: bool
    stopped: bool
    searched: int | None = None
    indexed: bool = True
    body: Markup = Markup()


def to_event_record(fields: Mapping[str, Any]) -> EventRecord:
    """Return the record of an event from a response of the API, with its canonical payload."""
    values = [fields[name] for name in RECORD_COLUMNS]
    values[RECORD_COLUMNS.index("payload")] = canonical_text(fields["payload"])
    values[RECORD_COLUMNS.index("tags")] = tuple(fields["tags"])
    return EventRecord(*values)


def find_key(projection: Projection, stream: StreamRef) -> str | None:
    """Return the key whose events are exactly those of a stream, None if there is no such key.

    The events of other keys, such as a path in the payload, are in several streams.
    """
    types = projection.stream_types
    if projection.is_frame or (types is not None and stream[0] not in types):
        return None
    if projection.key == STREAM_KEY:
        return compose_key(*stream)
    if projection.key == _STREAM_ID and types is not None and len(set(types)) == 1:
        return stream[1]
    return None


class FoldCheckpoint(msgspec.Struct, frozen=True):
    """The fold of the first events of a key.

    Attributes:
        fold: The fold, which is not changed any more.
        number: The number of events that it has processed.
        position: The position of the last one.
        event_id: Its id: while the log has this event there, the events before it are the same.
        weight: About how many bytes the fold takes.
    """

    fold: Fold
    number: int
    position: int
    event_id: str
    weight: int


def _weigh(fold: Fold) -> int:
    """Return about how many bytes the state of a fold takes."""
    states = fold.states.values()
    rows = [entry.row or {} for table in fold.rows.values() for entry in table.values()]
    rows += [state for state in states if isinstance(state, dict)]
    values: list[Any] = [value for row in rows for value in row.values()]
    values += [state for state in states if isinstance(state, str)]
    texts = sum(len(value) for value in values if isinstance(value, str))
    return texts + _VALUE_BYTES * (len(values) + len(fold.failures) + 10)


class Stepper:
    """Fold the events of one key, and record a range of the steps.

    Args:
        projection: The projection.
        tenant_id: The tenant of the events.
        key: The key of the events.
        first: The number of the first step to record, from 0.
        count: How many steps to record.
        start: The fold of earlier events to continue; it is not changed.
    """

    def __init__(
        self,
        projection: Projection,
        tenant_id: str,
        key: str,
        *,
        first: int,
        count: int,
        start: FoldCheckpoint | None = None,
    ) -> None:
        self.fold = Fold(projection) if start is None else start.fold.copy()
        self.steps: list[Step] = []
        self._tenant_key: TenantKey = tenant_id, key
        self._types = NameFilter.parse(projection.events)
        self._displayed = range(first, first + count)
        self._flat: dict[str, str] | None = None
        self.number = 0 if start is None else start.number

    def run(self, events: Iterable[EventRecord]) -> None:
        """Apply events in ascending order of position."""
        for event in events:
            is_displayed = self.number in self._displayed
            before = self._flatten_state() if is_displayed else {}
            failures = len(self.fold.failures)
            applied = self._types.allows(event.event_type)
            if applied:
                self.fold.add(self._tenant_key[1], event)
            if is_displayed:
                new_failures = self.fold.failures[failures:]
                self._add_step(
                    event, before, applied, new_failures[0].reason if new_failures else ""
                )
            self.number += 1

    def save(self, last: EventRecord) -> FoldCheckpoint:
        """Return the fold after the event `last`, to continue it later."""
        fold = self.fold.copy()
        return FoldCheckpoint(fold, self.number, last.position, last.event_id, _weigh(fold))

    def _flatten_state(self) -> dict[str, str]:
        """Return the fields of the state; the state after an event is the one before the next."""
        if self._flat is None:
            self._flat = flatten_state(self.state())
        return self._flat

    def _add_step(
        self, event: EventRecord, before: dict[str, str], applied: bool, failure: str
    ) -> None:
        self._flat = None
        changes = compare_states(before, self._flatten_state())
        left_out = max(0, len(changes) - FIELDS_MAX)
        if left_out:  # changed fields are displayed first
            changes = sorted(changes, key=lambda change: not change.changed)[:FIELDS_MAX]
        self.steps.append(Step(event, changes, applied, failure, left_out))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values: the row, or the state and its rows by table."""
        stored, projection = self.fold.states.get(self._tenant_key), self.fold.projection
        if projection.state is None:
            return {} if stored is None else _to_values(projection.tables[0], stored)
        state = {} if stored is None else {"state": decode_stored_json(stored)}
        for table in projection.tables:
            rows = self.fold.rows[table.name].items()
            state[table.name] = {
                _format_key(key): _to_values(table, row.row or {}) for (_, key), row in rows
            }
        return {name: value for name, value in state.items() if value != {}}


def _format_key(key: Any) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    return ", ".join(map(str, parts))


def _to_values(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a normalized row as JSON values; JSON columns are parsed."""
    return {
        name: None if value is None else _to_value(table.fields[name], value)
        for name, value in row.items()
    }


def _to_value(kind: type, value: Any) -> Any:
    column = COLUMN_TYPES[kind]
    return decode_stored_json(value) if column.name == "json" else column.to_json(value)


def compare_states(before: Mapping[str, str], after: Mapping[str, str]) -> list[FieldChange]:
    """Return every field of two states, as `flatten_state` returns them."""
    return [FieldChange(name, before.get(name), after.get(name)) for name in {**before, **after}]


def flatten_state(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a state as JSON, nested objects by their paths."""
    return dict(_flatten(value))


def _flatten(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        inner_path = json_path.child(path, name).removeprefix(".")
        if isinstance(inner, dict) and inner:
            yield from _flatten(inner, inner_path)
        else:
            yield inner_path, canonical_text(inner)

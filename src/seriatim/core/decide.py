"""The second half of an append: what it may do, given what the log holds at that moment.

Every backend asks this one function while it holds its lock, so the rules and their order are the
same everywhere: command record, idempotent reuse, conditions, sequence, closing lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from seriatim.core.canonical import read_json
from seriatim.core.errors import (
    ConditionalAppendConflict,
    Conflict,
    EventSequenceInvalid,
    IdempotencyConflict,
    IdempotencyKeyReuse,
    InvalidArgument,
)
from seriatim.core.event import EventRecord
from seriatim.core.ids import event_keys, stream_key
from seriatim.core.kinds import Rules, StreamKind
from seriatim.core.query import Query
from seriatim.core.request import ExpectedContext, ExpectedSeq, Prepared, Request, StoredCommand

ByKey = Callable[[str, bytes], EventRecord | None]


class Head(msgspec.Struct, frozen=True):
    """The end of a stream: its last number and the type of its last event."""

    stream_seq: int
    event_type: str


class View(Protocol):
    """What a store shows of itself while it holds its lock."""

    def head(self) -> int:
        """Return the log's last position."""

    def stream_head(self, stream_key: bytes) -> Head | None:
        """Return the end of a stream."""

    def by_key(self, idempotency_index: bytes) -> EventRecord | None:
        """Return the event stored under an idempotency key."""

    def by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        """Return the event stored under the key of an event id, which may have another id."""

    def between(self, first: int, last: int) -> tuple[EventRecord, ...]:
        """Return the events of a range of positions."""

    def context(self, tenant_id: str, query: Query) -> int | None:
        """Return the version of a context."""

    def command(self, command_key: bytes) -> StoredCommand | None:
        """Return what is remembered of a command."""


class StaleRules(Exception):  # noqa: N818 - never leaves the log, which checks again and repeats
    """The append was checked under older declarations than the store holds now."""


class StaleContexts(StaleRules):
    """Too much was appended since the append's contexts were evaluated, or too costly to match."""


class Accepted(msgspec.Struct, frozen=True):
    """The append may be stored, its events numbered like this in their streams.

    `events` are the append's own, with the keys under which there is room for their ids.
    """

    stream_seqs: tuple[int | None, ...]
    events: tuple[Prepared, ...]


class Replayed(msgspec.Struct, frozen=True):
    """The append was stored before: these are its records, and its command's response."""

    records: tuple[EventRecord, ...]
    response: Any = None
    id_mismatch: tuple[str, ...] = ()


def decide(request: Request, view: View, rules: Rules) -> Accepted | Replayed:
    """Say what an append may do, or raise the error that refuses it."""
    if request.rules_version != rules.version:
        raise StaleRules
    return (
        _known_command(request, view) or _known_events(request, view) or _new(request, view, rules)
    )


def _known_command(request: Request, view: View) -> Replayed | None:
    """C5: a twin of a command gets its stored response; another request under its key, a 409."""
    if request.command is None:
        return None
    stored = view.command(request.command.command_key)
    if stored is None:
        return None
    if stored.request_hash != request.command.request_hash:
        raise key_reuse(request.command.command.key)
    records = view.between(stored.first_position, stored.last_position)
    return Replayed(records, read_json(stored.response))


def key_reuse(key: str) -> IdempotencyKeyReuse:
    """Make the error for a command key that is stored with another request."""
    msg = "this command key was used before, for another request"
    return IdempotencyKeyReuse(msg, details={"key": key})


def _known_events(request: Request, view: View) -> Replayed | None:
    """C2 to C4: a batch is the unit, so its events are all known, in order, or all new."""
    found: list[EventRecord] = []
    mismatch: set[str] = set()
    for index, event in enumerate(request.events):
        record, differing = _known_event(request, event, view, index)
        mismatch.update(differing)
        if (record is None and found) or (record is not None and len(found) != index):
            msg = f"event {index}: some events of this batch are stored already and some are not"
            raise IdempotencyConflict(msg, details={"index": index, "fields": []})
        if record is None:
            continue
        if found and (
            record.append_position != found[0].append_position
            or record.position != found[-1].position + 1
        ):
            msg = f"event {index}: these events were stored by other appends or in another order"
            raise IdempotencyConflict(msg, details={"index": index, "fields": ["batch"]})
        found.append(record)
    return Replayed(tuple(found), None, tuple(sorted(mismatch))) if found else None


def _known_event(
    request: Request, event: Prepared, view: View, index: int
) -> tuple[EventRecord | None, list[str]]:
    by_key = None if event.idempotency_index is None else view.by_key(event.idempotency_index)
    by_id = find_by_id(event.tenant_id, event.event_id, view.by_id) if event.given_id else None
    if by_key is not None and by_id is not None and by_key.position != by_id.position:
        msg = f"event {index}: its idempotency key and its event id are stored as two events"
        raise IdempotencyConflict(msg, details={"index": index, "fields": ["event_id"]})
    record = by_key or by_id
    if record is None:
        return None, []
    differing = differences(record, event)
    if differing and (by_key is not None or request.on_id_mismatch == "error"):
        known_by = "idempotency key" if by_key is not None else "event id"
        msg = f"event {index}: its {known_by} is stored with other {', '.join(differing)}"
        raise IdempotencyConflict(msg, details={"index": index, "fields": differing})
    return record, differing


def find_by_id(tenant_id: str, event_id: str, by_key: ByKey) -> EventRecord | None:
    """Return the event that has an id, and none that only shares an index key with it."""
    for key in event_keys(event_id):
        record = by_key(tenant_id, key)
        if record is None or record.event_id == event_id:
            return record
    return None


def with_free_keys(events: Sequence[Prepared], by_key: ByKey) -> tuple[Prepared, ...]:
    """Return new events, each with the first key of its id that no other event has."""
    found: list[Prepared] = []
    taken: dict[tuple[str, bytes], str] = {}

    def holder(tenant_id: str, key: bytes) -> str | None:
        if (other := taken.get((tenant_id, key))) is not None:
            return other
        record = by_key(tenant_id, key)
        return None if record is None else record.event_id

    for index, event in enumerate(events):
        key = event.event_key
        if event.given_id and holder(event.tenant_id, key) is not None:
            key = _free_key(event, index, holder)
        taken[event.tenant_id, key] = event.event_id
        same = key == event.event_key
        found.append(event if same else msgspec.structs.replace(event, event_key=key))
    return tuple(found)


def _free_key(event: Prepared, index: int, holder: Callable[[str, bytes], str | None]) -> bytes:
    for key in event_keys(event.event_id):
        other = holder(event.tenant_id, key)
        if other is None:
            return key
        if other == event.event_id:
            msg = f"event {index}: its event id is stored already"
            raise Conflict(msg, details={"index": index, "field": "event_id"})
    msg = f"event {index}: all index keys of its event id are taken by other ids"
    raise Conflict(msg, details={"index": index, "field": "event_id"})


def differences(record: EventRecord, event: Prepared) -> list[str]:
    """Name the fields that must match for a retry and do not."""
    compared = {
        "payload": (record.payload_hash, event.payload_hash),
        "stream": (record.stream, event.stream),
        "event_type": (record.event_type, event.event_type),
        "source": (
            (record.source_system, record.source_subsystem),
            (event.source_system, event.source_subsystem),
        ),
        "actor": ((record.actor_type, record.actor_id), (event.actor_type, event.actor_id)),
        "correlation_id": (record.correlation_id, event.correlation_id),
        "causation_id": (record.causation_id, event.causation_id),
        "event_version": (record.event_version, event.event_version),
        "tags": (tuple(record.tags), tuple(event.tags)),
    }
    return [name for name, (stored, given) in compared.items() if stored != given]


def _new(request: Request, view: View, rules: Rules) -> Accepted:
    expected = _check_conditions(request, view)
    heads: dict[bytes, Head | None] = {}
    numbers: list[int | None] = []
    for index, event in enumerate(request.events):
        if event.stream_key is None or event.stream_type is None:
            numbers.append(None)
            continue
        key = event.stream_key
        head = heads[key] if key in heads else view.stream_head(key)
        kind = rules.kind_of(event.stream_type)
        if kind.expected_seq_required and head and key not in heads and key not in expected:
            msg = f"event {index}: streams of kind {kind.name!r} take appends with ExpectedSeq only"
            raise InvalidArgument(msg, details={"index": index, "argument": "condition"})
        number = _next_number(event, head, kind, index)
        numbers.append(number)
        heads[key] = Head(number, event.event_type)
    return Accepted(tuple(numbers), with_free_keys(request.events, view.by_id))


def _check_conditions(request: Request, view: View) -> set[bytes]:
    """Check every condition; return the streams whose number the caller expected."""
    expected: set[bytes] = set()
    for condition in request.conditions:
        if isinstance(condition, ExpectedSeq):
            key = stream_key(request.tenant_id, *condition.stream)
            head = view.stream_head(key)
            actual = None if head is None else head.stream_seq
            if actual != condition.seq:
                msg = f"the stream's last number is {_said(actual)}, not {_said(condition.seq)}"
                details = {"expected": condition.seq, "actual": actual}
                raise EventSequenceInvalid(msg, details=details)
            expected.add(key)
        else:
            version = view.context(request.tenant_id, condition.query)
            if not condition.within(view.head()):
                msg = f"after {condition.after} lies beyond the log's head"
                raise InvalidArgument(msg, details={"argument": "after", "head": view.head()})
            if not condition.holds(version):
                raise _changed(condition, version)
    return expected


def _changed(condition: ExpectedContext, version: int | None) -> ConditionalAppendConflict:
    if condition.after is not UNSET:
        msg = f"position {version} matches the context and lies after {condition.after}"
        return ConditionalAppendConflict(msg, details={"after": condition.after, "actual": version})
    expected = None if condition.version is UNSET else condition.version
    msg = f"the context's version is {_said(version)}, not {_said(expected)}"
    return ConditionalAppendConflict(msg, details={"expected": expected, "actual": version})


def _next_number(event: Prepared, head: Head | None, kind: StreamKind, index: int) -> int:
    number = kind.first_seq if head is None else head.stream_seq + 1
    if event.given_seq is not None and event.given_seq != number:
        msg = f"event {index}: the stream's next number is {number}, not {event.given_seq}"
        details = {"index": index, "expected": number, "actual": event.given_seq}
        raise EventSequenceInvalid(msg, details=details)
    if head is not None and head.event_type in kind.closing_types:
        msg = f"event {index}: the stream was closed by {head.event_type!r}"
        raise Conflict(msg, details={"index": index, "closed_by": head.event_type})
    if kind.opening_type is not None and (event.event_type == kind.opening_type) != (head is None):
        msg = f"event {index}: a {kind.name!r} stream opens with {kind.opening_type!r}, once"
        given = number if event.given_seq is None else event.given_seq
        details = {"index": index, "expected": number, "actual": given}
        raise EventSequenceInvalid(msg, details=details)
    return number


def _said(number: int | None) -> str:
    return "absent" if number is None else str(number)

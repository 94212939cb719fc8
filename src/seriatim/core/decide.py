"""The second step of an append: accept, replay or reject it against the current log.

Every backend calls `decide` while it holds its append lock, so the rules and their order are the
same everywhere: command record, idempotent replay, conditions, sequence numbers, closed streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET

from seriatim.core.canonical import decode_stored_json
from seriatim.core.errors import (
    ConditionalAppendConflict,
    Conflict,
    EventSequenceInvalid,
    IdempotencyConflict,
    IdempotencyKeyReuse,
    InvalidArgument,
    SeriatimError,
)
from seriatim.core.event import EventRecord
from seriatim.core.ids import event_keys, stream_key
from seriatim.core.kinds import Rules, StreamKind
from seriatim.core.query import Query
from seriatim.core.request import (
    AppendRequest,
    ExpectedContext,
    ExpectedSeq,
    PreparedEvent,
    StoredCommand,
)

FindByKey = Callable[[str, bytes], EventRecord | None]
DecisionStep = Literal["command", "idempotency", "conditions", "sequence"]
EnterStep = Callable[[DecisionStep, int | None], None]


class StreamHead(msgspec.Struct, frozen=True):
    """The end of a stream: the sequence number and the type of its last event."""

    stream_seq: int
    event_type: str


class StoreView(Protocol):
    """The lookups that a store offers while it holds its append lock."""

    def head(self) -> int:
        """Return the log's last position."""

    def stream_head(self, stream_key: bytes) -> StreamHead | None:
        """Return the end of a stream, or None if the stream does not exist."""

    def find_by_key(self, idempotency_index: bytes) -> EventRecord | None:
        """Return the event stored under an idempotency key, or None."""

    def find_by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        """Return the event stored under an event key, or None; its event id may differ."""

    def read_range(self, first: int, last: int) -> tuple[EventRecord, ...]:
        """Return the events from position `first` to `last`, both inclusive."""

    def current_context_version(self, tenant_id: str, query: Query) -> int | None:
        """Return the version of a context: its highest matching position, or None."""

    def find_command(self, command_key: bytes) -> StoredCommand | None:
        """Return the stored record of a command, or None."""


class StaleRules(Exception):  # noqa: N818 - internal: the log catches it, validates again and retries
    """The append was validated under older declarations than the store has now."""


class StaleContexts(StaleRules):
    """Matching the events appended since the contexts were evaluated would take too long."""


class AcceptedAppend(msgspec.Struct, frozen=True):
    """The append may be stored.

    `stream_seqs` are the sequence numbers of its events, None for facts. `events` are the events of
    the append, each with a free event key.
    """

    stream_seqs: tuple[int | None, ...]
    events: tuple[PreparedEvent, ...]


class ReplayedAppend(msgspec.Struct, frozen=True):
    """The append was stored before: its records, and the response of its command."""

    records: tuple[EventRecord, ...]
    response: Any = None
    id_mismatch: tuple[str, ...] = ()


class DecisionTrace(msgspec.Struct, frozen=True):
    """The steps of a decision, and its result.

    `steps` are the steps that were entered, in order; the last one decided, unless the append was
    accepted. The number of a step is that of a condition. `head` is the log's last position.
    """

    steps: tuple[tuple[DecisionStep, int | None], ...]
    result: AcceptedAppend | ReplayedAppend | SeriatimError
    head: int


def decide(
    request: AppendRequest, view: StoreView, rules: Rules, enter: EnterStep | None = None
) -> AcceptedAppend | ReplayedAppend:
    """Decide whether an append may be stored or repeats an earlier one.

    Args:
        request: A validated append.
        view: The state of the log under its append lock.
        rules: The current declarations.
        enter: Called before each step, with its name and the number of the condition. None for
            appends, which would pay for the calls.

    Returns:
        The sequence numbers of a new append, or the records of an earlier one.

    Raises:
        StaleRules: The append was validated under other declarations; validate it again.
        SeriatimError: The append is rejected.
    """
    # First: index keys and payload checks of the request follow the rules of that version.
    if request.rules_version != rules.version:
        raise StaleRules
    if enter is not None:
        enter("command", None)
    if replayed := _replay_command(request, view):
        return replayed
    if enter is not None:
        enter("idempotency", None)
    # Before the conditions, which a retry of a stored append would violate by its own events.
    return _replay_events(request, view) or _accept_append(request, view, rules, enter)


def trace_decision(request: AppendRequest, view: StoreView, rules: Rules) -> DecisionTrace:
    """Decide an append without storing it, and return the steps and the result.

    Raises:
        StaleRules: The append was validated under other declarations; validate it again.
    """
    steps: list[tuple[DecisionStep, int | None]] = []
    result: AcceptedAppend | ReplayedAppend | SeriatimError
    try:
        result = decide(request, view, rules, lambda step, index: steps.append((step, index)))
    except SeriatimError as error:
        result = error
    return DecisionTrace(tuple(steps), result, view.head())


def _replay_command(request: AppendRequest, view: StoreView) -> ReplayedAppend | None:
    """Return the stored response of a duplicate command; reject a different request (C5)."""
    if request.command is None:
        return None
    stored = view.find_command(request.command.command_key)
    if stored is None:
        return None
    if stored.request_hash != request.command.request_hash:
        raise key_reuse_error(request.command.command.key)
    records = view.read_range(stored.first_position, stored.last_position)
    return ReplayedAppend(records, decode_stored_json(stored.response))


def key_reuse_error(key: str) -> IdempotencyKeyReuse:
    """Build the error for a command key that is stored with a different request."""
    msg = "this command key was already used for a different request: use a new key"
    return IdempotencyKeyReuse(msg, details={"key": key})


def _replay_events(request: AppendRequest, view: StoreView) -> ReplayedAppend | None:
    """Return the records of a batch that is stored already; reject a partial match (C2 to C4)."""
    records: list[EventRecord] = []
    mismatch: set[str] = set()
    for index, event in enumerate(request.events):
        record, differing = _find_stored_event(request, event, view, index)
        mismatch.update(differing)
        if (record is None and records) or (record is not None and len(records) != index):
            msg = (
                f"event {index}: some events of this batch are already stored and some are not: "
                "repeat the batch as it was first sent, or append the new events alone"
            )
            raise IdempotencyConflict(msg, details={"index": index, "fields": []})
        if record is None:
            continue
        if records and (
            record.append_position != records[0].append_position
            or record.position != records[-1].position + 1
        ):
            msg = (
                f"event {index}: the events of this batch are stored in other appends or order: "
                "repeat the batch as it was first sent"
            )
            raise IdempotencyConflict(msg, details={"index": index, "fields": ["batch"]})
        records.append(record)
    return ReplayedAppend(tuple(records), None, tuple(sorted(mismatch))) if records else None


def _find_stored_event(
    request: AppendRequest, event: PreparedEvent, view: StoreView, index: int
) -> tuple[EventRecord | None, list[str]]:
    """Return the stored record of an event, with the names of the fields that differ."""
    by_key = None if event.idempotency_index is None else view.find_by_key(event.idempotency_index)
    by_id = (
        find_by_id(event.tenant_id, event.event_id, view.find_by_id)
        if event.has_caller_id
        else None
    )
    if by_key is not None and by_id is not None and by_key.position != by_id.position:
        msg = f"event {index}: its idempotency key and its event id belong to different events"
        raise IdempotencyConflict(msg, details={"index": index, "fields": ["event_id"]})
    record = by_key or by_id
    if record is None:
        return None, []
    differing = differing_fields(record, event)
    if differing and (by_key is not None or request.on_id_mismatch == "error"):
        identifier = "idempotency key" if by_key is not None else "event id"
        msg = f"event {index}: its {identifier} is stored with different {', '.join(differing)}"
        raise IdempotencyConflict(msg, details={"index": index, "fields": differing})
    return record, differing


def find_by_id(tenant_id: str, event_id: str, find_by_key: FindByKey) -> EventRecord | None:
    """Return the event with an id, or None; other ids may have the same event key."""
    for key in event_keys(event_id):
        record = find_by_key(tenant_id, key)
        if record is None or record.event_id == event_id:
            return record
    return None


def assign_event_keys(
    events: Sequence[PreparedEvent], find_by_key: FindByKey
) -> tuple[PreparedEvent, ...]:
    """Return new events, each with the first event key of its id that is not in use.

    Raises:
        Conflict: An event id is already stored, or all of its keys are in use.
    """
    assigned: list[PreparedEvent] = []
    assigned_ids: dict[tuple[str, bytes], str] = {}

    def find_user(tenant_id: str, key: bytes) -> str | None:
        """Return the event id that uses a key, in this batch or in the log."""
        if (event_id_in_batch := assigned_ids.get((tenant_id, key))) is not None:
            return event_id_in_batch
        record = find_by_key(tenant_id, key)
        return None if record is None else record.event_id

    for index, event in enumerate(events):
        key = event.event_key
        # An id made by the log is random, so only an id from a caller can collide.
        if event.has_caller_id and find_user(event.tenant_id, key) is not None:
            key = _find_free_key(event, index, find_user)
        assigned_ids[event.tenant_id, key] = event.event_id
        unchanged = key == event.event_key
        assigned.append(event if unchanged else msgspec.structs.replace(event, event_key=key))
    return tuple(assigned)


def _find_free_key(
    event: PreparedEvent, index: int, find_user: Callable[[str, bytes], str | None]
) -> bytes:
    for key in event_keys(event.event_id):
        user = find_user(event.tenant_id, key)
        if user is None:
            return key
        if user == event.event_id:
            msg = f"event {index}: its event id is already stored"
            raise Conflict(msg, details={"index": index, "field": "event_id"})
    msg = f"event {index}: all index keys of its event id are in use: take another event id"
    raise Conflict(msg, details={"index": index, "field": "event_id"})


def differing_fields(record: EventRecord, event: PreparedEvent) -> list[str]:
    """Return the names of the fields in which a retry differs from the stored event."""
    pairs = {
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
    return [name for name, (stored, new) in pairs.items() if stored != new]


def _accept_append(
    request: AppendRequest, view: StoreView, rules: Rules, enter: EnterStep | None
) -> AcceptedAppend:
    """Check the conditions of a new append and number its events."""
    expected = _check_conditions(request, view, enter)
    if enter is not None:
        enter("sequence", None)
    heads: dict[bytes, StreamHead | None] = {}
    numbers: list[int | None] = []
    for index, event in enumerate(request.events):
        if event.stream_key is None or event.stream_type is None:
            numbers.append(None)
            continue
        key = event.stream_key
        # Events of this append count: a second one for the same stream follows the first.
        head = heads[key] if key in heads else view.stream_head(key)
        kind = rules.kind_of(event.stream_type)
        if kind.expected_seq_required and head and key not in heads and key not in expected:
            msg = f"event {index}: appends to {kind.name!r} streams need an ExpectedSeq condition"
            raise InvalidArgument(msg, details={"index": index, "argument": "condition"})
        number = _assign_number(event, head, kind, index)
        numbers.append(number)
        heads[key] = StreamHead(number, event.event_type)
    return AcceptedAppend(tuple(numbers), assign_event_keys(request.events, view.find_by_id))


def _check_conditions(
    request: AppendRequest, view: StoreView, enter: EnterStep | None
) -> set[bytes]:
    """Check every condition; return the keys of the streams that have an `ExpectedSeq`."""
    expected: set[bytes] = set()
    for index, condition in enumerate(request.conditions):
        if enter is not None:
            enter("conditions", index)
        if isinstance(condition, ExpectedSeq):
            key = stream_key(request.tenant_id, *condition.stream)
            head = view.stream_head(key)
            actual = None if head is None else head.stream_seq
            if actual != condition.seq:
                msg = (
                    f"the stream's last sequence number is {_format_number(actual)}, "
                    f"expected {_format_number(condition.seq)}"
                )
                details = {"expected": condition.seq, "actual": actual}
                raise EventSequenceInvalid(msg, details=details)
            expected.add(key)
        else:
            version = view.current_context_version(request.tenant_id, condition.query)
            if not condition.is_reachable(view.head()):
                msg = f"after={condition.after} is beyond the log's head, {view.head()}"
                raise InvalidArgument(msg, details={"argument": "after", "head": view.head()})
            if not condition.holds(version):
                raise _context_conflict(condition, version)
    return expected


def _context_conflict(condition: ExpectedContext, version: int | None) -> ConditionalAppendConflict:
    if condition.after is not UNSET:
        msg = f"the context changed after {condition.after}: position {version} matches its query"
        return ConditionalAppendConflict(msg, details={"after": condition.after, "actual": version})
    expected = None if condition.version is UNSET else condition.version
    msg = f"the context's version is {_format_number(version)}, expected {_format_number(expected)}"
    return ConditionalAppendConflict(msg, details={"expected": expected, "actual": version})


def _assign_number(
    event: PreparedEvent, head: StreamHead | None, kind: StreamKind, index: int
) -> int:
    """Return the sequence number of an event, after checking the rules of its stream's kind."""
    number = kind.first_seq if head is None else head.stream_seq + 1
    if event.requested_seq is not None and event.requested_seq != number:
        requested = event.requested_seq
        msg = f"event {index}: the stream's next sequence number is {number}, not {requested}"
        details = {"index": index, "expected": number, "actual": event.requested_seq}
        raise EventSequenceInvalid(msg, details=details)
    if head is not None and head.event_type in kind.closing_types:
        msg = f"event {index}: the stream was closed by {head.event_type!r}"
        raise Conflict(msg, details={"index": index, "closed_by": head.event_type})
    if kind.opening_type is not None and (event.event_type == kind.opening_type) != (head is None):
        msg = (
            f"event {index}: the first event of a {kind.name!r} stream, and no other, must be "
            f"{kind.opening_type!r}"
        )
        actual = number if event.requested_seq is None else event.requested_seq
        details = {"index": index, "expected": number, "actual": actual}
        raise EventSequenceInvalid(msg, details=details)
    return number


def _format_number(number: int | None) -> str:
    return "none" if number is None else str(number)

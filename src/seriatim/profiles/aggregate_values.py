"""The values of the aggregates profile, and the way from its event fields to the log's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypedDict

import msgspec

from seriatim.core.canonical import read_json
from seriatim.core.doors import AGGREGATES
from seriatim.core.errors import Flaw
from seriatim.core.event import (
    INFRASTRUCTURE_TENANT,
    AppendResult,
    EventRecord,
    NewEvent,
)
from seriatim.core.ids import id_problem
from seriatim.core.kinds import TRACE_KIND


class AggregateEvent(msgspec.Struct, frozen=True):
    """One event of an aggregate: `event_id` is its place in the global order.

    `record_id` is the opaque id by which a retry is known; `org_id` is absent for infrastructure.
    """

    event_id: int
    occurred_at: str
    recorded_at: str
    aggregate_type: str
    aggregate_id: str
    aggregate_seq: int
    event_type: str
    event_version: int
    actor_type: str | None
    actor_id: str | None
    org_id: str | None
    request_id: str | None
    idempotency_key: str | None
    payload_json: str
    app_id: str | None
    env_id: str | None
    correlation_id: str | None
    causation_id: str | None
    record_id: str
    tags: tuple[str, ...]

    @property
    def payload(self) -> dict[str, Any]:
        """The payload as a Python value, parsed anew at each call."""
        found: dict[str, Any] = read_json(self.payload_json)
        return found

    @classmethod
    def of(cls, record: EventRecord) -> AggregateEvent:
        """Return a record in the profile's vocabulary."""
        return cls(
            record.position,
            record.occurred_at,
            record.recorded_at,
            record.stream_type or "",
            record.stream_id or "",
            record.stream_seq or 0,
            record.event_type,
            record.event_version,
            record.actor_type,
            record.actor_id,
            None if record.tenant_id == INFRASTRUCTURE_TENANT else record.tenant_id,
            record.request_id,
            record.idempotency_key,
            record.payload,
            record.app_id,
            record.env_id,
            record.correlation_id,
            record.causation_id,
            record.event_id,
            record.tags,
        )


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate's history; `aggregate_seq` is its last number, None while it has none."""

    aggregate_type: str
    aggregate_id: str
    aggregate_seq: int | None
    events: list[AggregateEvent]


class AggregatePage(msgspec.Struct, frozen=True):
    """One page of events: pass `last_event_id` as the next cursor; it moves on even when empty."""

    events: list[AggregateEvent]
    last_event_id: int


class AggregateAppendResult:
    """The receipt of a command's events, with the response that was stored for the command."""

    def __init__(self, receipt: AppendResult) -> None:
        self.first_event_id = receipt.first_position
        self.last_event_id = receipt.last_position
        self.count = receipt.count
        self.replayed = receipt.replayed
        self.response = receipt.response
        self._receipt = receipt

    @cached_property
    def events(self) -> list[AggregateEvent]:
        """The stored events, made when first asked for."""
        return [AggregateEvent.of(record) for record in self._receipt.records]

    def __repr__(self) -> str:
        """Show the range, not the events."""
        return (
            f"AggregateAppendResult(first_event_id={self.first_event_id}, "
            f"last_event_id={self.last_event_id}, replayed={self.replayed})"
        )


class EventFields(TypedDict, total=False):
    """What all events of one append have in common, unless an event says otherwise."""

    aggregate_type: str | None
    aggregate_id: str | None
    actor_type: str | None
    actor_id: str | None
    request_id: str | None
    idempotency_key: str | None
    app_id: str | None
    env_id: str | None
    correlation_id: str | None
    causation_id: str | None


# The profile's names for a field of NewEvent; the others are the same.
_OURS = {"aggregate_seq": "stream_seq", "org_id": "tenant_id", "record_id": "event_id"}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_FIELDS = frozenset(
    {_THEIRS.get(name, name) for name in NewEvent.__struct_fields__ if name != "stream"}
    | {"aggregate_type", "aggregate_id"}
)
_COMMITTED = {
    "event_id": "is the event's position, set by the log alone; an id of your own is record_id",
    "recorded_at": "is set by the log alone",
}


def event_fields(event: object, index: int) -> dict[str, Any]:
    """Return what an event says, in the profile's names, without what it leaves open."""
    if isinstance(event, NewEvent):
        given = _of_new_event(event, index)
    elif isinstance(event, Mapping):
        given = dict(event)
        for name in given:
            if name in _COMMITTED:
                raise flawed(name, _COMMITTED[name], index)
            if name not in _FIELDS:
                raise flawed(str(name)[:80], "is no field of an event", index)
    else:
        raise flawed("$", "an event is a NewEvent or a mapping", index)
    return {name: value for name, value in given.items() if value is not None}


def _of_new_event(event: NewEvent, index: int) -> dict[str, Any]:
    fields = msgspec.structs.asdict(event)
    stream = fields.pop("stream")
    if stream is not None:
        if not isinstance(stream, tuple) or len(stream) != 2:  # noqa: PLR2004
            raise flawed("stream", "must be a (stream type, stream id) pair", index)
        fields["aggregate_type"], fields["aggregate_id"] = stream
    return {_THEIRS.get(name, name): value for name, value in fields.items()}


def new_event(fields: Mapping[str, Any], index: int) -> NewEvent:
    """Return the log's event for the profile's fields; values are checked with the append."""
    given = dict(fields)
    for name in ("event_type", "payload", "aggregate_type", "aggregate_id"):
        if name not in given:
            raise flawed(name, "is required", index)
    for name in ("aggregate_type", "aggregate_id"):
        if problem := id_problem(given[name]):
            raise flawed(name, problem, index)
    if given["aggregate_type"] == TRACE_KIND:
        raise flawed("aggregate_type", "names traces, which have a profile of their own", index)
    if isinstance(given.get("tags"), list):
        given["tags"] = tuple(given["tags"])
    stream = given.pop("aggregate_type"), given.pop("aggregate_id")
    return NewEvent(stream=stream, **{_OURS.get(name, name): given[name] for name in given})


def flawed(field: str, problem: str, index: int) -> Exception:
    """Make the error for a malformed event."""
    return AGGREGATES.error(Flaw("envelope", field, problem), index)

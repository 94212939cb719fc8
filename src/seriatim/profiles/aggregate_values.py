"""The types of the aggregates profile, and their conversion to and from events of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import EllipsisType
from typing import Any, TypedDict

import msgspec

from seriatim.core.canonical import decode_stored_json
from seriatim.core.errors import ValidationError
from seriatim.core.event import (
    INFRASTRUCTURE_TENANT,
    STREAM_REF_LENGTH,
    AppendResult,
    EventRecord,
    NewEvent,
    StreamRef,
)
from seriatim.core.ids import id_problem
from seriatim.core.kinds import PROFILE_KINDS
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules, register_profile
from seriatim.core.request import ExpectedSeq
from seriatim.log.arguments import invalid_argument
from seriatim.log.base import Events
from seriatim.profiles.base import FieldNames

AGGREGATES_PROFILE = register_profile(
    ProfileRules(
        name="aggregates",
        error_types=LOG_PROFILE.error_types,
        required=("stream", "request_id", "actor_type", "actor_id"),
        actor_types=("user", "service_principal", "system"),
        # The events of a command share its key (C7).
        keys_are_unique=False,
    )
)


EVENT_NAMES = FieldNames(
    {
        "event_id": "record_id",
        "stream": "aggregate_id",
        "stream_id": "aggregate_id",
        "stream_seq": "aggregate_seq",
        "stream_type": "aggregate_type",
        "tenant_id": "org_id",
        "condition.seq": "expected_seq",
    }
)
_READ_NAMES = {
    "after": "after_event_id",
    "until": "until_event_id",
    "stream": "aggregate_id",
    "since_seq": "after_aggregate_seq",
    "types": "event_type",
    "tenant_id": "org_id",
    "occurred_after": "since",
    "occurred_until": "until",
    "recorded_after": "since",
    "recorded_until": "until",
}
READ_FIELD_NAMES = FieldNames(_READ_NAMES)

ExpectedSeqs = int | None | EllipsisType | Mapping[StreamRef, int | None]


class RequestFields(TypedDict, total=False):
    """The fields that the events of one request share."""

    org_id: str | None
    actor_type: str | None
    actor_id: str | None
    request_id: str | None
    app_id: str | None
    env_id: str | None
    correlation_id: str | None
    causation_id: str | None


def check_request_fields(fields: RequestFields) -> dict[str, Any]:
    """Return the fields that are set; raise `TypeError` for one that does not exist."""
    if unknown := fields.keys() - RequestFields.__annotations__.keys():
        names = ", ".join(RequestFields.__annotations__)
        msg = f"a request has no field {min(unknown)!r}; its fields are {names}"
        raise TypeError(msg)
    return {name: value for name, value in fields.items() if value is not None}


class AggregateEvent(msgspec.Struct, frozen=True):
    """One event of an aggregate.

    `event_id` is its position in the log, `record_id` the opaque id that identifies a retry.
    `org_id` is None for infrastructure.
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
        """The payload as a Python value, parsed at each access."""
        payload: dict[str, Any] = decode_stored_json(self.payload_json)
        return payload

    @classmethod
    def of(cls, record: EventRecord) -> AggregateEvent:
        """Convert a record of the log."""
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
            record.payload_json,
            record.app_id,
            record.env_id,
            record.correlation_id,
            record.causation_id,
            record.event_id,
            record.tags,
        )


class AggregateHistory(msgspec.Struct, frozen=True):
    """The history of one aggregate; `aggregate_seq` is its last number, None without events."""

    aggregate_type: str
    aggregate_id: str
    aggregate_seq: int | None
    events: list[AggregateEvent]


class AggregatePage(msgspec.Struct, frozen=True):
    """One page of events; `last_event_id` is the next cursor and advances even if empty."""

    events: list[AggregateEvent]
    last_event_id: int


class AggregateAppendResult:
    """The receipt of an append, with the stored response of its command."""

    def __init__(self, receipt: AppendResult) -> None:
        self.first_event_id = receipt.first_position
        self.last_event_id = receipt.last_position
        self.count = receipt.count
        self.replayed = receipt.replayed
        self.response = receipt.response
        self._receipt = receipt

    @property
    def event_ids(self) -> list[str]:
        """The record ids of the stored events."""
        return [record.event_id for record in self._receipt.records]

    @cached_property
    def events(self) -> list[AggregateEvent]:
        """The stored events, built at first access."""
        return [AggregateEvent.of(record) for record in self._receipt.records]

    def __repr__(self) -> str:
        """Return the range of event ids, without the events."""
        return (
            f"AggregateAppendResult(first_event_id={self.first_event_id}, "
            f"last_event_id={self.last_event_id}, replayed={self.replayed})"
        )


# The log's name of each field that the profile names differently.
_LOG_NAMES = {"aggregate_seq": "stream_seq", "org_id": "tenant_id", "record_id": "event_id"}
_PROFILE_NAMES = {log_name: name for name, log_name in _LOG_NAMES.items()}
_FIELDS = frozenset(
    {_PROFILE_NAMES.get(name, name) for name in NewEvent.__struct_fields__ if name != "stream"}
    | {"aggregate_type", "aggregate_id"}
)
_COMMITTED = {
    "event_id": "is the event's position, set only by the log; use record_id for your own id",
    "recorded_at": "is set only by the log",
}


def event_fields(event: object, index: int) -> dict[str, Any]:
    """Return the fields of an event by the profile's names, without those that are None.

    Raises:
        InvalidEvent: A field is unknown or set only by the log, with `index` for the message.
    """
    if isinstance(event, NewEvent):
        fields = _from_new_event(event, index)
    elif isinstance(event, Mapping):
        fields = dict(event)
        for name in fields:
            if name in _COMMITTED:
                raise event_error(name, _COMMITTED[name], index)
            if name not in _FIELDS:
                raise event_error(str(name)[:80], "is not a field of an event", index)
    else:
        raise event_error("$", "must be a NewEvent or a mapping", index)
    return {name: value for name, value in fields.items() if value is not None}


def _from_new_event(event: NewEvent, index: int) -> dict[str, Any]:
    fields = msgspec.structs.asdict(event)
    stream = fields.pop("stream")
    if stream is not None:
        if not isinstance(stream, tuple) or len(stream) != STREAM_REF_LENGTH:
            raise event_error("stream", "must be a (stream type, stream id) pair", index)
        fields["aggregate_type"], fields["aggregate_id"] = stream
    return {_PROFILE_NAMES.get(name, name): value for name, value in fields.items()}


def to_new_event(fields: Mapping[str, Any], index: int) -> NewEvent:
    """Build the log's event from the profile's fields; the append validates most values.

    Raises:
        InvalidEvent: A required field is missing, or the aggregate is of another profile.
    """
    values = dict(fields)
    for name in ("event_type", "payload", "aggregate_type", "aggregate_id"):
        if name not in values:
            raise event_error(name, "is required", index)
    for name in ("aggregate_type", "aggregate_id"):
        if problem := id_problem(values[name]):
            raise event_error(name, problem, index)
    if (owner := PROFILE_KINDS.get(values["aggregate_type"])) is not None:
        problem = f"must not be {owner.kind.name}: use the {owner.profile} profile"
        raise event_error("aggregate_type", problem, index)
    if isinstance(values.get("tags"), list):
        values["tags"] = tuple(values["tags"])
    stream = values.pop("aggregate_type"), values.pop("aggregate_id")
    return NewEvent(stream=stream, **{_LOG_NAMES.get(name, name): values[name] for name in values})


def event_error(field: str, problem: str, index: int) -> Exception:
    """Build the error for an invalid event."""
    return AGGREGATES_PROFILE.error(ValidationError("envelope", field, problem), index)


def to_new_events(events: Events, common: Mapping[str, Any]) -> Any:
    """Build the log's events; the append itself rejects an argument that is not a list."""
    if isinstance(events, NewEvent | Mapping | str) or not isinstance(events, Iterable):
        return events
    return [
        to_new_event({**common, **event_fields(event, index)}, index)
        for index, event in enumerate(events)
    ]


def to_conditions(expected: ExpectedSeqs, events: Any) -> list[ExpectedSeq] | None:
    """Return the conditions that streams have the expected numbers, or None for any."""
    if isinstance(expected, EllipsisType) or not isinstance(events, list):
        return None
    if isinstance(expected, Mapping):
        return [ExpectedSeq(stream, seq) for stream, seq in expected.items()]
    streams = {event.stream for event in events}
    if len(streams) > 1:
        raise invalid_argument(
            "expected_seq", "must map (type, id) to numbers for several aggregates"
        )
    return [ExpectedSeq(stream, expected) for stream in streams]

"""The event types, `NewEvent` to append and `EventRecord` as stored, and append receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from seriatim.core.canonical import decode_stored_json
from seriatim.core.errors import InvalidEvent

DEFAULT_TENANT = "default"
INFRASTRUCTURE_TENANT = "_infrastructure"

StreamRef = tuple[str, str]
STREAM_REF_LENGTH = 2  # the stream type and the stream id


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append: a type and a payload; all other fields are optional.

    Attributes:
        event_type: The type of the event.
        payload: A JSON object; in the profile `facts`, any JSON value.
        stream: The stream as `(type, id)`; None for a fact.
        stream_seq: The sequence number in the stream, where the caller numbers events; elsewhere
            the expected number.
        event_id: Your own id, unique within the tenant; None for a generated UUIDv7.
        event_version: The version of the payload's schema.
        occurred_at: When it happened, in RFC 3339, stored byte for byte; None for the store's time.
        tenant_id: The tenant of the log, or None.
        producer_id: The producer; idempotency keys are unique per producer.
        source_system: The system that the event comes from.
        source_subsystem: The part of that system.
        actor_type: The type of the actor.
        actor_id: The id of the actor.
        request_id: The request that caused the event.
        correlation_id: The id that related events share.
        causation_id: The id of the event that caused this one.
        idempotency_key: A key under which the event is stored once per producer.
        app_id: The application, a scope that reads can filter by.
        env_id: The environment, another scope that reads can filter by.
        metadata: Texts by name, for trace context and labels; neither hashed nor compared.
        tags: Texts that queries and conditions find by an index; their order is kept.

    Example:
        NewEvent("order.placed", {"total": 12}, stream=("order", "7"), tags=("customer:4",))
    """

    event_type: str
    payload: Any = msgspec.field(default_factory=dict)
    stream: StreamRef | None = None
    stream_seq: int | None = None
    event_id: str | None = None
    event_version: int = 1
    occurred_at: str | None = None
    tenant_id: str | None = None
    producer_id: str | None = None
    source_system: str | None = None
    source_subsystem: str | None = None
    actor_type: str | None = None
    actor_id: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    idempotency_key: str | None = None
    app_id: str | None = None
    env_id: str | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> NewEvent:
        """Build an event from a mapping of its fields.

        The stream may be a `stream` pair, or `stream_type` and `stream_id`.

        Raises:
            InvalidEvent: A field is unknown, or only the log may set it.
        """
        fields = dict(mapping)
        if "stream_type" in fields or "stream_id" in fields:
            if "stream" in fields:
                msg = "set either stream, or stream_type and stream_id, not both"
                raise InvalidEvent(msg, details={"field": "stream"})
            stream = fields.pop("stream_type", None), fields.pop("stream_id", None)
            fields["stream"] = None if stream == (None, None) else stream
        for name in fields:
            if name in COMMITTED_FIELDS:
                msg = f"{name} is set only by the log"
                raise InvalidEvent(msg, details={"field": name})
            if name not in _NEW_FIELDS:
                msg = f"an event has no field {name!r:.80}"
                raise InvalidEvent(msg, details={"field": str(name)[:80]})
        if "event_type" not in fields:
            msg = "event_type is required"
            raise InvalidEvent(msg, details={"field": "event_type"})
        if isinstance(fields.get("stream"), list):
            fields["stream"] = tuple(fields["stream"])
        if isinstance(fields.get("tags"), list):
            fields["tags"] = tuple(fields["tags"])
        return cls(**fields)


# gc=False: pages hold many records, and none is part of a reference cycle.
class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """A stored event; the order of its fields is the order of every backend's columns.

    The fields that are not listed here are those of `NewEvent`, as they were given.

    Attributes:
        position: The position in the order of the whole log, from 1 and without gaps.
        append_position: The position of the first event of the same append.
        event_id: The given id, or the generated one.
        tenant_id: The tenant that owns the event.
        stream_type: The type of the stream; None for a fact.
        stream_id: The id of the stream; None for a fact.
        stream_seq: The sequence number, contiguous within the stream; None for a fact.
        occurred_at: As given, byte for byte; equal to `recorded_at` if it was omitted.
        recorded_at: The time of the append by the store's clock, in UTC with microseconds.
        idempotency_key: As given; if a whole append has the key k, its events have k/0, k/1, ….
        payload_json: The payload as canonical JSON, as it is stored and hashed.
        payload_hash: `sha256:` and the hex digest of `payload_json`.
    """

    position: int
    append_position: int
    event_id: str
    tenant_id: str
    stream_type: str | None
    stream_id: str | None
    stream_seq: int | None
    event_type: str
    event_version: int
    occurred_at: str
    recorded_at: str
    producer_id: str | None
    source_system: str | None
    source_subsystem: str | None
    actor_type: str | None
    actor_id: str | None
    request_id: str | None
    correlation_id: str | None
    causation_id: str | None
    idempotency_key: str | None
    app_id: str | None
    env_id: str | None
    metadata: Mapping[str, str]
    payload_json: str = msgspec.field(name="payload")  # stored and sent under this name
    payload_hash: str
    tags: tuple[str, ...]

    @property
    def payload(self) -> Any:
        """The payload as a Python value, parsed at each access."""
        return decode_stored_json(self.payload_json)

    @property
    def stream(self) -> StreamRef | None:
        """The stream as `(type, id)`, or None for a fact."""
        if self.stream_type is None or self.stream_id is None:
            return None
        return self.stream_type, self.stream_id

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name, with the payload as a value; the form used by exports."""
        fields = dict(zip(RECORD_COLUMNS, msgspec.structs.astuple(self), strict=True))
        fields["payload"] = self.payload
        fields["metadata"] = dict(self.metadata)
        fields["tags"] = list(self.tags)
        return fields


# The names of a record's fields in databases, exports, DataFrames and over HTTP.
RECORD_COLUMNS = EventRecord.__struct_encode_fields__
# The optional texts of an envelope, in the order of every form of an event.
ENVELOPE_TEXTS = RECORD_COLUMNS[
    RECORD_COLUMNS.index("recorded_at") + 1 : RECORD_COLUMNS.index("metadata")
]
COMMITTED_FIELDS = frozenset({"position", "append_position", "recorded_at", "payload_hash"})
_NEW_FIELDS = frozenset(NewEvent.__struct_fields__)


class AppendResult:
    """The receipt of one append.

    Attributes:
        first_position: The position of its first event.
        last_position: The position of its last event; positions are consecutive.
        replayed: Whether an earlier append stored these events.
        response: The stored response of its command, if it has one.
        id_mismatch: The fields in which a tolerated duplicate event id differs from the stored
            event.
    """

    def __init__(
        self,
        first_position: int,
        last_position: int,
        records: Callable[[], tuple[EventRecord, ...]],
        *,
        replayed: bool = False,
        response: Any = None,
        id_mismatch: tuple[str, ...] = (),
    ) -> None:
        self.id_mismatch = id_mismatch
        self.first_position = first_position
        self.last_position = last_position
        self.replayed = replayed
        self.response = response
        self._make_records = records

    @property
    def count(self) -> int:
        """The number of events in the append."""
        return self.last_position - self.first_position + 1

    @cached_property
    def records(self) -> tuple[EventRecord, ...]:
        """The stored records, built at first access because large batches rarely need them."""
        return self._make_records()

    @classmethod
    def replay(
        cls,
        records: tuple[EventRecord, ...],
        response: Any = None,
        id_mismatch: tuple[str, ...] = (),
    ) -> AppendResult:
        """Build the receipt of an append that was stored before."""
        return cls(
            records[0].position,
            records[-1].position,
            lambda: records,
            replayed=True,
            response=response,
            id_mismatch=id_mismatch,
        )

    def __repr__(self) -> str:
        """Return the range of positions, without the events."""
        return (
            f"AppendResult(first_position={self.first_position}, "
            f"last_position={self.last_position}, replayed={self.replayed})"
        )


class LogIdentity(msgspec.Struct, frozen=True):
    """The identity of a log: a UUID made at creation, and an epoch that a restore raises."""

    log_id: str
    epoch: int

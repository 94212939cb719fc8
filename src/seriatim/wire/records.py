"""Events over HTTP: payloads are embedded as JSON, with the exact text that was hashed."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from seriatim.core.errors import ValidationError
from seriatim.core.event import EventRecord, NewEvent
from seriatim.core.request import PreparedEvent


class WireRecord(msgspec.Struct, frozen=True, gc=False):
    """An `EventRecord` with its payload embedded as JSON, byte for byte."""

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
    metadata: dict[str, str]
    payload: msgspec.Raw
    payload_hash: str
    tags: list[str]


# One call for all fields: most of the work of a response is the conversion of its records.
_get_record_fields = attrgetter(*EventRecord.__struct_fields__)
_get_wire_fields = attrgetter(*WireRecord.__struct_fields__)
_PAYLOAD = WireRecord.__struct_fields__.index("payload")
_TAGS = WireRecord.__struct_fields__.index("tags")


def to_wire_record(record: EventRecord) -> WireRecord:
    """Return the wire form of a record."""
    fields = list(_get_record_fields(record))
    fields[_PAYLOAD] = msgspec.Raw(record.payload_json.encode())
    return WireRecord(*fields)


def from_wire_record(record: WireRecord) -> EventRecord:
    """Return the record of a wire form."""
    fields = list(_get_wire_fields(record))
    fields[_PAYLOAD] = bytes(record.payload).decode()
    fields[_TAGS] = tuple(record.tags)
    return EventRecord(*fields)


def to_wire_records(records: Iterable[EventRecord]) -> list[WireRecord]:
    """Return the wire forms of records."""
    return [to_wire_record(record) for record in records]


def from_wire_records(records: Iterable[WireRecord]) -> list[EventRecord]:
    """Return the records of wire forms."""
    return [from_wire_record(record) for record in records]


def _empty_payload() -> dict[str, Any]:
    return {}


class WireEvent(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A `NewEvent` in a request."""

    event_type: str
    payload: Any = msgspec.field(default_factory=_empty_payload)  # to send it: `msgspec.Raw`
    stream_type: str | None = None
    stream_id: str | None = None
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
    metadata: dict[str, str] = {}
    tags: list[str] = []
    stream: tuple[str, str] | None = None  # type and id, instead of the two fields above


def to_wire_event(event: PreparedEvent) -> WireEvent:
    """Return the wire form of a validated event; with its id it can be sent again safely."""
    return WireEvent(
        event.event_type,
        msgspec.Raw(event.payload.encode()),
        event.stream_type,
        event.stream_id,
        event.requested_seq,
        event.event_id,
        event.event_version,
        event.occurred_at,
        None,  # the tenant is named once, in a header of the request
        event.producer_id,
        event.source_system,
        event.source_subsystem,
        event.actor_type,
        event.actor_id,
        event.request_id,
        event.correlation_id,
        event.causation_id,
        event.idempotency_key,
        event.app_id,
        event.env_id,
        dict(event.metadata),
        list(event.tags),
    )


def from_wire_event(event: WireEvent) -> NewEvent:
    """Return the event of a wire form with a parsed payload, to be validated by the log.

    Raises:
        ValidationError: The stream is given twice.
    """
    stream: Any = event.stream
    if event.stream_type is not None or event.stream_id is not None:
        if stream is not None:
            msg = "set either stream, or stream_type and stream_id, not both"
            raise ValidationError("envelope", "stream", msg)
        stream = event.stream_type, event.stream_id
    return NewEvent(
        event.event_type,
        event.payload,
        stream,
        event.stream_seq,
        event.event_id,
        event.event_version,
        event.occurred_at,
        event.tenant_id,
        event.producer_id,
        event.source_system,
        event.source_subsystem,
        event.actor_type,
        event.actor_id,
        event.request_id,
        event.correlation_id,
        event.causation_id,
        event.idempotency_key,
        event.app_id,
        event.env_id,
        event.metadata,
        tuple(event.tags),
    )

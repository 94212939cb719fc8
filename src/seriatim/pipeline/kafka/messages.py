"""What a message holds: the record as JSON in a versioned shape, a key, and headers.

key      ["tenant","stream type","stream id"], without a stream ["tenant","event id"]
headers  seriatim-schema, -log, -epoch, -tenant, -position, -event-id, -event-type, -hash,
-first-seq, and traceparent and tracestate as the event's metadata has them
value    every field of the record by its name, the payload as JSON, `schema` first
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from seriatim.core.event import EventRecord, LogIdentity

SCHEMA = "seriatim.event/1"
HEADER = "seriatim-"
_TRACE = ("traceparent", "tracestate")
_encode = msgspec.json.Encoder().encode

Header = tuple[str, str | bytes | None]  # as the client takes it


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a message."""

    schema: str
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
    payload: msgspec.Raw
    payload_hash: str
    tags: tuple[str, ...]

    def record(self) -> EventRecord:
        """Return the record that the log holds; the payload's text is the very same."""
        fields = msgspec.structs.asdict(self)
        del fields["schema"]
        fields["payload"] = bytes(self.payload).decode()
        return EventRecord(**fields)


_decoder = msgspec.json.Decoder(Message)
_FIELDS = EventRecord.__struct_fields__


def key_of(event: EventRecord) -> bytes:
    """Return what keeps the events of a stream in one partition, and those of others apart."""
    if event.stream_id is None:
        return _encode([event.tenant_id, event.event_id])
    return _encode([event.tenant_id, event.stream_type, event.stream_id])


def value_of(event: EventRecord) -> bytes:
    """Return the record as JSON."""
    fields: dict[str, Any] = {"schema": SCHEMA}
    for name in _FIELDS:
        fields[name] = getattr(event, name)
    fields["payload"] = msgspec.Raw(event.payload.encode())
    return _encode(fields)


class Headers:
    """Makes the headers of the messages of one log."""

    def __init__(self, log: LogIdentity, zero_based: frozenset[str]) -> None:
        self._same: list[Header] = [
            (f"{HEADER}schema", SCHEMA.encode()),
            (f"{HEADER}log", log.log_id.encode()),
            (f"{HEADER}epoch", str(log.epoch).encode()),
        ]
        self._zero_based = zero_based

    def of(self, event: EventRecord) -> list[Header]:
        """Return the headers of an event."""
        made: list[Header] = [
            *self._same,
            (f"{HEADER}tenant", event.tenant_id.encode()),
            (f"{HEADER}position", b"%d" % event.position),
            (f"{HEADER}event-id", event.event_id.encode()),
            (f"{HEADER}event-type", event.event_type.encode()),
            (f"{HEADER}hash", event.payload_hash.encode()),
        ]
        if event.stream_type is not None:
            first = b"0" if event.stream_type in self._zero_based else b"1"
            made.append((f"{HEADER}first-seq", first))
        if event.metadata:
            given = event.metadata
            made += [(name, given[name].encode()) for name in _TRACE if name in given]
        return made


def record_of(value: bytes) -> EventRecord:
    """Return the record of a message's value, or raise ValueError."""
    found = _decoder.decode(value)
    if found.schema != SCHEMA:
        msg = f"the message has schema {found.schema!r:.40}, this reads {SCHEMA}"
        raise ValueError(msg)
    return found.record()

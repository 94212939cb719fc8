"""The types of the traces profile, and their conversion to and from events of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.errors import ValidationError
from seriatim.core.event import COMMITTED_FIELDS, EventRecord, NewEvent
from seriatim.profiles.trace_rules import TRACES_PROFILE
from seriatim.store.port import Cursor


class TraceSource(msgspec.Struct, frozen=True):
    """The source of an event: a system, a subsystem and the producer."""

    system: str
    subsystem: str | None = None
    producer_id: str | None = None


class TraceActor(msgspec.Struct, frozen=True):
    """The actor of an event: an agent, a person, a role or the system."""

    actor_type: str
    actor_id: str


class EventEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a trace to append; it is validated by the append.

    The producer is named in `source` or in `producer_id`.
    """

    event_id: str
    trace_id: str
    trace_seq: int
    event_type: str
    occurred_at: str
    source: TraceSource | Mapping[str, Any]
    actor: TraceActor | Mapping[str, Any]
    idempotency_key: str
    payload: Mapping[str, Any]
    producer_id: str | None = None
    correlation_id: str | None = None
    causation_event_id: str | None = None
    schema_version: int = 1
    tags: tuple[str, ...] | list[str] = ()
    request_id: str | None = None
    tenant_id: str | None = None
    metadata: Mapping[str, str] = {}


class StoredEvent(msgspec.Struct, frozen=True):
    """One stored event of a trace; `payload_hash` is the hash of `payload_json`."""

    log_seq: int
    tenant_id: str
    event_id: str
    trace_id: str
    trace_seq: int
    event_type: str
    occurred_at: str
    recorded_at: str
    producer_id: str
    source_system: str
    source_subsystem: str | None
    actor_type: str
    actor_id: str
    correlation_id: str | None
    causation_event_id: str | None
    idempotency_key: str
    schema_version: int
    payload_json: str
    payload_hash: str
    tags_json: str
    request_id: str | None = None
    metadata: Mapping[str, str] = {}

    @property
    def payload(self) -> Any:
        """The payload as a Python value, parsed at each access."""
        return decode_stored_json(self.payload_json)

    @property
    def tags(self) -> list[str]:
        """The tags as a list, parsed at each access."""
        tags: list[str] = decode_stored_json(self.tags_json)
        return tags

    @property
    def source(self) -> TraceSource:
        """The source of the event."""
        return TraceSource(self.source_system, self.source_subsystem, self.producer_id)

    @property
    def actor(self) -> TraceActor:
        """The actor of the event."""
        return TraceActor(self.actor_type, self.actor_id)


class ProjectionCursor(msgspec.Struct, frozen=True):
    """The cursor of one projection."""

    tenant_id: str
    projection_name: str
    last_log_seq: int
    updated_at: str


_ENVELOPE_FIELDS = frozenset(EventEnvelope.__struct_fields__)
_COMMITTED = COMMITTED_FIELDS | {"log_seq", "payload_json", "tags_json"}
_RENAMED = {
    "trace_seq": "stream_seq",
    "causation_event_id": "causation_id",
    "schema_version": "event_version",
}


def to_new_event(envelope: EventEnvelope | Mapping[str, Any]) -> NewEvent:
    """Build the log's event from an envelope; the append validates its values."""
    fields = _envelope_fields(envelope)
    source = _part_fields(fields.pop("source", None), TraceSource, "source")
    actor = _part_fields(fields.pop("actor", None), TraceActor, "actor")
    stream = TRACE_STREAM_TYPE, fields.pop("trace_id", None)
    tags = fields.pop("tags", ())
    return NewEvent(
        fields.pop("event_type", None),
        fields.pop("payload", None),
        stream,
        producer_id=_choose_producer(fields.pop("producer_id", None), source.get("producer_id")),
        source_system=source.get("system"),
        source_subsystem=source.get("subsystem"),
        actor_type=actor.get("actor_type"),
        actor_id=actor.get("actor_id"),
        # Lists come from JSON; the append refuses anything else and names the field.
        tags=tuple(tags) if isinstance(tags, list) else tags,
        **{_RENAMED.get(name, name): value for name, value in fields.items()},
    )


def _envelope_fields(envelope: EventEnvelope | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(envelope, EventEnvelope):
        return msgspec.structs.asdict(envelope)
    if not isinstance(envelope, Mapping):
        raise _event_error("$", "must be an EventEnvelope or a mapping")
    for name in envelope:
        if name in _COMMITTED:
            raise _event_error(name, "is set only by the log")
        if name not in _ENVELOPE_FIELDS:
            raise _event_error(str(name)[:80], "is not a field of an envelope")
    for name in ("event_type", "payload"):
        if name not in envelope:
            raise _event_error(name, "is required")
    return dict(envelope)


def _part_fields(part: Any, kind: type[TraceSource | TraceActor], field: str) -> Mapping[str, Any]:
    """Return the fields of a source or an actor, given as an object or a mapping."""
    if part is None:
        raise _event_error(field, "is required")
    if isinstance(part, kind):
        return msgspec.structs.asdict(part)
    if not isinstance(part, Mapping):
        raise _event_error(field, f"must be an object of {', '.join(kind.__struct_fields__)}")
    for name in part:
        if name not in kind.__struct_fields__:
            raise _event_error(f"{field}.{str(name)[:80]}", "is not a field of an envelope")
    return part


def _choose_producer(envelope_producer: Any, source_producer: Any) -> Any:
    """Return the producer, named in the envelope, in its source, or equally in both."""
    if (
        envelope_producer is not None
        and source_producer is not None
        and envelope_producer != source_producer
    ):
        raise _event_error("source.producer_id", "differs from the envelope's producer_id")
    return source_producer if envelope_producer is None else envelope_producer


def _event_error(field: str, problem: str) -> Exception:
    # The index is always 0: traces are appended one event at a time.
    return TRACES_PROFILE.error(ValidationError("envelope", field, problem), 0)


def to_stored_event(record: EventRecord) -> StoredEvent:
    """Convert a record of a trace."""
    return StoredEvent(
        record.position,
        record.tenant_id,
        record.event_id,
        record.stream_id or "",
        record.stream_seq or 0,
        record.event_type,
        record.occurred_at,
        record.recorded_at,
        record.producer_id or "",
        record.source_system or "",
        record.source_subsystem,
        record.actor_type or "",
        record.actor_id or "",
        record.correlation_id,
        record.causation_id,
        record.idempotency_key or "",
        record.event_version,
        record.payload_json,
        record.payload_hash,
        canonical_text(list(record.tags)),
        record.request_id,
        record.metadata,
    )


def to_projection_cursor(cursor: Cursor) -> ProjectionCursor:
    """Convert a cursor of the log."""
    return ProjectionCursor(cursor.tenant_id, cursor.name, cursor.position, cursor.updated_at)

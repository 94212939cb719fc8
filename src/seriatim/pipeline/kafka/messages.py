"""The format of Kafka messages: the record as versioned JSON, a key, and headers.

key      ["tenant","stream type","stream id"], without a stream ["tenant","event id"]
headers  seriatim-schema, -log, -epoch, -tenant, -position, -event-id, -event-type, -hash,
-first-seq, and traceparent and tracestate from the event's metadata
value    a JSON object with `schema` first, then every field of the record; the payload is JSON
"""

from __future__ import annotations

import msgspec

from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.tenants import tenant_problem
from seriatim.telemetry.tracer import TRACE_FIELDS
from seriatim.wire.records import WireRecord, from_wire_record, to_wire_record

SCHEMA = "seriatim.event/1"
HEADER_PREFIX = "seriatim-"
_encode = msgspec.json.Encoder().encode

KafkaHeader = tuple[str, str | bytes | None]  # the type that confluent_kafka accepts


class Message(WireRecord, frozen=True, kw_only=True, gc=False):
    """The value of a message."""

    schema: str


_decoder = msgspec.json.Decoder(Message)
_SCHEMA_FIRST = b'{"schema":"%b",' % SCHEMA.encode()


def encode_key(event: EventRecord) -> bytes:
    """Encode the message key, which puts all events of a stream into one partition."""
    if event.stream_id is None:
        return _encode([event.tenant_id, event.event_id])
    return _encode([event.tenant_id, event.stream_type, event.stream_id])


def encode_value(event: EventRecord) -> bytes:
    """Encode the message value: the record as JSON."""
    # Hot path: put the schema before the encoded fields instead of building a second struct.
    return _SCHEMA_FIRST + _encode(to_wire_record(event))[1:]


class HeaderBuilder:
    """Builds the headers of the messages of one log."""

    def __init__(self, log: LogIdentity, zero_based: frozenset[str]) -> None:
        """Prepare the headers that all messages share.

        Args:
            log: The identity of the log.
            zero_based: Stream types whose sequence numbers start at 0.

        """
        self._common: list[KafkaHeader] = [
            (f"{HEADER_PREFIX}schema", SCHEMA.encode()),
            (f"{HEADER_PREFIX}log", log.log_id.encode()),
            (f"{HEADER_PREFIX}epoch", str(log.epoch).encode()),
        ]
        self._zero_based = zero_based

    def build(self, event: EventRecord) -> list[KafkaHeader]:
        """Return the headers of an event's message."""
        headers: list[KafkaHeader] = [
            *self._common,
            (f"{HEADER_PREFIX}tenant", event.tenant_id.encode()),
            (f"{HEADER_PREFIX}position", b"%d" % event.position),
            (f"{HEADER_PREFIX}event-id", event.event_id.encode()),
            (f"{HEADER_PREFIX}event-type", event.event_type.encode()),
            (f"{HEADER_PREFIX}hash", event.payload_hash.encode()),
        ]
        if event.stream_type is not None:
            first = b"0" if event.stream_type in self._zero_based else b"1"
            headers.append((f"{HEADER_PREFIX}first-seq", first))
        if event.metadata:
            metadata = event.metadata
            headers += [
                (name, metadata[name].encode()) for name in TRACE_FIELDS if name in metadata
            ]
        return headers


def format_own_headers(headers: list[KafkaHeader]) -> str:
    """Format the headers with our prefix as one sorted text, for comparison; ignore others."""
    # In hexadecimal, as Spark computes it, because a header may contain any bytes.
    lines = (
        f"{name}={value.encode().hex() if isinstance(value, str) else (value or b'').hex()}"
        for name, value in headers
        if name.startswith(HEADER_PREFIX)
    )
    return "\n".join(sorted(lines))


def decode_record(value: bytes) -> EventRecord:
    """Decode the record from a message value.

    Raises:
        ValueError: The value is not a message of this schema, or its tenant id is invalid.

    """
    message = _decoder.decode(value)
    if message.schema != SCHEMA:
        msg = f"the message has schema {message.schema!r:.40}, expected {SCHEMA}"
        raise ValueError(msg)
    if problem := tenant_problem(message.tenant_id):
        msg = f"the message's tenant_id {problem}"
        raise ValueError(msg)
    return from_wire_record(message)

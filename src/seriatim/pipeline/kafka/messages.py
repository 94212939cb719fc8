"""What a message holds: the record as JSON in a versioned shape, a key, and headers.

key      ["tenant","stream type","stream id"], without a stream ["tenant","event id"]
headers  seriatim-schema, -log, -epoch, -tenant, -position, -event-id, -event-type, -hash,
-first-seq, and traceparent and tracestate as the event's metadata has them
value    every field of the record by its name, the payload as JSON, `schema` first
"""

from __future__ import annotations

import msgspec

from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.tenants import tenant_problem
from seriatim.telemetry.tracing import TRACE_FIELDS
from seriatim.wire.records import WireRecord, incoming, outgoing

SCHEMA = "seriatim.event/1"
HEADER = "seriatim-"
_encode = msgspec.json.Encoder().encode

Header = tuple[str, str | bytes | None]  # as the client takes it


class Message(WireRecord, frozen=True, kw_only=True, gc=False):
    """The value of a message."""

    schema: str


_decoder = msgspec.json.Decoder(Message)
_SCHEMA_FIRST = b'{"schema":"%b",' % SCHEMA.encode()


def key_of(event: EventRecord) -> bytes:
    """Return what keeps the events of a stream in one partition, and those of others apart."""
    if event.stream_id is None:
        return _encode([event.tenant_id, event.event_id])
    return _encode([event.tenant_id, event.stream_type, event.stream_id])


def value_of(event: EventRecord) -> bytes:
    """Return the record as JSON."""
    return _SCHEMA_FIRST + _encode(outgoing(event))[1:]


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
            made += [(name, given[name].encode()) for name in TRACE_FIELDS if name in given]
        return made


def own_headers(headers: list[Header]) -> str:
    """Return the headers that Seriatim gives a message as one text; others may add their own."""
    lines = (
        f"{name}={value.encode().hex() if isinstance(value, str) else (value or b'').hex()}"
        for name, value in headers
        if name.startswith(HEADER)
    )
    return "\n".join(sorted(lines))


def record_of(value: bytes) -> EventRecord:
    """Return the record of a message's value, or raise ValueError."""
    found = _decoder.decode(value)
    if found.schema != SCHEMA:
        msg = f"the message has schema {found.schema!r:.40}, this reads {SCHEMA}"
        raise ValueError(msg)
    if problem := tenant_problem(found.tenant_id):
        msg = f"the message's tenant_id {problem}"
        raise ValueError(msg)
    return incoming(found)

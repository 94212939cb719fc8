"""Convert the lines of one append in an import file into events."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from seriatim.core.canonical import parse_json, read_json
from seriatim.core.doors import AGGREGATES
from seriatim.core.errors import Flaw, InvalidEvent
from seriatim.core.event import NewEvent
from seriatim.core.kinds import TRACE_KIND
from seriatim.log.transfer import Line

# The fields that lines and events share, in order: after type, payload and stream, before tags.
_get_shared_fields = attrgetter(*NewEvent.__struct_fields__[3:-1])

# The lines of one append, each with its line number in the file.
Append = list[tuple[int, Line]]


def shares_keys(append: Append) -> bool:
    """Return whether only a command can have made this append.

    A command's events may share a key, and only some of them may have one.
    """
    keys = [
        (line.producer_id, line.idempotency_key)
        for _, line in append
        if line.idempotency_key is not None
    ]
    return len(set(keys)) != len(keys) or 0 < len(keys) < len(append)


def of_a_command(append: Append) -> bool:
    """Return whether an append may have been made through the aggregates profile."""
    return all(
        line.stream_type not in (None, TRACE_KIND)
        and line.request_id is not None
        and line.actor_type in AGGREGATES.actor_types
        for _, line in append
    )


def new_event(number: int, line: Line) -> NewEvent:
    """Return the event of a line; raises `InvalidEvent`, with the line number, if malformed."""
    if line.event_id is None and line.idempotency_key is None:
        msg = (
            f"line {number}: an event needs an event_id or an idempotency_key, so that importing "
            "the file again does not store it twice"
        )
        raise InvalidEvent(msg, details={"line": number, "field": "event_id"})
    stream = None
    if line.stream_type is not None and line.stream_id is not None:
        stream = (line.stream_type, line.stream_id)
    elif line.stream_type is not line.stream_id:
        msg = f"line {number}: stream_type and stream_id must be given together"
        raise InvalidEvent(msg, details={"line": number, "field": "stream_id"})
    rest = (*_get_shared_fields(line), tuple(line.tags))
    return NewEvent(line.event_type, _parse_payload(number, line), stream, *rest)


def _parse_payload(number: int, line: Line) -> Any:
    """Parse a payload: fast if it has a hash to be verified later, strictly if not."""
    try:
        raw = bytes(line.payload)
        return parse_json(raw) if line.payload_hash is None else read_json(raw)
    except (Flaw, ValueError) as error:
        msg = f"line {number}: the payload is not JSON ({error})"
        raise InvalidEvent(msg, details={"line": number, "field": "payload"}) from None

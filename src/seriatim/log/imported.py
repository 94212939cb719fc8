"""What the lines of one append in a file say: its events, and whether they are a command's."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from seriatim.core.canonical import parse_json, read_json
from seriatim.core.doors import AGGREGATES
from seriatim.core.errors import Flaw, InvalidEvent
from seriatim.core.event import NewEvent
from seriatim.core.kinds import TRACE_KIND
from seriatim.log.transfer import Line

# What a line and an event have in common, behind type, payload and stream and before the tags.
_kept_of = attrgetter(*NewEvent.__struct_fields__[3:-1])

# The lines of one append, each with its number in the file.
Append = list[tuple[int, Line]]


def shares_keys(append: Append) -> bool:
    """Tell whether an append can only be a command's: a key twice, or keys on some events only."""
    held = [
        (line.producer_id, line.idempotency_key)
        for _, line in append
        if line.idempotency_key is not None
    ]
    return len(set(held)) != len(held) or 0 < len(held) < len(append)


def of_a_command(append: Append) -> bool:
    """Tell whether an append may have come through the aggregates' door."""
    return all(
        line.stream_type not in (None, TRACE_KIND)
        and line.request_id is not None
        and line.actor_type in AGGREGATES.actor_types
        for _, line in append
    )


def new_event(number: int, line: Line) -> NewEvent:
    """Return the event that a line stands for, or refuse the line."""
    if line.event_id is None and line.idempotency_key is None:
        msg = f"line {number}: an event needs an event_id or a key, so that no import repeats it"
        raise InvalidEvent(msg, details={"line": number, "field": "event_id"})
    stream = None
    if line.stream_type is not None and line.stream_id is not None:
        stream = (line.stream_type, line.stream_id)
    elif line.stream_type is not line.stream_id:
        msg = f"line {number}: stream_type and stream_id come together"
        raise InvalidEvent(msg, details={"line": number, "field": "stream_id"})
    rest = (*_kept_of(line), tuple(line.tags))
    return NewEvent(line.event_type, _payload(number, line), stream, *rest)


def _payload(number: int, line: Line) -> Any:
    """Read a payload: quickly when its hash will be checked, strictly when there is none."""
    try:
        raw = bytes(line.payload)
        return parse_json(raw) if line.payload_hash is None else read_json(raw)
    except (Flaw, ValueError) as error:
        msg = f"line {number}: the payload is not JSON ({error})"
        raise InvalidEvent(msg, details={"line": number, "field": "payload"}) from None

"""Rules of a consistent log, which `verify` and the audit on Spark share.

Each function gets the fields of one event, and those of its predecessor where the rule needs them,
and yields the problems that it finds. `verify` calls them for every event. The audit selects
suspicious events with vectorized expressions and calls them only for those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from seriatim.core.canonical import canonical_text, decode_stored_json, hash_text
from seriatim.core.ids import id_problem, key_problem
from seriatim.core.kinds import PROFILE_KINDS, StreamKind

# The level and description of a problem; a warning may have a harmless reason.
EventProblem = tuple[Literal["warning", "error"], str]


def find_append_problem(
    position: int, append_position: int, tenant_id: str, start: tuple[int, str] | None
) -> str | None:
    """Return why an event does not belong to its append, or None.

    Args:
        position: The position of the event.
        append_position: The append position of the event.
        tenant_id: The tenant of the event.
        start: The append position and the tenant of the append that the event before it belongs
            to; None if none precedes it.
    """
    if append_position == position:
        return None
    prefix = f"position {position} has the append position {append_position}"
    if start is None:
        return f"{prefix}, but no append starts before it"
    if append_position != start[0]:
        return f"{prefix}, but its append starts at {start[0]}"
    if tenant_id != start[1]:
        return f"position {position} has another tenant than the rest of its append"
    return None


def find_payload_problems(payload: str, payload_hash: str) -> Iterator[str]:
    """Yield why a payload is not canonical JSON, or does not match its hash."""
    try:
        canonical = canonical_text(decode_stored_json(payload))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        yield "the payload is not JSON"
        return
    if canonical != payload:
        yield "the payload is not canonical JSON"
    if hash_text(payload) != payload_hash:
        yield "the payload does not match its hash"


def find_envelope_problems(
    *,
    event_id: str,
    tenant_id: str,
    event_type: str,
    event_version: int,
    stream_type: str | None,
    stream_id: str | None,
    stream_seq: int | None,
    idempotency_key: str | None,
) -> Iterator[str]:
    """Yield the malformed ids, keys and numbers of an event, each with its field."""
    ids: dict[str, str | None] = {
        "event_id": event_id,
        "tenant_id": tenant_id,
        "event_type": event_type,
    }
    if (stream_type, stream_id, stream_seq) != (None, None, None):
        ids |= {"stream_type": stream_type, "stream_id": stream_id}
        if stream_seq is None:
            yield "stream_seq is missing"
    for field, value in ids.items():
        if problem := id_problem(value):
            yield f"{field} {problem}"
    if idempotency_key is not None and (problem := key_problem(idempotency_key)):
        yield f"idempotency_key {problem}"
    if event_version < 1:
        yield "event_version is below 1"


def find_stream_problems(
    seq: int, event_type: str, last: tuple[int, str] | None, kind: StreamKind
) -> Iterator[EventProblem]:
    """Yield why an event does not continue its stream.

    A kind may be declared after a stream of its type began, so violating its rules is only a
    warning. The kinds of profiles are built in, so violating their rules is an error.

    Args:
        seq: The sequence number of the event.
        event_type: The type of the event.
        last: The sequence number and the type of the previous event of the stream, if there is one.
        kind: The kind of the stream.
    """
    level: Literal["warning", "error"] = "error" if kind.name in PROFILE_KINDS else "warning"
    if last is None:
        if seq != kind.first_seq:
            yield (level if seq in (0, 1) else "error"), f"begins with number {seq}"
        if kind.opening_type not in (None, event_type):
            yield level, f"does not open with {kind.opening_type}"
        return
    if seq != last[0] + 1:
        yield "error", f"has number {seq} after {last[0]}"
    if last[1] in kind.closing_types:
        yield level, f"continues after it was closed by {last[1]}"
    if event_type == kind.opening_type:
        yield level, "opens a second time"

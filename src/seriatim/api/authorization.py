"""Authorization of appends: actors, conditions, commands, and access to earlier results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from seriatim.access.rights import ANONYMOUS, Caller
from seriatim.api.http import HttpRequest
from seriatim.api.request_bodies import parse_json_body
from seriatim.core.canonical import canonical_text, hash_text
from seriatim.core.errors import Forbidden, IdempotencyConflict, InvalidArgument
from seriatim.core.event import AppendResult, EventRecord, NewEvent
from seriatim.core.kinds import TRACE_STREAM_TYPE
from seriatim.core.request import Command, ExpectedContext
from seriatim.wire.messages import AddedFields, WireCommand

# Actor types that a service may give itself; any other needs the right act_as.
_SERVICE_ACTOR_TYPES = frozenset({"service_principal", "system", "agent"})


def set_actor(caller: Caller, events: list[NewEvent]) -> tuple[list[NewEvent], AddedFields | None]:
    """Set the caller as the actor of events without one.

    Returns:
        The events, and the fields that were added to them, or None.

    Raises:
        Forbidden: An event names another actor, and the caller lacks the right `act_as`.
    """
    if caller.subject == ANONYMOUS:
        return events, None
    made: list[NewEvent] = []
    added = None
    for event in events:
        if event.actor_type is None and event.actor_id is None:
            stream: Any = event.stream  # not validated yet
            trace = isinstance(stream, tuple) and stream[:1] == (TRACE_STREAM_TYPE,)
            kind = "system" if trace else "service_principal"
            added = AddedFields(kind, caller.subject)
            made.append(msgspec.structs.replace(event, actor_type=kind, actor_id=caller.subject))
            continue
        own = event.actor_id == caller.subject and event.actor_type in _SERVICE_ACTOR_TYPES
        if not own and "act_as" not in caller.rights:
            raise _act_as_error()
        made.append(event)
    return made, added


def _act_as_error() -> Forbidden:
    msg = "an actor other than the token's own needs the right act_as"
    return Forbidden(msg, details={"right": "act_as"})


def confine_condition(caller: Caller, condition: Any) -> Any:
    """Restrict the query of a condition to events that the caller may read."""
    if not isinstance(condition, ExpectedContext):
        return condition
    caller.require("read")
    return msgspec.structs.replace(condition, query=caller.restrict_query(condition.query))


def make_command(
    request: HttpRequest, given: WireCommand | None, raw: bytes, part: str
) -> Command | None:
    """Return the command of an append, from the header Idempotency-Key or from the body.

    Args:
        request: The request.
        given: The command in the body.
        raw: The text that duplicates must repeat.
        part: Distinguishes several appends under one header.

    Raises:
        InvalidArgument: Both are given.
        Forbidden: The command names another actor without the right `act_as`.
    """
    key = request.header(b"idempotency-key")
    if given is not None:
        if key is not None:
            msg = "send the header Idempotency-Key or a command, not both"
            raise InvalidArgument(msg, details={"argument": "command"})
        if given.actor != request.caller.subject and "act_as" not in request.caller.rights:
            raise _act_as_error()
        return Command(**msgspec.structs.asdict(given))
    if key is None:
        return None
    return Command(
        actor=request.caller.subject,
        endpoint=request.endpoint,
        key=key + part,
        request=parse_json_body(raw),
    )


def check_readable(caller: Caller, events: Sequence[NewEvent], result: AppendResult) -> None:
    """Check that the caller may see the records of an earlier append.

    Raises:
        Forbidden: The caller may not read all of them, and did not send the same events.
    """
    records = result.records
    if _can_read_all(caller) or all(
        "read" in caller.rights and caller.can_read(record.event_type) for record in records
    ):
        return
    if len(records) == len(events) and all(map(_has_same_contents, records, events)):
        return
    raise Forbidden("this token may not read the events stored under this key or id")


def _has_same_contents(record: EventRecord, event: NewEvent) -> bool:
    text = hash_text(canonical_text(event.payload))
    return record.event_type == event.event_type and record.payload_hash == text


def redact_conflict(caller: Caller, error: IdempotencyConflict) -> IdempotencyConflict:
    """Remove the differing fields from a conflict unless the caller may read every event."""
    if _can_read_all(caller):
        return error
    msg = "other contents are stored under this key or event id"
    details = {"index": error.details["index"]} if "index" in error.details else {}
    return IdempotencyConflict(msg, details=details)


def _can_read_all(caller: Caller) -> bool:
    return "read" in caller.rights and caller.types is None

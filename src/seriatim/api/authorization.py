"""What a caller may append: under which name, on which conditions; and what it is then shown."""

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

# What a service may call itself; as a person or in a role it would act as somebody else.
_OWN_KINDS = frozenset({"service_principal", "system", "agent"})


def set_actor(caller: Caller, events: list[NewEvent]) -> tuple[list[NewEvent], AddedFields | None]:
    """Name the caller as the actor of events that name none; to name another is a right."""
    if caller.subject == ANONYMOUS:
        return events, None
    made: list[NewEvent] = []
    added = None
    for event in events:
        if event.actor_type is None and event.actor_id is None:
            stream: Any = event.stream  # not checked yet
            trace = isinstance(stream, tuple) and stream[:1] == (TRACE_STREAM_TYPE,)
            kind = "system" if trace else "service_principal"
            added = AddedFields(kind, caller.subject)
            made.append(msgspec.structs.replace(event, actor_type=kind, actor_id=caller.subject))
            continue
        own = event.actor_id == caller.subject and event.actor_type in _OWN_KINDS
        if not own and "act_as" not in caller.rights:
            raise _another()
        made.append(event)
    return made, added


def _another() -> Forbidden:
    msg = "to name another actor than the token's own needs the right act_as"
    return Forbidden(msg, details={"right": "act_as"})


def confine_condition(caller: Caller, condition: Any) -> Any:
    """Let a condition ask for nothing that the caller may not read."""
    if not isinstance(condition, ExpectedContext):
        return condition
    caller.require("read")
    return msgspec.structs.replace(condition, query=caller.restrict_query(condition.query))


def make_command(
    request: HttpRequest, given: WireCommand | None, raw: bytes, part: str
) -> Command | None:
    """Return the command of an append: by the header Idempotency-Key, or as the body names it."""
    key = request.header(b"idempotency-key")
    if given is not None:
        if key is not None:
            msg = "give an Idempotency-Key or a command, not both"
            raise InvalidArgument(msg, details={"argument": "command"})
        if given.actor != request.caller.subject and "act_as" not in request.caller.rights:
            raise _another()
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
    """Refuse to show what was stored before to who may not read it and did not send it either."""
    records = result.records
    if _reads_all(caller) or all(
        "read" in caller.rights and caller.can_read(record.event_type) for record in records
    ):
        return
    if len(records) == len(events) and all(map(_same, records, events)):
        return
    raise Forbidden("what is stored under this key or id is not this token's to read")


def _same(record: EventRecord, event: NewEvent) -> bool:
    text = hash_text(canonical_text(event.payload))
    return record.event_type == event.event_type and record.payload_hash == text


def redact_conflict(caller: Caller, error: IdempotencyConflict) -> IdempotencyConflict:
    """Return a conflict that does not tell in what, to who may not read what is stored."""
    if _reads_all(caller):
        return error
    msg = "what is stored under this key or event id is something else"
    details = {"index": error.details["index"]} if "index" in error.details else {}
    return IdempotencyConflict(msg, details=details)


def _reads_all(caller: Caller) -> bool:
    return "read" in caller.rights and caller.types is None

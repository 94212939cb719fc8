"""Appends over HTTP: one, several, and those that hold only while a context is as it was."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from seriatim.access.rights import ANONYMOUS, Caller
from seriatim.api.bodies import Asked, Parser, asked, asked_exactly, parsed
from seriatim.api.http import Request, Response
from seriatim.api.repeating import REPLAYED, once
from seriatim.api.service import Service
from seriatim.core.errors import Forbidden, InvalidArgument, SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.kinds import TRACE_KIND
from seriatim.core.request import Command, ExpectedContext
from seriatim.log.appending import Draft
from seriatim.telemetry import tracing
from seriatim.wire.problems import problem_of
from seriatim.wire.records import all_outgoing
from seriatim.wire.shapes import (
    Added,
    AppendBody,
    AppendIfBody,
    AppendsBody,
    Outcome,
    Outcomes,
    Placed,
    Receipt,
    WireCommand,
    WireCondition,
)

_LEAST_S = 0.001
_encode = msgspec.json.Encoder().encode
_one = Parser(AppendBody)
_several = Parser(AppendsBody)
_conditional = Parser(AppendIfBody)


async def append(service: Service, request: Request, raw: bytes) -> Response:
    """Append a batch of events, all or nothing."""
    body = _one.quick(raw)
    wanted = asked_exactly(parsed(raw)) if body is None else asked(body)
    return _answer(request, *await _append(service, request, wanted, raw, len(raw)))


async def append_if(service: Service, request: Request, raw: bytes) -> Response:
    """Append a batch of facts, if the context has the version that the caller has seen."""
    body = _conditional.quick(raw)
    if body is None:
        wanted = asked_exactly(_as_append(parsed(raw)))
    else:
        condition = WireCondition(query=body.query, version=body.expected_version)
        key = body.idempotency_key
        wanted = asked(AppendBody(body.events, [condition], key, profile="facts"))
    return _answer(request, *await _append(service, request, wanted, raw, len(raw)))


def _as_append(value: Any) -> dict[str, Any]:
    """Return a conditional append of facts in the shape of every append."""
    if not isinstance(value, dict) or "query" not in value:
        msg = "the body is an object with events, query and expected_version"
        raise InvalidArgument(msg, details={"argument": "query"})
    for name in value:
        if name not in AppendIfBody.__struct_fields__:
            msg = f"the body has no field {name!r:.80} here"
            raise InvalidArgument(msg, details={"argument": name[:80]})
    condition = {"query": value["query"], "version": value.get("expected_version")}
    rest = {name: value[name] for name in ("events", "idempotency_key") if name in value}
    return {**rest, "conditions": [condition], "profile": "facts"}


async def append_several(service: Service, request: Request, raw: bytes) -> Response:
    """Do several appends that share a request and nothing else; each gets its own answer."""
    if b"idempotency-key" not in request.headers:
        return await _several_done(service, request, raw)
    # Each has its own command record; that they are the same ones is known by all of them.
    return await once(service, request, raw, partial(_several_done, service, request, raw))


async def _several_done(service: Service, request: Request, raw: bytes) -> Response:
    body = _several.quick(raw)
    parts: list[Any]
    if body is None:
        value = parsed(raw)
        if not isinstance(value, dict) or not isinstance(value.get("appends"), list):
            msg = "the body is an object with a list of appends"
            raise InvalidArgument(msg, details={"argument": "appends"})
        parts = value["appends"]
    else:
        parts = body.appends
    service.log.settings.limits.check("append_events", len(parts))
    share = len(raw) // max(1, len(parts))
    outcomes = await asyncio.gather(
        *(_outcome(service, request, part, index, share) for index, part in enumerate(parts))
    )
    again = any(one.problem is not None and one.problem.retryable for one in outcomes)
    return Response(200, _encode(Outcomes(list(outcomes))), lasting=not again)


async def _outcome(service: Service, request: Request, part: Any, index: int, size: int) -> Outcome:
    try:
        wanted = asked(part) if isinstance(part, AppendBody) else asked_exactly(part)
        text = _encode(part) if b"idempotency-key" in request.headers else b""
        result, added = await _append(service, request, wanted, text, size, f"/{index}")
    except SeriatimError as error:
        return Outcome(problem=problem_of(error, request.request_id))
    # The twin of a command gets the very answer that the first one got.
    whole = result.replayed and b"idempotency-key" not in request.headers
    return Outcome(receipt(result, added, whole=whole), replayed=whole)


async def _append(  # noqa: PLR0913 - an append and where it came from
    service: Service, request: Request, wanted: Asked, raw: bytes, size: int, part: str = ""
) -> tuple[AppendResult, Added | None]:
    """Append what a caller may append, in its tenant's turn."""
    caller, tenant_id = request.caller, request.tenant_id
    caller.demand_types(event.event_type for event in wanted.events)
    events, added = _signed(caller, wanted.events)
    conditions = [_confined(caller, one) for one in wanted.conditions]
    draft = Draft(
        tenant_id=tenant_id,
        door=wanted.door,
        events=events,
        condition=conditions or None,
        idempotency_key=wanted.idempotency_key,
        command=_command(request, wanted.command, raw, part),
        on_id_mismatch=wanted.on_id_mismatch,
    )
    now = asyncio.get_running_loop().time
    seconds, began = _timeout(service, request), now()
    service.meter.spend(tenant_id, len(events), size, began)
    async with service.turns.turn(tenant_id, seconds):
        left = max(_LEAST_S, seconds - (now() - began))
        result = await service.aio(tenant_id).append_draft(draft, timeout=left)
    if result.id_mismatch:
        _check_shown(caller, result)
    return result, _traced(added, events, result)


def _check_shown(caller: Caller, result: AppendResult) -> None:
    """Refuse to show events with other contents to who may not read them; nothing was stored."""
    caller.demand("read")
    for record in result.records:
        if not caller.sees(record.event_type):
            raise Forbidden("this token is not for events of this type")


def _traced(added: Added | None, events: list[NewEvent], result: AppendResult) -> Added | None:
    """Tell the trace that the log wrote into events which carried none."""
    if not result.replayed and not tracing.active():
        return added
    # The twin of a command may have come with other events than the first.
    for event, record in zip(events, result.records, strict=False):
        if "traceparent" in record.metadata and "traceparent" not in event.metadata:
            metadata = {
                name: record.metadata[name]
                for name in tracing.TRACE_FIELDS
                if name in record.metadata
            }
            return msgspec.structs.replace(added or Added(), metadata=metadata)
    return added


def _signed(caller: Caller, events: list[NewEvent]) -> tuple[list[NewEvent], Added | None]:
    """Name the caller as the actor of events that name none; to name another is a right."""
    if caller.subject == ANONYMOUS:
        return events, None
    signed: list[NewEvent] = []
    added = None
    for event in events:
        stream: Any = event.stream  # not checked yet
        trace = isinstance(stream, tuple) and stream[:1] == (TRACE_KIND,)
        kind = "system" if trace else "service_principal"
        if event.actor_type is None and event.actor_id is None:
            added = Added(kind, caller.subject)
            signed.append(msgspec.structs.replace(event, actor_type=kind, actor_id=caller.subject))
            continue
        if event.actor_id != caller.subject and "act_as" not in caller.rights:
            msg = "to name another actor than the token's own needs the right act_as"
            raise Forbidden(msg, details={"right": "act_as"})
        signed.append(event)
    return signed, added


def _confined(caller: Caller, condition: Any) -> Any:
    """Let a condition ask for nothing that the caller may not read."""
    if not isinstance(condition, ExpectedContext):
        return condition
    caller.demand("read")
    return ExpectedContext(caller.scoped(condition.query), condition.version)


def _command(request: Request, given: WireCommand | None, raw: bytes, part: str) -> Command | None:
    """Return the command of an append: by the header Idempotency-Key, or as the body names it."""
    key = request.header(b"idempotency-key")
    if given is not None:
        if key is not None:
            msg = "give an Idempotency-Key or a command, not both"
            raise InvalidArgument(msg, details={"argument": "command"})
        if given.actor != request.caller.subject and "act_as" not in request.caller.rights:
            msg = "to name another actor than the token's own needs the right act_as"
            raise Forbidden(msg, details={"right": "act_as"})
        return Command(**msgspec.structs.asdict(given))
    if key is None:
        return None
    return Command(
        actor=request.caller.subject,
        endpoint=request.endpoint,
        key=key + part,
        request=parsed(raw),
    )


def _timeout(service: Service, request: Request) -> float:
    """Return how long an append may take: as long as its caller waits, within the bound."""
    told = request.headers.get(b"seriatim-timeout-s")
    bound = service.serving.request_timeout_s
    if told is None:
        return bound
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        msg = "the header seriatim-timeout-s is a number of seconds above 0"
        raise InvalidArgument(msg, details={"argument": "seriatim-timeout-s"})
    return min(seconds, bound)


def _answer(request: Request, result: AppendResult, added: Added | None) -> Response:
    headers = (REPLAYED,) if result.replayed else ()
    # The twin of a command gets the very answer that the first one got.
    whole = result.replayed and b"idempotency-key" not in request.headers
    return Response(201, _encode(receipt(result, added, whole=whole)), headers=headers)


def receipt(result: AppendResult, added: Added | None, *, whole: bool) -> Receipt:
    """Return what an append was stored as; whole, with its records."""
    records = result.records
    return Receipt(
        result.first_position,
        result.last_position,
        records[0].recorded_at,
        [Placed(one.position, one.event_id, one.stream_seq) for one in records],
        result.response,
        list(result.id_mismatch),
        added,
        all_outgoing(records) if whole else None,
    )

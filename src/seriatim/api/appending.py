"""Appends over HTTP: one, several, and those that hold only while a context is as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec

from seriatim.api.bodies import Asked, Parser, asked, asked_exactly, parsed
from seriatim.api.http import Request, Response
from seriatim.api.permitting import check_shown, command_of, confined, signed, veiled
from seriatim.api.repeating import REPLAYED, once
from seriatim.api.service import Service
from seriatim.api.threads import LARGE_BYTES
from seriatim.core.errors import IdempotencyConflict, InvalidArgument, SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.limits import Limits
from seriatim.log.appending import Draft
from seriatim.telemetry import tracing
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
    WireCondition,
)

_LEAST_S = 0.001
_PARSED_RATIO = 4  # of the memory of a parsed body to that of its text, about
_encode = msgspec.json.Encoder().encode
_one = Parser(AppendBody)
_several = Parser(AppendsBody)
_conditional = Parser(AppendIfBody)


async def append(service: Service, request: Request, raw: bytes) -> Response:
    """Append a batch of events, all or nothing."""
    return await _done(service, request, raw, _whole)


def _whole(raw: bytes, limits: Limits) -> Asked:
    body = _one.quick(raw)
    return asked_exactly(parsed(raw), limits) if body is None else asked(body, limits)


async def append_if(service: Service, request: Request, raw: bytes) -> Response:
    """Append a batch of facts, if the context has the version that the caller has seen."""
    return await _done(service, request, raw, _on_condition)


def _on_condition(raw: bytes, limits: Limits) -> Asked:
    body = _conditional.quick(raw)
    if body is None:
        return asked_exactly(_as_append(parsed(raw)), limits)
    condition = WireCondition(query=body.query, version=body.expected_version, after=body.after)
    key = body.idempotency_key
    return asked(AppendBody(body.events, [condition], key, profile="facts"), limits)


def _as_append(value: Any) -> dict[str, Any]:
    """Return a conditional append of facts in the shape of every append."""
    if not isinstance(value, dict) or "query" not in value:
        msg = "the body is an object with events, query and expected_version"
        raise InvalidArgument(msg, details={"argument": "query"})
    for name in value:
        if name not in AppendIfBody.__struct_fields__:
            msg = f"the body has no field {name!r:.80} here"
            raise InvalidArgument(msg, details={"argument": name[:80]})
    names = {"query": "query", "expected_version": "version", "after": "after"}
    condition = {names[name]: value[name] for name in names if name in value}
    rest = {name: value[name] for name in ("events", "idempotency_key") if name in value}
    return {**rest, "conditions": [condition], "profile": "facts"}


async def _done(
    service: Service, request: Request, raw: bytes, read: Callable[[bytes, Limits], Asked]
) -> Response:
    async with _room(service, request, raw):
        return await _done_in_room(service, request, raw, read)


def _room(service: Service, request: Request, raw: bytes) -> AbstractAsyncContextManager[None]:
    """Return what holds memory for an append while it is parsed, checked and stored."""
    if len(raw) <= LARGE_BYTES:
        return nullcontext()
    seconds = _timeout(service, request)
    return service.memory.work(request.tenant_id, _PARSED_RATIO * len(raw), seconds)


async def _done_in_room(
    service: Service, request: Request, raw: bytes, read: Callable[[bytes, Limits], Asked]
) -> Response:
    wanted = await service.at_its_size(
        request.tenant_id, len(raw), partial(read, raw, service.limits)
    )
    result, added = await _append(service, request, wanted, raw)
    # The twin of a command gets the very answer that the first one got.
    whole = result.replayed and b"idempotency-key" not in request.headers
    written = partial(_written, result, added, whole=whole)
    return await service.at_its_size(request.tenant_id, len(raw), written)


# -- several


class _Part(msgspec.Struct, frozen=True):
    """One of several appends: what it asks for or why not, and its text if it has a key."""

    wanted: Asked | SeriatimError
    text: bytes = b""


async def append_several(service: Service, request: Request, raw: bytes) -> Response:
    """Do several appends that share a request and nothing else; each gets its own answer."""
    if b"idempotency-key" not in request.headers:
        return await _several_done(service, request, raw)
    # Each has its own command record; that they are the same ones is known by all of them.
    return await once(service, request, raw, partial(_several_done, service, request, raw))


async def _several_done(service: Service, request: Request, raw: bytes) -> Response:
    async with _room(service, request, raw):
        return await _several_in_room(service, request, raw)


async def _several_in_room(service: Service, request: Request, raw: bytes) -> Response:
    keyed = b"idempotency-key" in request.headers
    read = partial(_parts, raw, service.limits, keyed=keyed)
    parts = await service.at_its_size(request.tenant_id, len(raw), read)
    outcomes = await asyncio.gather(
        *(_outcome(service, request, part, index) for index, part in enumerate(parts))
    )
    again = any(one.problem is not None and one.problem.retryable for one in outcomes)
    stored = any(one.receipt is not None for one in outcomes)
    return Response(200, _encode(Outcomes(list(outcomes))), lasting=stored and not again)


def _parts(raw: bytes, limits: Limits, *, keyed: bool) -> list[_Part]:
    body = _several.quick(raw)
    given: list[Any]
    if body is not None:
        given = body.appends
        events = sum(len(one.events) for one in body.appends)
    else:
        value = parsed(raw)
        if not isinstance(value, dict) or not isinstance(value.get("appends"), list):
            msg = "the body is an object with a list of appends"
            raise InvalidArgument(msg, details={"argument": "appends"})
        given = value["appends"]
        lists = [one.get("events") for one in given if isinstance(one, dict)]
        events = sum(len(one) for one in lists if isinstance(one, list))
    limits.check("append_events", max(events, len(given)))
    return [_part(one, limits, keyed=keyed) for one in given]


def _part(given: Any, limits: Limits, *, keyed: bool) -> _Part:
    try:
        whole = isinstance(given, AppendBody)
        wanted = asked(given, limits) if whole else asked_exactly(given, limits)
    except SeriatimError as error:
        return _Part(error)
    return _Part(wanted, _encode(given) if keyed else b"")


async def _outcome(service: Service, request: Request, part: _Part, index: int) -> Outcome:
    try:
        if isinstance(part.wanted, SeriatimError):
            raise part.wanted
        result, added = await _append(service, request, part.wanted, part.text, f"/{index}")
    except SeriatimError as error:
        return Outcome(problem=service.problem(error, request.request_id))
    # The twin of a command gets the very answer that the first one got.
    whole = result.replayed and b"idempotency-key" not in request.headers
    return Outcome(receipt(result, added, whole=whole), replayed=whole)


# -- each


async def _append(
    service: Service, request: Request, wanted: Asked, raw: bytes, part: str = ""
) -> tuple[AppendResult, Added | None]:
    """Append what a caller may append, in its tenant's turn."""
    caller, tenant_id = request.caller, request.tenant_id
    now = asyncio.get_running_loop().time
    service.meter.spend(tenant_id, len(wanted.events), 0, now(), own=request.paid)
    caller.demand_types(event.event_type for event in wanted.events)
    events, added = signed(caller, wanted.events)
    draft = Draft(
        tenant_id=tenant_id,
        door=wanted.door,
        events=events,
        condition=[confined(caller, one) for one in wanted.conditions] or None,
        idempotency_key=wanted.idempotency_key,
        command=command_of(request, wanted.command, raw, part),
        on_id_mismatch=wanted.on_id_mismatch,
    )
    seconds, began = _timeout(service, request), now()
    try:
        async with service.turns.turn(tenant_id, seconds):
            left = max(_LEAST_S, seconds - (now() - began))
            result = await service.aio(tenant_id).append_draft(draft, timeout=left)
    except IdempotencyConflict as error:
        raise veiled(caller, error) from None
    if result.id_mismatch or (result.replayed and wanted.command is not None):
        check_shown(caller, events, result)
    return result, _traced(added, events, result)


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


def _written(result: AppendResult, added: Added | None, *, whole: bool) -> Response:
    headers = (REPLAYED,) if result.replayed else ()
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

"""Appends over HTTP: one, several, and those that hold only while a context is as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec

from seriatim.api.authorization import (
    check_readable,
    confine_condition,
    make_command,
    redact_conflict,
    set_actor,
)
from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.idempotency import REPLAYED_HEADER, run_once
from seriatim.api.request_bodies import (
    BodyParser,
    ParsedAppend,
    convert_append,
    convert_append_strictly,
    parse_json_body,
)
from seriatim.api.service import Service
from seriatim.api.thread_pools import LARGE_BODY_BYTES
from seriatim.core.errors import IdempotencyConflict, InvalidArgument, SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.limits import Limits
from seriatim.log.appender import Draft
from seriatim.telemetry import tracing
from seriatim.wire.messages import (
    AddedFields,
    AppendBody,
    AppendIfBody,
    AppendOutcome,
    AppendOutcomes,
    AppendsBody,
    EventPosition,
    Receipt,
    WireCondition,
)
from seriatim.wire.records import to_wire_records

_LEAST_S = 0.001
_PARSED_RATIO = 4  # of the memory of a parsed body to that of its text, about
_encode = msgspec.json.Encoder().encode
_one = BodyParser(AppendBody)
_several = BodyParser(AppendsBody)
_conditional = BodyParser(AppendIfBody)


async def append(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Append a batch of events, all or nothing."""
    return await _done(service, request, raw, _whole)


def _whole(raw: bytes, limits: Limits) -> ParsedAppend:
    body = _one.parse_fast(raw)
    return (
        convert_append_strictly(parse_json_body(raw), limits)
        if body is None
        else convert_append(body, limits)
    )


async def append_if(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Append a batch of facts, if the context has the version that the caller has seen."""
    return await _done(service, request, raw, _on_condition)


def _on_condition(raw: bytes, limits: Limits) -> ParsedAppend:
    body = _conditional.parse_fast(raw)
    if body is None:
        return convert_append_strictly(_as_append(parse_json_body(raw)), limits)
    condition = WireCondition(query=body.query, version=body.expected_version, after=body.after)
    key = body.idempotency_key
    return convert_append(AppendBody(body.events, [condition], key, profile="facts"), limits)


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
    service: Service,
    request: HttpRequest,
    raw: bytes,
    read: Callable[[bytes, Limits], ParsedAppend],
) -> HttpResponse:
    async with _room(service, request, raw):
        return await _done_in_room(service, request, raw, read)


def _room(service: Service, request: HttpRequest, raw: bytes) -> AbstractAsyncContextManager[None]:
    """Return what holds memory for an append while it is parsed, checked and stored."""
    if len(raw) <= LARGE_BODY_BYTES:
        return nullcontext()
    seconds = _timeout(service, request)
    return service.memory.reserve_work(request.tenant_id, _PARSED_RATIO * len(raw), seconds)


async def _done_in_room(
    service: Service,
    request: HttpRequest,
    raw: bytes,
    read: Callable[[bytes, Limits], ParsedAppend],
) -> HttpResponse:
    wanted = await service.run_sized(
        request.tenant_id, len(raw), partial(read, raw, service.limits)
    )
    result, added = await _append(service, request, wanted, raw)
    # The twin of a command gets the very answer that the first one got.
    whole = result.replayed and b"idempotency-key" not in request.headers
    written = partial(_written, result, added, whole=whole)
    return await service.run_sized(request.tenant_id, len(raw), written)


# -- several


class _Part(msgspec.Struct, frozen=True):
    """One of several appends: what it asks for or why not, and its text if it has a key."""

    wanted: ParsedAppend | SeriatimError
    text: bytes = b""


async def append_several(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Do several appends that share a request and nothing else; each gets its own answer."""
    if b"idempotency-key" not in request.headers:
        return await _several_done(service, request, raw)
    # Each has its own command record; that they are the same ones is known by all of them.
    return await run_once(service, request, raw, partial(_several_done, service, request, raw))


async def _several_done(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    async with _room(service, request, raw):
        return await _several_in_room(service, request, raw)


async def _several_in_room(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    keyed = b"idempotency-key" in request.headers
    read = partial(_parts, raw, service.limits, keyed=keyed)
    parts = await service.run_sized(request.tenant_id, len(raw), read)
    outcomes = await asyncio.gather(
        *(_outcome(service, request, part, index) for index, part in enumerate(parts))
    )
    again = any(one.problem is not None and one.problem.retryable for one in outcomes)
    stored = any(one.receipt is not None for one in outcomes)
    return HttpResponse(200, _encode(AppendOutcomes(list(outcomes))), storable=stored and not again)


def _parts(raw: bytes, limits: Limits, *, keyed: bool) -> list[_Part]:
    body = _several.parse_fast(raw)
    given: list[Any]
    if body is not None:
        given = body.appends
        events = sum(len(one.events) for one in body.appends)
    else:
        value = parse_json_body(raw)
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
        wanted = convert_append(given, limits) if whole else convert_append_strictly(given, limits)
    except SeriatimError as error:
        return _Part(error)
    return _Part(wanted, _encode(given) if keyed else b"")


async def _outcome(
    service: Service, request: HttpRequest, part: _Part, index: int
) -> AppendOutcome:
    try:
        if isinstance(part.wanted, SeriatimError):
            raise part.wanted
        result, added = await _append(service, request, part.wanted, part.text, f"/{index}")
    except SeriatimError as error:
        return AppendOutcome(problem=service.problem(error, request.request_id))
    # The twin of a command gets the very answer that the first one got.
    whole = result.replayed and b"idempotency-key" not in request.headers
    return AppendOutcome(make_receipt(result, added, whole=whole), replayed=whole)


# -- each


async def _append(
    service: Service, request: HttpRequest, wanted: ParsedAppend, raw: bytes, part: str = ""
) -> tuple[AppendResult, AddedFields | None]:
    """Append what a caller may append, in its tenant's turn."""
    caller, tenant_id = request.caller, request.tenant_id
    now = asyncio.get_running_loop().time
    service.meter.charge(
        tenant_id, len(wanted.events), 0, now(), charged_bytes=request.charged_bytes
    )
    caller.require_types(event.event_type for event in wanted.events)
    events, added = set_actor(caller, wanted.events)
    draft = Draft(
        tenant_id=tenant_id,
        profile_rules=wanted.profile_rules,
        events=events,
        condition=[confine_condition(caller, one) for one in wanted.conditions] or None,
        idempotency_key=wanted.idempotency_key,
        command=make_command(request, wanted.command, raw, part),
        on_id_mismatch=wanted.on_id_mismatch,
    )
    seconds, began = _timeout(service, request), now()
    try:
        async with service.append_limiter.slot(tenant_id, seconds):
            left = max(_LEAST_S, seconds - (now() - began))
            result = await service.aio(tenant_id).append_draft(draft, timeout=left)
    except IdempotencyConflict as error:
        raise redact_conflict(caller, error) from None
    if result.id_mismatch or (result.replayed and wanted.command is not None):
        check_readable(caller, events, result)
    return result, _traced(added, events, result)


def _traced(
    added: AddedFields | None, events: list[NewEvent], result: AppendResult
) -> AddedFields | None:
    """Tell the trace that the log wrote into events which carried none."""
    if not result.replayed and not tracing.is_active():
        return added
    # The twin of a command may have come with other events than the first.
    for event, record in zip(events, result.records, strict=False):
        if "traceparent" in record.metadata and "traceparent" not in event.metadata:
            metadata = {
                name: record.metadata[name]
                for name in tracing.TRACE_FIELDS
                if name in record.metadata
            }
            return msgspec.structs.replace(added or AddedFields(), metadata=metadata)
    return added


def _timeout(service: Service, request: HttpRequest) -> float:
    """Return how long an append may take: as long as its caller waits, within the bound."""
    told = request.headers.get(b"seriatim-timeout-s")
    bound = service.settings.request_timeout_s
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


def _written(result: AppendResult, added: AddedFields | None, *, whole: bool) -> HttpResponse:
    headers = (REPLAYED_HEADER,) if result.replayed else ()
    return HttpResponse(201, _encode(make_receipt(result, added, whole=whole)), headers=headers)


def make_receipt(result: AppendResult, added: AddedFields | None, *, whole: bool) -> Receipt:
    """Return what an append was stored as; whole, with its records."""
    records = result.records
    return Receipt(
        result.first_position,
        result.last_position,
        records[0].recorded_at,
        [EventPosition(one.position, one.event_id, one.stream_seq) for one in records],
        result.response,
        list(result.id_mismatch),
        added,
        to_wire_records(records) if whole else None,
    )

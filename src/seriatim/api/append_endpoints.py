"""Endpoints for appends: one, several in one request, and conditional appends of facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from seriatim.api.access_control import (
    check_readable,
    confine_condition,
    make_command,
    redact_conflict,
    set_actor,
)
from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.idempotency import REPLAYED_HEADER, run_once
from seriatim.api.operator_endpoints import NoParams
from seriatim.api.refusals import REFUSAL_BYTES
from seriatim.api.request_bodies import (
    BodyParser,
    ParsedAppend,
    convert_append,
    convert_append_if,
    convert_append_strictly,
    parse_json_body,
)
from seriatim.api.service import Service
from seriatim.api.thread_pools import LARGE_BODY_BYTES
from seriatim.core.errors import IdempotencyConflict, InvalidArgument, SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.explanation import Explanation, explain_refusal
from seriatim.core.limits import Limits
from seriatim.log.appender import Draft
from seriatim.log.explanation import explain_draft
from seriatim.telemetry import tracer
from seriatim.wire.messages import (
    AddedFields,
    AppendBody,
    AppendIfBody,
    AppendOutcome,
    AppendOutcomes,
    AppendsBody,
    EventPosition,
    ExplanationResponse,
    Receipt,
    RefusalsResponse,
)
from seriatim.wire.records import to_wire_records

_TIMEOUT_MIN_S = 0.001
_APPEND_ENDPOINT = "POST /v1/events"
_PARSED_RATIO = 4  # memory of a parsed body relative to its text, estimated
_encode = msgspec.json.Encoder().encode
_ParsedBody = tuple[ParsedAppend, Any]  # and the body as JSON
_append_parser = BodyParser(AppendBody)
_appends_parser = BodyParser(AppendsBody)
_append_if_parser = BodyParser(AppendIfBody)


async def append(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Append a batch of events atomically."""
    return await _append_one(service, request, raw, _parse_append, dict)


def _parse_append(raw: bytes, limits: Limits) -> _ParsedBody:
    value = parse_json_body(raw)
    body = _match(_append_parser, value, limits)
    if body is None:
        return convert_append_strictly(value, limits), value
    return convert_append(body, limits), value


def _match(parser: BodyParser, value: Any, limits: Limits) -> Any:
    """Convert a body to its type; return None if it does not match or has too many events.

    The number is checked first, since converting a million small events takes seconds.
    """
    events = value.get("events") if isinstance(value, dict) else None
    if isinstance(events, list) and len(events) > limits.append_events:
        return None
    return parser.match(value)


async def append_if(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Append a batch of facts if their context is unchanged since the caller read it."""
    return await _append_one(service, request, raw, _parse_append_if, _to_append_body)


def _parse_append_if(raw: bytes, limits: Limits) -> _ParsedBody:
    value = parse_json_body(raw)
    body = _match(_append_if_parser, value, limits)
    if body is None:
        return convert_append_strictly(_to_append_body(value), limits), value
    return convert_append_if(body, limits), value


def _to_append_body(value: Any) -> dict[str, Any]:
    """Convert a conditional append of facts to the body of a general append."""
    if not isinstance(value, dict) or "query" not in value:
        msg = "the body must be an object with events, query and expected_version"
        raise InvalidArgument(msg, details={"argument": "query"})
    for name in value:
        if name not in AppendIfBody.__struct_fields__:
            msg = f"the body has an unknown field {name!r:.80}"
            raise InvalidArgument(msg, details={"argument": name[:80]})
    names = {"query": "query", "expected_version": "version", "after": "after"}
    condition = {names[name]: value[name] for name in names if name in value}
    rest = {name: value[name] for name in ("events", "idempotency_key") if name in value}
    return {**rest, "conditions": [condition], "profile": "facts"}


async def _append_one(
    service: Service,
    request: HttpRequest,
    raw: bytes,
    parse: Callable[[bytes, Limits], _ParsedBody],
    convert: Callable[[Any], dict[str, Any]],
) -> HttpResponse:
    """Make one append, and keep it for `list_refusals` if it is refused.

    Args:
        service: The service.
        request: The request.
        raw: The body.
        parse: Parses the body.
        convert: Converts the parsed body to that of a general append.
    """
    try:
        async with _reserve_memory(service, request, raw):
            return await _parse_and_append(service, request, raw, parse)
    except SeriatimError as error:
        value = None
        # Parsed again, which only a refused append costs, and only a small one.
        if len(raw) <= REFUSAL_BYTES:
            with suppress(SeriatimError, TypeError, ValueError):
                value = convert(parse_json_body(raw))
        service.refusals.add(request.tenant_id, request.caller.subject, error, value)
        raise


def _reserve_memory(
    service: Service, request: HttpRequest, raw: bytes
) -> AbstractAsyncContextManager[None]:
    """Reserve memory for a large append while it is parsed, checked and stored."""
    if len(raw) <= LARGE_BODY_BYTES:
        return nullcontext()
    seconds = _find_timeout(service, request)
    return service.memory.reserve_work(request.tenant_id, _PARSED_RATIO * len(raw), seconds)


async def _parse_and_append(
    service: Service,
    request: HttpRequest,
    raw: bytes,
    parse: Callable[[bytes, Limits], _ParsedBody],
) -> HttpResponse:
    """Parse a body, append its events, and encode the receipt; large ones in a thread."""
    parsed, value = await service.run_sized(
        request.tenant_id, len(raw), partial(parse, raw, service.limits)
    )
    result, added = await _append(service, request, parsed, value)
    # Duplicates of a command receive exactly the response of the first.
    with_records = result.replayed and b"idempotency-key" not in request.headers
    respond = partial(_make_receipt_response, result, added, with_records=with_records)
    return await service.run_sized(request.tenant_id, len(raw), respond)


async def explain(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Report whether an append would be accepted, replayed or refused, and why; store nothing."""
    async with _reserve_memory(service, request, raw):
        response = await _explain(service, request, raw)
        return HttpResponse(
            200, await service.run_sized(request.tenant_id, len(raw), partial(_encode, response))
        )


async def _explain(service: Service, request: HttpRequest, raw: bytes) -> ExplanationResponse:
    tenant_id = request.tenant_id
    try:
        parsed, value = await service.run_sized(
            tenant_id, len(raw), partial(_parse_append, raw, service.limits)
        )
    except SeriatimError as error:
        if "index" not in error.details:  # the request itself is malformed
            raise
        return _make_explanation(service, request, explain_refusal(error))
    draft, events, _ = _make_draft(service, request, parsed, value, endpoint=_APPEND_ENDPOINT)
    log = service.view(tenant_id)
    result = await service.run_for_tenant(tenant_id, explain_draft, log, draft)
    if result.outcome == "replayed" and (result.id_mismatch or parsed.command is not None):
        check_readable(request.caller, events, result.events)
    return _make_explanation(service, request, result)


def _make_explanation(
    service: Service, request: HttpRequest, result: Explanation
) -> ExplanationResponse:
    """Return an explanation without the events that the caller may not read."""
    caller, error = request.caller, result.error
    if isinstance(error, IdempotencyConflict):
        error = redact_conflict(caller, error)
    readable = [
        record
        for record in result.events
        if "read" in caller.rights and caller.can_read(record.event_type)
    ]
    return ExplanationResponse(
        result.outcome,
        list(result.steps),
        None if error is None else service.problem(error, request.request_id),
        result.first_position,
        list(result.stream_seqs),
        result.response,
        list(result.id_mismatch),
        to_wire_records(readable),
    )


# -- several appends in one request


class _Part(msgspec.Struct, frozen=True):
    """One of several appends: parsed, or its error; with its JSON if the request has a key."""

    parsed: ParsedAppend | SeriatimError
    value: Any = None
    given: Any = None  # for the list of refused appends; None if the request is large


async def append_several(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Make several independent appends in one request; each has its own outcome."""
    if b"idempotency-key" not in request.headers:
        return await _append_all(service, request, raw)
    # Each append has a command record of its own; this one covers the request as a whole.
    return await run_once(service, request, raw, partial(_append_all, service, request, raw))


async def _append_all(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    async with _reserve_memory(service, request, raw):
        return await _parse_and_append_several(service, request, raw)


async def _parse_and_append_several(
    service: Service, request: HttpRequest, raw: bytes
) -> HttpResponse:
    with_values = b"idempotency-key" in request.headers
    parse = partial(_parse_parts, raw, service.limits, with_values=with_values)
    parts = await service.run_sized(request.tenant_id, len(raw), parse)
    outcomes = await asyncio.gather(
        *(_append_part(service, request, part, index) for index, part in enumerate(parts))
    )
    retryable = any(
        outcome.problem is not None and outcome.problem.retryable for outcome in outcomes
    )
    stored = any(outcome.receipt is not None for outcome in outcomes)
    return HttpResponse(
        200, _encode(AppendOutcomes(list(outcomes))), storable=stored and not retryable
    )


def _parse_parts(raw: bytes, limits: Limits, *, with_values: bool) -> list[_Part]:
    """Parse several appends, each to its own result or error.

    Raises:
        InvalidArgument: The body is not an object with a list of appends.
        LimitExceeded: It has too many appends, or too many events in all.
    """
    value = parse_json_body(raw)
    if not isinstance(value, dict) or not isinstance(value.get("appends"), list):
        msg = "the body must be an object with a list of appends"
        raise InvalidArgument(msg, details={"argument": "appends"})
    appends: list[Any] = value["appends"]
    event_lists = [body.get("events") for body in appends if isinstance(body, dict)]
    event_count = sum(len(events) for events in event_lists if isinstance(events, list))
    limits.check("append_events", max(event_count, len(appends)))
    typed = _appends_parser.match(value)
    if typed is not None:
        appends = typed.appends
    parts = [_parse_part(body, limits, with_value=with_values) for body in appends]
    if len(raw) > LARGE_BODY_BYTES:
        return parts
    return [replace(part, given=body) for part, body in zip(parts, appends, strict=True)]


def _parse_part(body: Any, limits: Limits, *, with_value: bool) -> _Part:
    try:
        convert = convert_append if isinstance(body, AppendBody) else convert_append_strictly
        parsed = convert(body, limits)
    except SeriatimError as error:
        return _Part(error)
    return _Part(parsed, msgspec.to_builtins(body) if with_value else None)


async def _append_part(
    service: Service, request: HttpRequest, part: _Part, index: int
) -> AppendOutcome:
    try:
        if isinstance(part.parsed, SeriatimError):
            raise part.parsed
        result, added = await _append(service, request, part.parsed, part.value, f"/{index}")
    except SeriatimError as error:
        _keep_refused_part(service, request, part, error)
        return AppendOutcome(problem=service.problem(error, request.request_id))
    # Duplicates of a command receive exactly the response of the first.
    with_records = result.replayed and b"idempotency-key" not in request.headers
    return AppendOutcome(
        make_receipt(result, added, with_records=with_records), replayed=with_records
    )


def _keep_refused_part(
    service: Service, request: HttpRequest, part: _Part, error: SeriatimError
) -> None:
    """Keep one of several appends that was refused."""
    value = None if part.given is None else msgspec.to_builtins(part.given)
    service.refusals.add(request.tenant_id, request.caller.subject, error, value)


async def list_refusals(
    service: Service, request: HttpRequest, params: NoParams
) -> RefusalsResponse:
    """List the last appends of the tenant that the responding process refused.

    A token without the right `read` sees only those of its own subject.
    """
    del params
    refused = service.refusals.list_for(request.caller, request.tenant_id)
    return RefusalsResponse(refused, service.settings.processes)


# -- a single append


async def _append(
    service: Service, request: HttpRequest, parsed: ParsedAppend, value: Any, part: str = ""
) -> tuple[AppendResult, AddedFields | None]:
    """Make one append with the rights of the caller, once its tenant has a free slot.

    Args:
        service: The service.
        request: The request.
        parsed: The append.
        value: The append as JSON, which duplicates of a command must repeat.
        part: Distinguishes several appends in one request.

    Returns:
        The result, and the fields that the service added to the events.
    """
    caller, tenant_id = request.caller, request.tenant_id
    now = asyncio.get_running_loop().time
    draft, events, added = _make_draft(service, request, parsed, value, part)
    seconds, started = _find_timeout(service, request), now()
    try:
        async with service.append_limiter.slot(tenant_id, seconds):
            # The wait for a slot is part of the append's timeout.
            remaining_s = max(_TIMEOUT_MIN_S, seconds - (now() - started))
            result = await service.aio(tenant_id).append_draft(draft, timeout=remaining_s)
    except IdempotencyConflict as error:
        raise redact_conflict(caller, error) from None
    # These replays may return other events than the caller has sent.
    if result.id_mismatch or (result.replayed and parsed.command is not None):
        check_readable(caller, events, result.records)
    return result, _add_trace_fields(added, events, result)


def _make_draft(
    service: Service,
    request: HttpRequest,
    parsed: ParsedAppend,
    value: Any,
    part: str = "",
    *,
    endpoint: str | None = None,
) -> tuple[Draft, list[NewEvent], AddedFields | None]:
    """Charge an append and check the rights of its caller.

    Returns:
        The draft, its events, and the fields that were added to them.
    """
    caller, tenant_id = request.caller, request.tenant_id
    now = asyncio.get_running_loop().time()
    # Quotas come first: a tenant over its quota must not cause further work.
    service.meter.charge(tenant_id, len(parsed.events), 0, now, charged_bytes=request.charged_bytes)
    caller.require_types(event.event_type for event in parsed.events)
    events, added = set_actor(caller, parsed.events)
    draft = Draft(
        tenant_id=tenant_id,
        profile_rules=parsed.profile_rules,
        events=events,
        condition=[confine_condition(caller, condition) for condition in parsed.conditions] or None,
        idempotency_key=parsed.idempotency_key,
        command=make_command(request, parsed.command, value, part, endpoint),
        on_id_mismatch=parsed.on_id_mismatch,
    )
    return draft, events, added


def _add_trace_fields(
    added: AddedFields | None, events: list[NewEvent], result: AppendResult
) -> AddedFields | None:
    """Report the trace context that the log wrote into events without one."""
    if not result.replayed and not tracer.is_active():
        return added
    # A duplicate of a command may carry other events than the first request.
    for event, record in zip(events, result.records, strict=False):
        if "traceparent" in record.metadata and "traceparent" not in event.metadata:
            metadata = {
                name: record.metadata[name]
                for name in tracer.TRACE_FIELDS
                if name in record.metadata
            }
            return msgspec.structs.replace(added or AddedFields(), metadata=metadata)
    return added


def _find_timeout(service: Service, request: HttpRequest) -> float:
    """Return the timeout of an append: what the caller requests, at most the configured one."""
    header = request.headers.get(b"seriatim-timeout-s")
    bound = service.settings.request_timeout_s
    if header is None:
        return bound
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        msg = "the header seriatim-timeout-s must be a number of seconds above 0"
        raise InvalidArgument(msg, details={"argument": "seriatim-timeout-s"})
    return min(seconds, bound)


def _make_receipt_response(
    result: AppendResult, added: AddedFields | None, *, with_records: bool
) -> HttpResponse:
    headers = (REPLAYED_HEADER,) if result.replayed else ()
    return HttpResponse(
        201, _encode(make_receipt(result, added, with_records=with_records)), headers=headers
    )


def make_receipt(result: AppendResult, added: AddedFields | None, *, with_records: bool) -> Receipt:
    """Make the receipt of an append; `with_records` includes the records."""
    records = result.records
    return Receipt(
        result.first_position,
        result.last_position,
        records[0].recorded_at,
        [EventPosition(record.position, record.event_id, record.stream_seq) for record in records],
        result.response,
        list(result.id_mismatch),
        added,
        to_wire_records(records) if with_records else None,
    )

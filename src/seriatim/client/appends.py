"""Encode appends for a service, split groups into requests, and decode the outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from seriatim.core.errors import BackendFailure
from seriatim.core.event import AppendResult, EventRecord
from seriatim.core.request import Condition, ExpectedSeq, Request
from seriatim.store.port import Outcome
from seriatim.wire import shapes
from seriatim.wire.problems import error_of
from seriatim.wire.records import all_incoming, sent

APPENDS = "/v1/appends"
_BODY_BYTES = 12 * 1024 * 1024  # of one request; a larger append is sent alone
_BODY_EVENTS = 10_000
_encode = msgspec.json.Encoder().encode
_decode_outcomes = msgspec.json.Decoder(shapes.Outcomes).decode


def encoded(request: Request) -> bytes:
    """Return the body of an append as JSON."""
    return _encode(_make_body(request))


def _make_body(request: Request) -> shapes.AppendBody:
    command = None
    if request.command is not None:
        given = request.command.command
        command = shapes.WireCommand(
            given.actor, given.endpoint, given.key, given.request, given.response
        )
    return shapes.AppendBody(
        [sent(event) for event in request.events],
        [_to_wire_condition(one) for one in request.conditions],
        None,
        command,
        cast("shapes.Profile", request.door),
        request.on_id_mismatch,
    )


def _to_wire_condition(condition: Condition) -> shapes.WireCondition:
    if isinstance(condition, ExpectedSeq):
        return shapes.WireCondition(stream=condition.stream, seq=condition.seq)
    query = msgspec.Raw(_encode(condition.query.as_dict()))
    return shapes.WireCondition(query=query, version=condition.version, after=condition.after)


class Again(bytes):
    """An encoded append that was sent before.

    `maybe_stored` means that an earlier attempt may have been stored; `wait_s` is the delay that
    the service requested.
    """

    doubt: bool
    wait_s: float


def again(request: Request, *, doubt: bool, wait_s: float = 0.0) -> Request:
    """Return an append that is marked as sent before."""
    encoded_again = Again(request.packed)
    encoded_again.doubt, encoded_again.wait_s = doubt, wait_s
    return msgspec.structs.replace(request, packed=encoded_again)


def together(group: Sequence[Request]) -> dict[str, Any]:
    """Return the body of one request with several appends."""
    return {"appends": [msgspec.Raw(request.packed) for request in group]}


def parts(group: Sequence[Request]) -> Iterator[list[Request]]:
    """Split a group into consecutive parts, each of one tenant and small enough for a request."""
    part: list[Request] = []
    size = events = 0
    for request in group:
        size, events = size + len(request.packed), events + len(request.events)
        other_tenant = part and part[0].tenant_id != request.tenant_id
        if part and (other_tenant or size > _BODY_BYTES or events > _BODY_EVENTS):
            yield part
            part, size, events = [], len(request.packed), len(request.events)
        part.append(request)
    yield part


def answers_of(group: Sequence[Request], raw: bytes) -> list[Outcome]:
    """Decode the outcomes of a group from the body of a response."""
    try:
        found = _decode_outcomes(raw).outcomes
        return [outcome(request, answer) for request, answer in zip(group, found, strict=True)]
    except (msgspec.MsgspecError, ValueError) as error:  # another format, or another number of them
        failure = unknown_shape(error)
        failure.details["ambiguous"] = True
        return [failure] * len(group)


def unknown_shape(error: Exception) -> BackendFailure:
    """Return the error for a response in an unknown format."""
    msg = (
        f"the service responded in a format that this version does not know ({error}): use the "
        "same version of client and service"
    )
    return BackendFailure(msg, retryable=False)


def outcome(request: Request, answer: shapes.Outcome) -> Outcome:
    """Return the receipt or error of one append."""
    if answer.problem is not None:
        return error_of(answer.problem)
    receipt = answer.receipt
    if receipt is None:
        msg = "the service returned neither a receipt nor a problem; the append may be stored"
        return BackendFailure(msg, details={"ambiguous": True})
    if receipt.records is not None:
        return AppendResult.replay(
            tuple(all_incoming(receipt.records)), receipt.response, tuple(receipt.id_mismatch)
        )
    return AppendResult(
        receipt.first_position,
        receipt.last_position,
        lambda: _make_records(request, receipt),
        replayed=answer.replayed,
        response=receipt.response,
        id_mismatch=tuple(receipt.id_mismatch),
    )


def _make_records(request: Request, receipt: shapes.Receipt) -> tuple[EventRecord, ...]:
    """Return the records of an append, from the sent events and the receipt.

    The service sends positions and times back, not the events themselves.
    """
    added = receipt.added or shapes.Added()
    records = []
    for event, place in zip(request.events, receipt.events, strict=True):
        record = event.record(place.position, receipt.first_position, place.stream_seq, 0)
        changes: dict[str, Any] = {
            "recorded_at": receipt.recorded_at,
            "occurred_at": event.occurred_at or receipt.recorded_at,
        }
        if event.actor_type is None and event.actor_id is None:
            changes |= {"actor_type": added.actor_type, "actor_id": added.actor_id}
        if added.metadata:
            changes["metadata"] = {**added.metadata, **event.metadata}
        records.append(msgspec.structs.replace(record, **changes))
    return tuple(records)

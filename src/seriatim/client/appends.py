"""Appends on their way to a service and back: bodies, the parts that share one, and receipts."""

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
_BODY_BYTES = 12 * 1024 * 1024  # of one request: what is larger goes alone
_BODY_EVENTS = 10_000
_encode = msgspec.json.Encoder().encode
_outcomes = msgspec.json.Decoder(shapes.Outcomes).decode


def encoded(request: Request) -> bytes:
    """Return an append as it travels."""
    return _encode(_body(request))


def _body(request: Request) -> shapes.AppendBody:
    command = None
    if request.command is not None:
        given = request.command.command
        command = shapes.WireCommand(
            given.actor, given.endpoint, given.key, given.request, given.response
        )
    return shapes.AppendBody(
        [sent(event) for event in request.events],
        [_condition(one) for one in request.conditions],
        None,
        command,
        cast("shapes.Profile", request.door),
        request.on_id_mismatch,
    )


def _condition(condition: Condition) -> shapes.WireCondition:
    if isinstance(condition, ExpectedSeq):
        return shapes.WireCondition(stream=condition.stream, seq=condition.seq)
    query = msgspec.Raw(_encode(condition.query.as_dict()))
    return shapes.WireCondition(query=query, version=condition.version, after=condition.after)


class Again(bytes):
    """An append that was sent before: whether it may be stored, and how long it was to wait."""

    doubt: bool
    wait_s: float


def again(request: Request, *, doubt: bool, wait_s: float = 0.0) -> Request:
    """Return an append that is to be sent once more."""
    packed = Again(request.packed)
    packed.doubt, packed.wait_s = doubt, wait_s
    return msgspec.structs.replace(request, packed=packed)


def together(group: Sequence[Request]) -> dict[str, Any]:
    """Return the body of a request with several appends."""
    return {"appends": [msgspec.Raw(request.packed) for request in group]}


def parts(group: Sequence[Request]) -> Iterator[list[Request]]:
    """Yield neighbours of one tenant that fit a request together."""
    part: list[Request] = []
    size = events = 0
    for request in group:
        size, events = size + len(request.packed), events + len(request.events)
        other = part and part[0].tenant_id != request.tenant_id
        if part and (other or size > _BODY_BYTES or events > _BODY_EVENTS):
            yield part
            part, size, events = [], len(request.packed), len(request.events)
        part.append(request)
    yield part


def answers_of(group: Sequence[Request], raw: bytes) -> list[Outcome]:
    """Return what a service answered to each of a group's appends."""
    try:
        found = _outcomes(raw).outcomes
        return [outcome(request, answer) for request, answer in zip(group, found, strict=True)]
    except (msgspec.MsgspecError, ValueError) as error:  # another shape, or another number of them
        failure = unknown_shape(error)
        failure.details["ambiguous"] = True
        return [failure] * len(group)


def unknown_shape(error: Exception) -> BackendFailure:
    """Make the error for an answer of another version, or of something else."""
    msg = f"the service answered in a shape that this version does not know: {error}"
    return BackendFailure(msg, retryable=False)


def outcome(request: Request, answer: shapes.Outcome) -> Outcome:
    """Return what a service answered to an append."""
    if answer.problem is not None:
        return error_of(answer.problem)
    receipt = answer.receipt
    if receipt is None:
        return BackendFailure("the service answered nothing", details={"ambiguous": True})
    if receipt.records is not None:
        return AppendResult.replay(
            tuple(all_incoming(receipt.records)), receipt.response, tuple(receipt.id_mismatch)
        )
    return AppendResult(
        receipt.first_position,
        receipt.last_position,
        lambda: _records(request, receipt),
        replayed=answer.replayed,
        response=receipt.response,
        id_mismatch=tuple(receipt.id_mismatch),
    )


def _records(request: Request, receipt: shapes.Receipt) -> tuple[EventRecord, ...]:
    """Make the records of an append from what was sent and what the service says of it."""
    added = receipt.added or shapes.Added()
    made = []
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
        made.append(msgspec.structs.replace(record, **changes))
    return tuple(made)

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

_BODY_BYTES = 12 * 1024 * 1024  # of one request: what is larger goes alone
_BODY_EVENTS = 10_000
_encode = msgspec.json.Encoder().encode


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
    return shapes.WireCondition(query=query, version=condition.version)


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

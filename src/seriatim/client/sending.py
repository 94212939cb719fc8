"""Appends on their way to a service: as large as one request takes, sent until they are decided."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from seriatim.client.http import Http, pauses
from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError
from seriatim.core.event import AppendResult, EventRecord
from seriatim.core.request import Condition, ExpectedSeq, Request
from seriatim.store.port import Outcome
from seriatim.wire import shapes
from seriatim.wire.problems import error_of
from seriatim.wire.records import all_incoming, sent

_BODY_BYTES = 12 * 1024 * 1024  # of one request: what is larger goes alone
_encode = msgspec.json.Encoder().encode
_outcomes = msgspec.json.Decoder(shapes.Outcomes).decode


def send(http: Http, group: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
    """Send appends until each has an answer that another try would not change.

    Their ids make that safe: what was stored by an earlier try is answered, not stored again.
    """
    seconds = http.timeout_s if timeout is None else timeout
    until = time.monotonic() + seconds
    outcomes = _tried(http, group, seconds)
    ambiguous: set[int] = set()
    for pause in pauses():
        again = [index for index, one in enumerate(outcomes) if _may_help(one)]
        ambiguous |= {index for index in again if _ambiguous(outcomes[index])}
        wait = max([pause, *(_told_to_wait(outcomes[index]) for index in again)])
        left = until - time.monotonic() - wait
        if not again or left <= 0:
            break
        time.sleep(wait)
        for index, one in zip(again, _tried(http, [group[n] for n in again], left), strict=True):
            outcomes[index] = one
    for index in ambiguous:
        one = outcomes[index]
        if isinstance(one, SeriatimError) and one.retryable:
            one.details["ambiguous"] = True
    return outcomes


def _tried(http: Http, group: Sequence[Request], seconds: float) -> list[Outcome]:
    body = {"appends": [msgspec.Raw(request.packed) for request in group]}
    try:
        raw = http.post("/v1/appends", body, tenant_id=group[0].tenant_id, timeout_s=seconds)
        found = _outcomes(raw).outcomes
    except msgspec.MsgspecError as error:
        return [unknown_shape(error)] * len(group)
    except SeriatimError as error:
        return [error] * len(group)
    return [_outcome(request, answer) for request, answer in zip(group, found, strict=True)]


def packed(request: Request) -> bytes:
    """Write an append as it is sent."""
    command = None
    if request.command is not None:
        given = request.command.command
        command = shapes.WireCommand(
            given.actor, given.endpoint, given.key, given.request, given.response
        )
    body = shapes.AppendBody(
        [sent(event) for event in request.events],
        [_condition(one) for one in request.conditions],
        None,
        command,
        cast("shapes.Profile", request.door),
        request.on_id_mismatch,
    )
    return _encode(body)


def _condition(condition: Condition) -> shapes.WireCondition:
    if isinstance(condition, ExpectedSeq):
        return shapes.WireCondition(stream=condition.stream, seq=condition.seq)
    query = msgspec.Raw(_encode(condition.query.as_dict()))
    return shapes.WireCondition(query=query, version=condition.version)


def parts(group: Sequence[Request]) -> Iterator[list[Request]]:
    """Yield neighbours of one tenant that fit a request together."""
    part: list[Request] = []
    size = 0
    for request in group:
        other = part and part[0].tenant_id != request.tenant_id
        if part and (other or size + len(request.packed) > _BODY_BYTES):
            yield part
            part, size = [], 0
        part.append(request)
        size += len(request.packed)
    yield part


def _outcome(request: Request, answer: shapes.Outcome) -> Outcome:
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


def _may_help(outcome: Outcome) -> bool:
    """Tell whether an append may succeed when it is sent again."""
    return isinstance(outcome, BackendFailure | LimitExceeded) and outcome.retryable


def _ambiguous(outcome: Outcome) -> bool:
    return isinstance(outcome, SeriatimError) and bool(outcome.details.get("ambiguous"))


def _told_to_wait(outcome: Outcome) -> float:
    seconds = outcome.details.get("retry_after_s") if isinstance(outcome, SeriatimError) else 0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


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


def unknown_shape(error: Exception) -> BackendFailure:
    """Make the error for an answer of another version, or of something else."""
    msg = f"the service answered in a shape that this version does not know: {error}"
    return BackendFailure(msg, retryable=False)

"""Encode appends for a service, split groups into requests, and decode the outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from seriatim.core.errors import BackendFailure
from seriatim.core.event import AppendResult, EventRecord
from seriatim.core.request import AppendRequest, Condition, ExpectedSeq
from seriatim.store.port import Outcome
from seriatim.wire import messages
from seriatim.wire.problems import error_from_problem
from seriatim.wire.records import from_wire_records, to_wire_event

APPENDS_PATH = "/v1/appends"
_BODY_BYTES = 12 * 1024 * 1024  # of one request; a larger append is sent alone
_BODY_EVENTS = 10_000
_encode = msgspec.json.Encoder().encode
_decode_outcomes = msgspec.json.Decoder(messages.AppendOutcomes).decode


def encode_append(request: AppendRequest) -> bytes:
    """Return the body of an append as JSON."""
    return _encode(_make_body(request))


def _make_body(request: AppendRequest) -> messages.AppendBody:
    command = None
    if request.command is not None:
        source = request.command.command
        command = messages.WireCommand(
            source.actor, source.endpoint, source.key, source.request, source.response
        )
    return messages.AppendBody(
        [to_wire_event(event) for event in request.events],
        [_to_wire_condition(condition) for condition in request.conditions],
        None,
        command,
        cast("messages.ProfileName", request.profile),
        request.on_id_mismatch,
    )


def _to_wire_condition(condition: Condition) -> messages.WireCondition:
    if isinstance(condition, ExpectedSeq):
        return messages.WireCondition(stream=condition.stream, seq=condition.seq)
    query = condition.query.as_dict()
    return messages.WireCondition(query=query, version=condition.version, after=condition.after)


class RetriedAppend(bytes):
    """An encoded append that was sent before.

    `maybe_stored` means that an earlier attempt may have been stored; `wait_s` is the delay that
    the service requested.
    """

    maybe_stored: bool
    wait_s: float


def mark_retried(
    request: AppendRequest, *, maybe_stored: bool, wait_s: float = 0.0
) -> AppendRequest:
    """Return an append that is marked as sent before."""
    encoded_again = RetriedAppend(request.encoded)
    encoded_again.maybe_stored, encoded_again.wait_s = maybe_stored, wait_s
    return msgspec.structs.replace(request, encoded=encoded_again)


def make_group_body(group: Sequence[AppendRequest]) -> dict[str, Any]:
    """Return the body of one request with several appends."""
    return {"appends": [msgspec.Raw(request.encoded) for request in group]}


def split_group(group: Sequence[AppendRequest]) -> Iterator[list[AppendRequest]]:
    """Split a group into consecutive parts, each of one tenant and small enough for a request."""
    part: list[AppendRequest] = []
    size = events = 0
    for request in group:
        size, events = size + len(request.encoded), events + len(request.events)
        other_tenant = part and part[0].tenant_id != request.tenant_id
        if part and (other_tenant or size > _BODY_BYTES or events > _BODY_EVENTS):
            yield part
            part, size, events = [], len(request.encoded), len(request.events)
        part.append(request)
    if part:
        yield part


def parse_outcomes(group: Sequence[AppendRequest], raw: bytes) -> list[Outcome]:
    """Decode the outcomes of a group from the body of a response."""
    try:
        outcomes = _decode_outcomes(raw).outcomes
        return [
            parse_outcome(request, outcome)
            for request, outcome in zip(group, outcomes, strict=True)
        ]
    except (msgspec.MsgspecError, ValueError) as error:  # another format, or another number of them
        # The service did respond, so it may well have stored the appends.
        failure = unknown_format_error(error)
        failure.details["ambiguous"] = True
        return [failure] * len(group)


def unknown_format_error(error: Exception) -> BackendFailure:
    """Return the error for a response in an unknown format."""
    msg = (
        f"the service responded in a format that this version does not know ({error}): use the "
        "same version of client and service"
    )
    return BackendFailure(msg, retryable=False)


def parse_outcome(request: AppendRequest, outcome: messages.AppendOutcome) -> Outcome:
    """Return the receipt or error of one append."""
    if outcome.problem is not None:
        return error_from_problem(outcome.problem)
    receipt = outcome.receipt
    if receipt is None:
        msg = "the service returned neither a receipt nor a problem; the append may be stored"
        return BackendFailure(msg, details={"ambiguous": True})
    if receipt.records is not None:
        return AppendResult.replay(
            tuple(from_wire_records(receipt.records)), receipt.response, tuple(receipt.id_mismatch)
        )
    return AppendResult(
        receipt.first_position,
        receipt.last_position,
        # Built on first use: a caller that needs only the positions does not pay for records.
        lambda: _make_records(request, receipt),
        replayed=outcome.replayed,
        response=receipt.response,
        id_mismatch=tuple(receipt.id_mismatch),
    )


def _make_records(request: AppendRequest, receipt: messages.Receipt) -> tuple[EventRecord, ...]:
    """Return the records of an append, from the sent events and the receipt.

    The service sends positions and times back, not the events themselves.
    """
    added = receipt.added or messages.AddedFields()
    records = []
    for event, place in zip(request.events, receipt.events, strict=True):
        record = event.to_record(place.position, receipt.first_position, place.stream_seq, 0)
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

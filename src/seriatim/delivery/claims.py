"""Claims: the verdict of the registry on each event that a consumer wants to handle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from seriatim.core.errors import LeaseLost
from seriatim.core.event import LogIdentity
from seriatim.core.handler import Delivery

Verdict = Literal[
    "claimed",
    "duplicate_done",
    "in_progress",
    "stale",
    "blocked",
    "waiting",
    "dead",
    "unknown",
]
Status = Literal[
    "claimed", "failed", "blocked", "dead", "unknown", "done", "stale", "skipped", "passed"
]

# Verdicts after which the event need not be delivered again.
FINAL_VERDICTS: tuple[Verdict, ...] = ("duplicate_done", "stale", "dead", "unknown")

EventKey = tuple[str, str]  # tenant id and event id
StreamKey = tuple[str, str, str]  # tenant id, stream type and stream id: the scope of ordering

# Columns and types of the rows that are passed to statements as `{given}`.
DELIVERY_TYPES = {
    "tenant_id": "text",
    "event_id": "text",
    "event_type": "text",
    "position": "integer",
    "stream_type": "text",
    "stream_id": "text",
    "stream_seq": "integer",
    "first_seq": "integer",
}
CANDIDATE_TYPES = {**DELIVERY_TYPES, "log_id": "text", "epoch": "integer", "selected": "integer"}
ORIGIN_TYPES = {"tenant_id": "text", "log_id": "text", "epoch": "integer"}
# Prefixed, because these statements return columns of the table under the plain names.
CLAIM_TYPES = {"of_tenant": "text", "of_event": "text", "of_token": "integer"}
FAILED_TYPES = {
    **CLAIM_TYPES,
    "new_status": "text",
    "new_error": "text",
    "new_event": "text",
    "pause_us": "integer",
    "unspent": "integer",
}
DEAD_TYPES = {"of_tenant": "text", "of_event": "text", "new_error": "text", "new_event": "text"}
INVALID_TYPES = {**DELIVERY_TYPES, "error": "text", "event": "text"}
DEFERRED_TYPES = {**DELIVERY_TYPES, "event": "text"}
RANGE_TYPES = {
    "tenant_id": "text",
    "stream_type": "text",
    "stream_id": "text",
    "first_seq": "integer",
    "from_seq": "integer",
    "to_seq": "integer",
}


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The result of claiming one event.

    Attributes:
        delivery: The event.
        verdict: Whether it was claimed, or why not.
        token: The fencing token of the claim. A later claim of the event has a higher one.
        attempt: Which attempt this is, from 1.
        settled_seq: If not claimed: the sequence number up to which the stream is settled.
        due_us: If not claimed: when the event can be claimed again, if known.

    """

    delivery: Delivery
    verdict: Verdict
    token: int = 0
    attempt: int = 0
    settled_seq: int | None = None
    due_us: int = 0

    @property
    def claimed(self) -> bool:
        """Whether the caller holds the claim and must perform the effect."""
        return self.verdict == "claimed"

    @property
    def settled(self) -> bool:
        """Whether the event needs no further processing."""
        return self.verdict in ("duplicate_done", "stale")

    @property
    def final(self) -> bool:
        """Whether a consumer may advance past the event: it is settled or left to an operator."""
        return self.verdict in FINAL_VERDICTS


class PassedRange(msgspec.Struct, frozen=True):
    """A range of sequence numbers of a stream that a handler passes over, both ends included."""

    stream_key: StreamKey
    first_seq: int
    from_seq: int
    to_seq: int


def encode_deliveries(deliveries: Sequence[Delivery]) -> list[list[Any]]:
    """Convert deliveries to the columns of `DELIVERY_TYPES`."""
    no_stream: tuple[str | None, str | None] = (None, None)
    streams = [(one.ordered_stream and one.stream) or no_stream for one in deliveries]
    return [
        [one.tenant_id for one in deliveries],
        [one.event_id for one in deliveries],
        [one.event_type for one in deliveries],
        [one.position for one in deliveries],
        [stream_type for stream_type, _ in streams],
        [stream_id for _, stream_id in streams],
        [one.stream_seq if one.ordered_stream else None for one in deliveries],
        [one.first_seq for one in deliveries],
    ]


def encode_candidates(selected: Sequence[Delivery], passing: Sequence[Delivery]) -> list[list[Any]]:
    """Convert deliveries to the columns of `CANDIDATE_TYPES`.

    Args:
        selected: Events that the handler selects.
        passing: Events between them that the handler's filter excludes.

    """
    every = [*selected, *passing]
    return [
        *encode_deliveries(every),
        [one.log and one.log.log_id for one in every],
        [one.log and one.log.epoch for one in every],
        [1] * len(selected) + [0] * len(passing),
    ]


def encode_origins(deliveries: Iterable[Delivery]) -> list[list[Any]]:
    """Convert the distinct pairs of tenant and log to the columns of `ORIGIN_TYPES`."""
    origins = {(one.tenant_id, one.log) for one in deliveries}
    pairs = sorted(origins, key=lambda pair: (pair[0], str(pair[1])))
    return [
        [tenant_id for tenant_id, _ in pairs],
        [log and log.log_id for _, log in pairs],
        [log and log.epoch for _, log in pairs],
    ]


def encode_claims(claims: Iterable[Claim]) -> list[list[Any]]:
    """Convert claims to the columns of `CLAIM_TYPES`."""
    rows = list(claims)
    return [
        [one.delivery.tenant_id for one in rows],
        [one.delivery.event_id for one in rows],
        [one.token for one in rows],
    ]


def check_held(claims: Sequence[Claim], ended: Sequence[tuple[Any, ...]]) -> None:
    """Raise `LeaseLost` for claims that this consumer no longer holds."""
    known = {(row[0], row[1]) for row in ended}
    lost = [claim.delivery.event_id for claim in claims if claim.delivery.key not in known]
    if lost:
        msg = (
            f"the claim of event {lost[0]} is no longer held: its lease expired and another "
            "consumer took it, or it was already ended"
        )
        raise LeaseLost(msg, details={"event_ids": lost[:10], "lost": len(lost)})


def find_first_run(line: StreamKey, passed: Sequence[Delivery]) -> PassedRange:
    """Return the lowest run of consecutive sequence numbers among events of one stream."""
    numbers = sorted({one.stream_seq for one in passed if one.stream_seq is not None})
    end = numbers[0]
    for number in numbers[1:]:
        if number != end + 1:
            break
        end = number
    return PassedRange(line, passed[0].first_seq, numbers[0], end)


def decode_deferred(row: tuple[Any, ...]) -> Delivery:
    """Convert a row of the statements `due` and `lines` to a delivery."""
    tenant_id, event_id, event_type, position, stream_type, stream_id, seq, first, event, *log = row
    return Delivery(
        tenant_id=tenant_id,
        event_id=event_id,
        event_type=event_type,
        position=position,
        stream=None if stream_type is None else (stream_type, stream_id),
        stream_seq=seq,
        first_seq=first,
        event=msgspec.Raw(event.encode()),
        log=None if log[0] is None else LogIdentity(*log),
    )


def find_stuck(claims: Iterable[Claim]) -> dict[StreamKey, int]:
    """Return, by stream, the first sequence number that is neither settled nor claimed here."""
    found: dict[StreamKey, int] = {}
    for claim in claims:
        line, seq = claim.delivery.ordered_stream, claim.delivery.stream_seq
        if line is None or seq is None or claim.claimed or claim.settled:
            continue
        if claim.settled_seq is None or seq > claim.settled_seq:
            found[line] = min(seq, found.get(line, seq))
    return found


def follows_stuck(claim: Claim, stuck: Mapping[StreamKey, int]) -> bool:
    """Return whether a claim follows an event of its stream that is stuck."""
    line, seq = claim.delivery.ordered_stream, claim.delivery.stream_seq
    return line is not None and seq is not None and seq > stuck.get(line, seq)

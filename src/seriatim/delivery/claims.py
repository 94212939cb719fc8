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
RANGE_TYPES = {
    "tenant_id": "text",
    "stream_type": "text",
    "stream_id": "text",
    "first_seq": "integer",
    "from_seq": "integer",
    "to_seq": "integer",
}
CANDIDATE_TYPES = {**DELIVERY_TYPES, "log_id": "text", "epoch": "integer", "selected": "integer"}
ORIGIN_TYPES = {"tenant_id": "text", "log_id": "text", "epoch": "integer"}
# Prefixed, because these statements return columns of the table under the plain names.
CLAIM_TYPES = {"of_tenant": "text", "of_event": "text", "of_token": "integer"}
ENDED_TYPES = {
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
    streams = [
        (delivery.ordered_stream and delivery.stream) or no_stream for delivery in deliveries
    ]
    return [
        [delivery.tenant_id for delivery in deliveries],
        [delivery.event_id for delivery in deliveries],
        [delivery.event_type for delivery in deliveries],
        [delivery.position for delivery in deliveries],
        [stream_type for stream_type, _ in streams],
        [stream_id for _, stream_id in streams],
        [delivery.stream_seq if delivery.ordered_stream else None for delivery in deliveries],
        [delivery.first_seq for delivery in deliveries],
    ]


def encode_candidates(selected: Sequence[Delivery], passing: Sequence[Delivery]) -> list[list[Any]]:
    """Convert deliveries to the columns of `CANDIDATE_TYPES`.

    Args:
        selected: Events that the handler selects.
        passing: Events between them that the handler's filter excludes.

    """
    deliveries = [*selected, *passing]
    return [
        *encode_deliveries(deliveries),
        [delivery.log and delivery.log.log_id for delivery in deliveries],
        [delivery.log and delivery.log.epoch for delivery in deliveries],
        [1] * len(selected) + [0] * len(passing),
    ]


def encode_origins(deliveries: Iterable[Delivery]) -> list[list[Any]]:
    """Convert the distinct pairs of tenant and log to the columns of `ORIGIN_TYPES`."""
    origins = {(delivery.tenant_id, delivery.log) for delivery in deliveries}
    pairs = sorted(origins, key=lambda pair: (pair[0], str(pair[1])))
    return [
        [tenant_id for tenant_id, _ in pairs],
        [log and log.log_id for _, log in pairs],
        [log and log.epoch for _, log in pairs],
    ]


def encode_claims(claims: Sequence[Claim]) -> list[list[Any]]:
    """Convert claims to the columns of `CLAIM_TYPES`."""
    return [
        [claim.delivery.tenant_id for claim in claims],
        [claim.delivery.event_id for claim in claims],
        [claim.token for claim in claims],
    ]


def encode_bodies(deliveries: Sequence[Delivery]) -> list[Any]:
    """Return the events themselves as a column, for entries that are delivered again."""
    return [delivery.event_json for delivery in deliveries]


def encode_dead(deliveries: Sequence[Delivery], error: str) -> list[list[Any]]:
    """Return the columns of `DEAD_TYPES`."""
    return [
        [delivery.tenant_id for delivery in deliveries],
        [delivery.event_id for delivery in deliveries],
        [error] * len(deliveries),
        encode_bodies(deliveries),
    ]


def encode_ended(
    claims: Sequence[Claim], statuses: list[str], error: str, pause_us: int, unspent: int
) -> list[list[Any]]:
    """Return the columns of `ENDED_TYPES`."""
    return [
        *encode_claims(claims),
        statuses,
        [error] * len(claims),
        encode_bodies([claim.delivery for claim in claims]),
        [pause_us] * len(claims),
        [unspent] * len(claims),
    ]


def group_by_stream(deliveries: Iterable[Delivery]) -> dict[StreamKey, list[Delivery]]:
    """Return the deliveries of each stream whose order matters."""
    streams: dict[StreamKey, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.ordered_stream:
            streams.setdefault(delivery.ordered_stream, []).append(delivery)
    return streams


def encode_ranges(ranges: Sequence[PassedRange]) -> list[list[Any]]:
    """Convert passed ranges to the columns of `RANGE_TYPES`."""
    rows = [(*item.stream_key, item.first_seq, item.from_seq, item.to_seq) for item in ranges]
    return [list(column) for column in zip(*rows, strict=True)]


def check_held(claims: Sequence[Claim], returned_rows: Sequence[tuple[Any, ...]]) -> None:
    """Raise `LeaseLost` for claims that this consumer no longer holds."""
    held_keys = {(row[0], row[1]) for row in returned_rows}
    lost = [claim.delivery.event_id for claim in claims if claim.delivery.key not in held_keys]
    if lost:
        msg = (
            f"the claim of event {lost[0]} is no longer held: its lease expired and another "
            "consumer took it, or it was already ended: do not complete its effect here"
        )
        raise LeaseLost(msg, details={"event_ids": lost[:10], "lost": len(lost)})


def find_first_run(stream_key: StreamKey, deliveries: Sequence[Delivery]) -> PassedRange:
    """Return the lowest run of consecutive sequence numbers among events of one stream."""
    numbers = sorted(
        {delivery.stream_seq for delivery in deliveries if delivery.stream_seq is not None}
    )
    last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            break
        last = number
    return PassedRange(stream_key, deliveries[0].first_seq, numbers[0], last)


def decode_deferred(row: tuple[Any, ...]) -> Delivery:
    """Convert a row of `list_due_events` or `list_blocked_events` to a delivery."""
    tenant_id, event_id, event_type, position, stream_type, stream_id, *columns = row
    stream_seq, first_seq, event, log_id, epoch = columns
    return Delivery(
        tenant_id=tenant_id,
        event_id=event_id,
        event_type=event_type,
        position=position,
        stream=None if stream_type is None else (stream_type, stream_id),
        stream_seq=stream_seq,
        first_seq=first_seq,
        event=msgspec.Raw(event.encode()),
        log=None if log_id is None else LogIdentity(log_id, epoch),
    )


def find_stuck_streams(claims: Iterable[Claim]) -> dict[StreamKey, int]:
    """Return, by stream, the first sequence number that is neither settled nor claimed here."""
    first_stuck: dict[StreamKey, int] = {}
    for claim in claims:
        stream_key, seq = claim.delivery.ordered_stream, claim.delivery.stream_seq
        if stream_key is None or seq is None or claim.claimed or claim.settled:
            continue
        if claim.settled_seq is None or seq > claim.settled_seq:
            first_stuck[stream_key] = min(seq, first_stuck.get(stream_key, seq))
    return first_stuck


def follows_stuck_event(claim: Claim, stuck: Mapping[StreamKey, int]) -> bool:
    """Return whether an event was claimed although an earlier one of its stream is stuck."""
    stream_key, seq = claim.delivery.ordered_stream, claim.delivery.stream_seq
    if not claim.claimed or stream_key is None or seq is None:
        return False
    return seq > stuck.get(stream_key, seq)

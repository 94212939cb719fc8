"""A claim: the right to have the effect of one event, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from seriatim.core.handling import Delivery

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

# Verdicts after which nobody needs the event to be delivered again.
FINAL: tuple[Verdict, ...] = ("duplicate_done", "stale", "dead", "unknown")

Key = tuple[str, str]  # tenant and event id
Line = tuple[str, str, str]  # tenant and stream, within which order counts

# The columns in which deliveries travel to the database.
DELIVERED = {
    "tenant_id": "text",
    "event_id": "text",
    "event_type": "text",
    "position": "integer",
    "stream_type": "text",
    "stream_id": "text",
    "stream_seq": "integer",
    "first_seq": "integer",
}
JUDGED = {**DELIVERED, "log_id": "text", "epoch": "integer", "wanted": "integer"}
READ_FROM = {"tenant_id": "text", "log_id": "text", "epoch": "integer"}
HELD = {"of_tenant": "text", "of_event": "text", "of_token": "integer"}


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the wish to handle an event; `token` proves a claim, and later ones beat it.

    `attempt` counts from 1. Without a claim, `settled_seq` is how far the stream is settled, and
    `due_us` when the event may be asked for again, where that is known.
    """

    delivery: Delivery
    verdict: Verdict
    token: int = 0
    attempt: int = 0
    settled_seq: int | None = None
    due_us: int = 0

    @property
    def claimed(self) -> bool:
        """Whether the effect may be had now."""
        return self.verdict == "claimed"

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do, now or later."""
        return self.verdict in ("duplicate_done", "stale")

    @property
    def final(self) -> bool:
        """Whether a consumer may move past the event: settled, or left to an operator."""
        return self.verdict in FINAL


class Passed(msgspec.Struct, frozen=True):
    """Numbers of a stream that a handler passes over, both ends included."""

    line: Line
    first_seq: int
    from_seq: int
    to_seq: int


def delivered(deliveries: Sequence[Delivery]) -> list[list[Any]]:
    """Return deliveries by column."""
    nowhere: tuple[str | None, str | None] = (None, None)
    streams = [(one.line and one.stream) or nowhere for one in deliveries]
    return [
        [one.tenant_id for one in deliveries],
        [one.event_id for one in deliveries],
        [one.event_type for one in deliveries],
        [one.position for one in deliveries],
        [stream_type for stream_type, _ in streams],
        [stream_id for _, stream_id in streams],
        [one.stream_seq if one.line else None for one in deliveries],
        [one.first_seq for one in deliveries],
    ]


def judged(wanted: Sequence[Delivery], passing: Sequence[Delivery]) -> list[list[Any]]:
    """Return deliveries by column, and which of them are wanted."""
    every = [*wanted, *passing]
    return [
        *delivered(every),
        [one.log and one.log.log_id for one in every],
        [one.log and one.log.epoch for one in every],
        [1] * len(wanted) + [0] * len(passing),
    ]


def read_from(deliveries: Iterable[Delivery]) -> list[list[Any]]:
    """Return by column which tenants' events were read from which log."""
    found = {(one.tenant_id, one.log) for one in deliveries}
    pairs = sorted(found, key=lambda pair: (pair[0], str(pair[1])))
    return [
        [tenant_id for tenant_id, _ in pairs],
        [log and log.log_id for _, log in pairs],
        [log and log.epoch for _, log in pairs],
    ]


def held(claims: Iterable[Claim]) -> list[list[Any]]:
    """Return claims by column."""
    mine = list(claims)
    return [
        [one.delivery.tenant_id for one in mine],
        [one.delivery.event_id for one in mine],
        [one.token for one in mine],
    ]

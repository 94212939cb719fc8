"""Events, handlers and queries for tests of delivery."""

from __future__ import annotations

from typing import Any

from seriatim.core.handler import Delivery, Handler, RetryPolicy, handler
from seriatim.delivery.claims import Claim
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry

SHOW = ("show", "s-1")
QUICK = RetryPolicy(attempts=3, base_s=0.01, cap_s=0.02)


def make_event(seq: int | None, *, stream: tuple[str, str] = SHOW, **more: Any) -> Delivery:
    """Return an event with a number in a stream, or without a stream for None."""
    name = f"{stream[0]}-{stream[1]}-{seq}"
    known: dict[str, Any] = {"event_type": "seat.taken", "position": seq or 1, "event": {"n": seq}}
    return Delivery(
        event_id=more.pop("event_id", name),
        stream=None if seq is None else stream,
        stream_seq=seq,
        **(known | more),
    )


def make_handler(name: str = "mailer", **parts: Any) -> Handler:
    """Return a handler."""
    run = parts.pop("run", lambda _event, _context: None)
    return handler(name, **({"effect": "keyed"} | parts))(run)


def verdicts_of(claims: list[Claim]) -> list[str]:
    """Return the verdicts of claims."""
    return [claim.verdict for claim in claims]


def claim(registry: Registry, by: Handler, *events: Delivery) -> list[Claim]:
    """Claim events."""
    return registry.claim_all(by, list(events))


def claim_and_complete(registry: Registry, by: Handler, *events: Delivery) -> None:
    """Claim events and mark them done."""
    claims = claim(registry, by, *events)
    assert verdicts_of(claims) == ["claimed"] * len(events)
    registry.mark_done(by, claims)


def statuses_of(registry: Registry, **fields: Any) -> dict[str, str]:
    """Return the status of every event in the registry."""
    return {entry.event_id: entry.status for entry in registry.entries(EntryFilter(**fields))}

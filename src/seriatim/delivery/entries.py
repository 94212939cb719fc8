"""What operators see of the registry, and what they ask it for."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.patterns import Names, pattern_problem
from seriatim.core.times import format_us

RETRIED = ("failed", "dead", "unknown")
UNFINISHED = ("claimed", "failed", "blocked", "dead", "unknown")

_FILTERS = (
    "handler",
    "tenant_id",
    "event_id",
    "stream_type",
    "stream_id",
    "status",
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One event as the registry knows it for one handler; `event` is kept while unfinished."""

    handler: str
    tenant_id: str
    event_id: str
    event_type: str
    position: int
    stream_type: str | None
    stream_id: str | None
    stream_seq: int | None
    status: str
    owner: str
    token: int
    attempts: int
    due_at: str | None
    error: str
    reason: str
    event: Any
    first_at: str
    updated_at: str


class StatusCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many events a handler has in one status; `expired` are claims whose lease is over."""

    handler: str
    status: str
    count: int
    first_position: int
    updated_at: str


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as the registry knows it."""

    name: str
    declaration: dict[str, Any]
    status: str
    reason: str


class KnownLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log whose events a handler has handled for a tenant; `reason` is that of a reset."""

    handler: str
    tenant_id: str
    log_id: str
    epoch: int
    reason: str
    updated_at: str


def stop_reason(tenant_id: str, event_id: str, error: str = "") -> str:
    """Say which event stopped a handler, and why."""
    return f"event {event_id} of tenant {tenant_id}: {error}"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries an operator means; what is None does not matter.

    `event_type` is a type, or a pattern such as `seat.*`.
    """

    handler: str | None = None
    tenant_id: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    status: str | tuple[str, ...] | None = None
    after: int = -1  # positions up to this one are left out; what is no event has 0

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return the condition in SQL and its values.

        Raises `InvalidArgument` if `event_type` is neither a type nor a pattern.
        """
        parts = ["position > :after"]
        values: dict[str, Any] = {"after": self.after}
        for field in _FILTERS:
            wanted = getattr(self, field)
            if wanted is None:
                continue
            texts = (wanted,) if isinstance(wanted, str) else tuple(wanted)
            names = [f"{field}_{'abcdefghi'[index]}" for index in range(len(texts))]
            parts.append(f"{field} in ({', '.join(f':{name}' for name in names)})")
            values |= dict(zip(names, texts, strict=True))
        if self.event_type is not None:
            parts.append(_of_type(self.event_type, values))
        return " and ".join(parts), values


def _of_type(text: str, values: dict[str, Any]) -> str:
    """Return the condition on the event's type, and add its value."""
    if problem := pattern_problem(text):
        raise InvalidArgument(f"event_type {problem}", details={"argument": "event_type"})
    names = Names.of([text])
    if names.everything:
        return "1 = 1"
    (values["event_type"],) = names.values or names.prefixes
    if names.values:
        return "event_type = :event_type"
    return f"substr(event_type, 1, {len(names.prefixes[0])}) = :event_type"


def entry_of(row: tuple[Any, ...]) -> Entry:
    """Make an entry of its row."""
    *known, due_us, error, reason, event, first_us, updated_us = row
    names = Entry.__struct_fields__[: len(known)]
    return Entry(
        **dict(zip(names, known, strict=True)),
        due_at=format_us(due_us) if due_us else None,
        error=error,
        reason=reason,
        event=None if event is None else msgspec.json.decode(event),
        first_at=format_us(first_us),
        updated_at=format_us(updated_us),
    )

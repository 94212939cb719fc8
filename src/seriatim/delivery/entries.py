"""Rows of the registry as operators see them, and the filter that selects them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.handler import Delivery
from seriatim.core.patterns import NameFilter, pattern_problem
from seriatim.core.times import format_us

RETRYABLE_STATUSES = ("failed", "dead", "unknown")
UNFINISHED_STATUSES = ("claimed", "failed", "blocked", "dead", "unknown")

_FILTERS = (
    "handler",
    "tenant_id",
    "event_id",
    "stream_type",
    "stream_id",
    "status",
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one event for one handler; `event` is stored while it is unfinished."""

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
    """The number of a handler's events in one status; `expired` counts claims without a lease."""

    handler: str
    status: str
    count: int
    first_position: int
    updated_at: str


class DeclaredHandler(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as declared in the registry, and its status."""

    name: str
    declaration: dict[str, Any]
    status: str
    reason: str


class HandlerLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log that a handler is bound to for a tenant; `reason` is that of the last reset."""

    handler: str
    tenant_id: str
    log_id: str
    epoch: int
    reason: str
    updated_at: str


class HandlerCursor(msgspec.Struct, frozen=True, kw_only=True):
    """The cursor of a handler's workers in a source.

    Attributes:
        handler: The handler.
        source: The source, as workers name it: a log, or a topic.
        tenant_id: The tenant whose events the workers read, `*` for all.
        log_id: The log; empty for a topic.
        epoch: Its epoch, or 0.
        position: The position up to which workers have read the log; None for a topic. Events up to
            there are finished, or stored in the registry with their status.
        updated_at: When the cursor was moved last.
    """

    handler: str
    source: str
    tenant_id: str
    log_id: str = ""
    epoch: int = 0
    position: int | None = None
    updated_at: str


def format_stop_reason(tenant_id: str, event_id: str, error: str = "") -> str:
    """Format the reason of a stopped handler; without `error` it is the prefix to compare with."""
    return f"event {event_id} of tenant {tenant_id}: {error}"


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter over entries; fields that are None do not filter.

    `event_type` is a type, or a pattern such as `seat.*`.

    Example:
        dead = registry.entries(EntryFilter(handler="receipts", status="dead"))
    """

    handler: str | None = None
    tenant_id: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    stream_type: str | None = None
    stream_id: str | None = None
    status: str | tuple[str, ...] | None = None
    # Exclusive lower bound of the position; -1 also matches invalid messages, which have 0.
    after: int = -1

    def describe(self) -> dict[str, Any]:
        """Return the fields that filter, without the tenant, for the operators' journal."""
        fields = msgspec.structs.asdict(self)
        del fields["tenant_id"]
        if self.after < 0:
            del fields["after"]
        return {name: value for name, value in fields.items() if value is not None}

    def to_sql(self) -> tuple[str, dict[str, Any]]:
        """Return the SQL condition and its parameters.

        Raises:
            InvalidArgument: `event_type` is neither a type nor a pattern.

        """
        conditions = ["position > :after"]
        values: dict[str, Any] = {"after": self.after}
        for field in _FILTERS:
            value = getattr(self, field)
            if value is None:
                continue
            alternatives = (value,) if isinstance(value, str) else tuple(value)
            # The names of SQL parameters have no digits, so an index is a letter.
            names = [f"{field}_{'abcdefghi'[index]}" for index in range(len(alternatives))]
            conditions.append(f"{field} in ({', '.join(f':{name}' for name in names)})")
            values |= dict(zip(names, alternatives, strict=True))
        if self.event_type is not None:
            conditions.append(_event_type_condition(self.event_type, values))
        return " and ".join(conditions), values


def _event_type_condition(pattern: str, values: dict[str, Any]) -> str:
    """Return the SQL condition on the event type, and add its parameter to `values`."""
    if problem := pattern_problem(pattern):
        raise InvalidArgument(f"event_type {problem}", details={"argument": "event_type"})
    names = NameFilter.parse([pattern])
    if names.matches_all:
        return "1 = 1"
    (values["event_type"],) = names.values or names.prefixes
    if names.values:
        return "event_type = :event_type"
    # Not LIKE: an underscore or a percent sign in the prefix would be a wildcard.
    return f"substr(event_type, 1, {len(names.prefixes[0])}) = :event_type"


def decode_entry(row: tuple[Any, ...]) -> Entry:
    """Convert a row of `list_entries` to an entry."""
    *first_columns, due_us, error, reason, event, first_us, updated_us = row
    names = Entry.__struct_fields__[: len(first_columns)]
    return Entry(
        **dict(zip(names, first_columns, strict=True)),
        due_at=format_us(due_us) if due_us else None,
        error=error,
        reason=reason,
        event=None if event is None else msgspec.json.decode(event),
        first_at=format_us(first_us),
        updated_at=format_us(updated_us),
    )


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a handler could not process, with everything needed to replay it."""

    handler: str
    delivery: Delivery
    error: str
    attempts: int


class DeadLetterTarget(Protocol):
    """A destination of dead letters that does not depend on the registry's database."""

    def send(self, dead_letters: list[DeadLetter]) -> None:
        """Deliver dead letters; raise if not all of them were delivered."""
        ...

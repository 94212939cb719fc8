"""The acts every backend offers: a table of contents of the log's storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from seriatim.core.decide import StaleRules
from seriatim.core.errors import BackendFailure, Conflict, SeriatimError
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, StreamRef
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.patterns import Names
from seriatim.core.query import Query
from seriatim.core.request import Prepared, Request

Scope = Literal["log", "traces", "aggregates"]
Outcome = AppendResult | SeriatimError | StaleRules


class Deferred(Exception):  # noqa: N818 - not an error: a request to take the usual way
    """Nothing was stored yet: commit these requests by `append`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__()
        self.requests = requests


class Closed(BackendFailure):
    """The log is closed."""

    retryable_by_default = False


def unanswered() -> BackendFailure:
    """Make the error for an append that was sent and not answered in time."""
    msg = "the append was sent but not answered in time; repeat it with the same keys or event ids"
    return BackendFailure(msg, details={"ambiguous": True})


class Exchange(Protocol):
    """A group on its way to a server, for a caller that waits for the socket by itself."""

    def fileno(self) -> int: ...
    def flushed(self) -> bool:
        """Send what is still to be sent; True when all of it is."""
        ...

    def answered(self) -> bool:
        """Take in what has come; True when the answer is whole."""
        ...

    def outcomes(self) -> Sequence[Outcome | Deferred]:
        """Return each request's own answer, or raise Deferred for all of them."""
        ...

    def wait(self, timeout: float) -> Sequence[Outcome | Deferred]:
        """Return them when they have come, however long that takes within the timeout."""
        ...

    def abandon(self) -> None:
        """Let go of it: nobody will ask for its answers."""
        ...


class Restored(msgspec.Struct, frozen=True, gc=False):
    """An event of an archive with its place and its time in the log that it came from."""

    position: int
    append_position: int
    stream_seq: int | None
    recorded_us: int
    event: Prepared

    def record(self) -> EventRecord:
        """Return the record that it was and will be."""
        return self.event.record(
            self.position, self.append_position, self.stream_seq, self.recorded_us
        )


def check_next(head: int, events: Sequence[Restored]) -> None:
    """Refuse restored events that do not follow the head and one another."""
    for expected, event in enumerate(events, start=head + 1):
        if event.position != expected:
            msg = f"position {event.position} cannot be restored where {expected} is the next one"
            raise Conflict(msg, details={"expected": expected, "actual": event.position})


class StoredAppend(msgspec.Struct, frozen=True):
    """An append found by its key or command; `request_hash` and `response` are its command's."""

    records: tuple[EventRecord, ...]
    request_hash: str | None = None
    response: Any = None


class ReadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a read, every argument checked; ascending, or descending if `newest_first`.

    `tenant_id` None reads all tenants and is for the operator's own tools: verify and export.
    `types` are exact types and patterns: see `core/patterns.py`. With `max_bytes` the page ends
    with the record whose payload brings it to that many bytes.
    """

    tenant_id: str | None
    limit: int
    after: int = 0
    until: int | None = None
    scope: Scope = "log"
    stream: StreamRef | None = None
    after_seq: int | None = None
    types: tuple[str, ...] | None = None
    app_id: str | None = None
    env_id: str | None = None
    occurred_after_us: int | None = None
    occurred_until_us: int | None = None
    recorded_after_us: int | None = None
    recorded_until_us: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    newest_first: bool = False
    max_bytes: int | None = None

    @property
    def names(self) -> Names | None:
        """The types that are wanted; None for all of them."""
        names = None if self.types is None else Names.of(self.types)
        return None if names is None or names.everything else names


class StreamSummary(msgspec.Struct, frozen=True):
    """One stream in a listing, in the order in which streams began."""

    stream_type: str
    stream_id: str
    first_position: int
    last_position: int
    last_seq: int
    last_type: str


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a consumer has come, in which log: `tip` is the id of the event at its position."""

    tenant_id: str
    purpose: Literal["subscription", "projection"]
    name: str
    position: int
    log_id: str
    epoch: int
    tip: str = ""
    query: str = ""
    updated_at: str = ""


class Lease(msgspec.Struct, frozen=True):
    """The right to do one named thing for a while; `token` rises with every new owner."""

    tenant_id: str
    name: str
    token: int


class SubscriptionState(msgspec.Struct, frozen=True, kw_only=True):
    """What a store keeps of a durable subscription; `owner` is None when none holds its lease.

    `failures` counts failed attempts since the cursor last moved. The last error stays after that.
    """

    tenant_id: str
    name: str
    position: int
    query: str
    updated_at: str
    owner: str | None = None
    failures: int = 0
    last_error: str | None = None
    last_error_at: str | None = None


class SubscriptionStatus(SubscriptionState, frozen=True, kw_only=True):
    """A durable subscription and its lag.

    `lag_events` counts the positions from the oldest event that matches and was not handled to
    the head, so it is at least the number of pending events; `lag_seconds` is the age of that
    event. Both are 0 when nothing is pending.
    """

    head: int
    lag_events: int
    lag_seconds: float


def lease_name(subscription: str) -> str:
    """Return the name of the lease that the owner of a subscription holds."""
    return f"subscription:{subscription}"


class Finding(msgspec.Struct, frozen=True):
    """What a check of a store has to say: `level` is ok, warning or error."""

    level: Literal["ok", "warning", "error"]
    check: str
    message: str
    cure: str = ""


class Store(Protocol):
    """A backend of the log."""

    name: str
    best_writers: int

    # -- the log itself
    def identity(self) -> LogIdentity: ...
    def raise_epoch(self) -> LogIdentity: ...
    def append(self, group: Sequence[Request]) -> list[Outcome]:
        """Commit a group, giving each request its own answer; one never fails another."""
        ...

    def packed(self, request: Request, rules: Rules) -> Request:
        """Return the request with what can be made ready in its caller's thread."""
        ...

    def at_once(self, request: Request, timeout: float) -> Outcome | None:
        """Commit an append in its caller's thread, within that time; may raise Deferred.

        None when it would have to wait for something: it is then appended in a group.
        """
        ...

    def light(self, request: Request) -> bool:
        """Tell whether `begin` takes such an append."""
        ...

    def begin(self, group: Sequence[Request]) -> Exchange | None:
        """Send a group to a server without waiting for anything; None when that cannot be."""
        ...

    def append_in(self, connection: Any, request: Request) -> Any:
        """Append in the caller's own transaction (an awaitable if the connection is async)."""
        ...

    def restore(self, events: Sequence[Restored]) -> None:
        """Store events of an archive as they were, right behind the head, or none of them.

        A key that another event has taken already is a command's, which events share (C7).
        """
        ...

    # -- reads
    def head(self) -> int: ...
    def read(self, spec: ReadSpec) -> list[EventRecord]: ...
    def event(self, tenant_id: str, event_id: str) -> EventRecord | None: ...
    def event_id_at(self, position: int) -> str | None: ...
    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        """Return the append stored under a key for the whole append, else under an event's key."""
        ...

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        """Return the append stored under a command, with its request hash and its response."""
        ...

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None: ...
    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]: ...
    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> list[StreamSummary]: ...
    def select(  # noqa: PLR0913 - a query, its range and its order
        self,
        tenant_id: str,
        query: Query,
        after: int,
        until: int,
        limit: int,
        *,
        newest_first: bool = False,
        max_bytes: int | None = None,
    ) -> list[EventRecord]:
        """Return the first records in (after, until] that match, each once.

        With `max_bytes` they end with the record whose payload brings them to that many bytes; a
        store behind a service may return as much more as one answer holds.
        """
        ...

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None: ...

    # -- declarations
    def rules(self) -> Rules: ...
    def declare(self, declaration: Declaration) -> None: ...

    # -- consumers
    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None: ...
    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]: ...
    def add_cursor(self, cursor: Cursor) -> Cursor:
        """Store a cursor unless its consumer has one; return the one that is stored."""
        ...

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        """Store a cursor; backwards only with `reset`, under a lost lease never."""
        ...

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        """Store the last error of a subscription whose lease this is; a lost one stores nothing."""
        ...

    def claim_lease(
        self, tenant_id: str, name: str, owner: str, seconds: float
    ) -> Lease | None: ...
    def renew_lease(self, lease: Lease, seconds: float) -> bool: ...
    def release_lease(self, lease: Lease) -> None: ...
    def purge_commands(self, older_than_seconds: float) -> int: ...

    # -- hints, checks, life
    def wait(self, position: int, timeout: float) -> None:
        """Sleep until the head may have passed a position: a hint, never a promise."""
        ...

    def verify(self) -> Iterator[Finding]:
        """Yield what the backend can prove of itself beyond what a re-read shows."""
        ...

    def doctor(self) -> Iterator[Finding]: ...
    def after_fork(self) -> None: ...
    def close(self) -> None: ...


class ServedStore(Store, Protocol):
    """A backend beside which a service runs: what it asks of it to keep tenants within bounds."""

    def tenants(self, limit: int) -> list[str]:
        """Return the tenants that have events, by name."""
        ...

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        """Return a page of cursors by name."""
        ...

    def subscriptions(self, tenant_id: str, after: str, limit: int) -> list[SubscriptionState]:
        """Return a page of durable subscriptions by name."""
        ...

    def cursor_room(self, tenant_id: str, purpose: str, name: str, at_most: int) -> bool:
        """Tell whether a cursor is there already or may be made beside so many."""
        ...

    def lease_room(self, tenant_id: str, name: str, at_most: int) -> bool:
        """Tell whether a lease is known by name or may be; it may take the place of an ended one.

        A lease that is forgotten so and claimed again has a higher token than it ever had.
        """
        ...

"""The interface of a storage backend, and the values that cross it.

The memory, SQLite and Postgres backends and the HTTP client implement `Store`. The rest of the
package reaches a log only through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from seriatim.core.decide import DecisionTrace, StaleRules
from seriatim.core.errors import BackendFailure, Conflict, SeriatimError
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, StreamRef
from seriatim.core.explanation import Explanation
from seriatim.core.ids import ID_BYTES_MAX
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.patterns import NameFilter
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest, PreparedEvent

Scope = Literal["log", "traces", "aggregates"]
LAST_CHARACTER = "\U0010ffff"  # of Unicode, so no name has a greater one
Outcome = AppendResult | SeriatimError | StaleRules


class Deferred(Exception):  # noqa: N818 - not an error, but a request to use another path
    """Signal that nothing was stored and that `requests` must be committed with `Store.append`."""

    def __init__(self, requests: Sequence[AppendRequest]) -> None:
        super().__init__()
        self.requests = requests


class LogClosed(BackendFailure):
    """The log is closed: open it again."""

    retryable_by_default = False


def make_unanswered_error() -> BackendFailure:
    """Return the error for an append that was sent but not answered in time."""
    msg = (
        "the append was sent but not answered in time, so it may be stored: repeat it with the "
        "same keys or event ids"
    )
    return BackendFailure(msg, details={"ambiguous": True})


class Exchange(Protocol):
    """A group of appends in flight, for a caller that watches the socket itself.

    An event loop waits until `fileno()` is writable while `flush` returns False, and until it is
    readable while `receive` returns False. Then it calls `outcomes`.
    """

    def fileno(self) -> int:
        """Return the file descriptor of the socket to watch."""
        ...

    def flush(self) -> bool:
        """Send buffered bytes without blocking; return True when all are sent."""
        ...

    def receive(self) -> bool:
        """Read available bytes without blocking; return True when the reply is complete."""
        ...

    def outcomes(self) -> Sequence[Outcome | Deferred]:
        """Return the outcome of each request, in order.

        Raises:
            Deferred: The whole group must be committed with `Store.append`.

        """
        ...

    def wait(self, timeout: float) -> Sequence[Outcome | Deferred]:
        """Block until the reply is complete, at most `timeout` seconds, and return the outcomes."""
        ...

    def abandon(self) -> None:
        """Discard the exchange; its outcomes will not be read."""
        ...


class RestoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An archived event with its position, sequence number and time in the original log."""

    position: int
    append_position: int
    stream_seq: int | None
    recorded_us: int
    event: PreparedEvent

    def to_record(self) -> EventRecord:
        """Return the event record, identical to the archived one."""
        return self.event.to_record(
            self.position, self.append_position, self.stream_seq, self.recorded_us
        )


def check_contiguous(head: int, events: Sequence[RestoredEvent]) -> None:
    """Check that restored events continue the log without a gap.

    Args:
        head: The last position of the log.
        events: The events to restore.

    Raises:
        Conflict: A position is not the one that follows its predecessor.

    """
    for expected, event in enumerate(events, start=head + 1):
        if event.position != expected:
            msg = (
                f"cannot restore position {event.position}, because the log continues at "
                f"{expected}: restore all events in order, starting there"
            )
            raise Conflict(msg, details={"expected": expected, "actual": event.position})


class StoredAppend(msgspec.Struct, frozen=True):
    """A stored append, found by idempotency key or command.

    `request_hash` and `response` are set if it was found by its command.
    """

    records: tuple[EventRecord, ...]
    request_hash: str | None = None
    response: Any = None


class ReadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The validated arguments of one page of a read.

    `after`, `after_seq` and the `…_after_us` bounds are exclusive, the `until` bounds inclusive.
    Records are in ascending order of position, or descending with `newest_first`. `tenant_id` None
    reads all tenants; only operator tools (verify, export) use it. `types` are exact types and
    patterns, see `core/patterns.py`. With `max_bytes`, the page ends with the record whose payload
    brings the total to that many bytes. With `until_head`, `until` is the head that was just read:
    hardly any event is after it, so a store need not look for the end of the range.
    """

    tenant_id: str | None
    limit: int
    after: int = 0
    until: int | None = None
    until_head: bool = False
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
    actor_id: str | None = None
    newest_first: bool = False
    max_bytes: int | None = None

    @property
    def type_names(self) -> NameFilter | None:
        """The requested event types and patterns; None if all types are requested."""
        names = None if self.types is None else NameFilter.parse(self.types)
        return None if names is None or names.matches_all else names


class StreamSummary(msgspec.Struct, frozen=True):
    """One stream in a listing; listings are ordered by the position of the first event."""

    stream_type: str
    stream_id: str
    first_position: int
    last_position: int
    last_seq: int
    last_type: str


class StreamPage(msgspec.Struct, frozen=True):
    """A page of a listing of streams; `last_scanned` is `after` for the next one, None at the end.

    It may have no streams and still not be the last one.
    """

    streams: list[StreamSummary]
    last_scanned: int | None


STREAM_SCAN_MAX = 10_000  # events that one page of a listing of streams reads
EVENT_TYPES_MAX = 100  # in one listing
EVENT_COUNT_MAX = 1_000  # events counted of one type


class EventTypeCount(msgspec.Struct, frozen=True):
    """One event type of a tenant in a listing; listings are ordered by name.

    Attributes:
        event_type: The type.
        counted: Its number of events, but at most `EVENT_COUNT_MAX`.
        exact: Whether `counted` is the number of all its events; if not, there are more.
        last_position: The position of its last event.
    """

    event_type: str
    counted: int
    exact: bool
    last_position: int


class EventTypeRange(msgspec.Struct, frozen=True):
    """The validated arguments of a listing of event types.

    Names begin with `prefix` and are greater than `after`.
    """

    prefix: str
    after: str
    limit: int

    @property
    def end(self) -> str:
        """An exclusive end of the names with the prefix; no name has as many characters."""
        return self.prefix + LAST_CHARACTER * (ID_BYTES_MAX // 4 + 1)

    def as_parameters(self, tenant_id: str) -> dict[str, Any]:
        """Return the parameters of the statement `count_event_types`; it counts one event more."""
        return {
            "tenant": tenant_id,
            "first": self.prefix,
            "after": self.after,
            "end": self.end,
            "limit": self.limit,
            "counted": EVENT_COUNT_MAX + 1,
        }


class LogSize(msgspec.Struct, frozen=True):
    """The space that a log takes, from the catalogue of its database; nothing is scanned.

    Attributes:
        bytes: Events, tags and their indexes; on SQLite the whole file. None in memory.
        index_bytes: The part of the indexes; None if the backend does not separate them.
    """

    bytes: int | None = None
    index_bytes: int | None = None


def make_type_counts(rows: Iterable[tuple[str, int, int]]) -> list[EventTypeCount]:
    """Return the types of a listing from (type, number up to the bound + 1, last position)."""
    return [
        EventTypeCount(name, min(counted, EVENT_COUNT_MAX), counted <= EVENT_COUNT_MAX, last)
        for name, counted, last in sorted(rows)
    ]


class BatchAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts to handle the batch after the cursor of a subscription.

    Attributes:
        first_position: The position of the first event of the batch.
        last_position: The position of its last event.
        attempts: The number of attempts that have begun.
        failures: The number of attempts that are known to have failed. It is lower than `attempts`
            while an attempt runs, and after the process of one has ended.
        parked_at: When the subscription was parked at this batch; None if it is not.
    """

    first_position: int
    last_position: int
    attempts: int
    failures: int = 0
    parked_at: str | None = None


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that a subscription has passed without handling it.

    Attributes:
        first_position: The position of the first event of the batch.
        last_position: The position of its last event.
        attempts: The number of attempts to handle it.
        error: The error of the last attempt.
        skipped_at: When it was skipped.
        skipped_by: The operator who skipped it; None if the subscription did, by its policy.
        reason: Why, in the operator's words.
    """

    first_position: int
    last_position: int
    attempts: int
    error: str
    skipped_at: str = ""
    skipped_by: str | None = None
    reason: str = ""


SKIPPED_BATCHES_MAX = 1_000  # of one subscription, by its policy; then it is parked instead


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which a consumer has processed the log, and the identity of that log.

    `last_event_id` is the id of the event at `position`; it reveals that a log was replaced.
    `attempt` is set while the batch of a subscription after `position` is attempted and not
    handled; a store ignores it when it stores a cursor.
    """

    tenant_id: str
    purpose: Literal["subscription", "projection"]
    name: str
    position: int
    log_id: str
    epoch: int
    last_event_id: str = ""
    query: str = ""
    updated_at: str = ""
    attempt: BatchAttempt | None = None

    @property
    def parked(self) -> bool:
        """Whether the subscription waits for an operator."""
        return self.attempt is not None and self.attempt.parked_at is not None


class Lease(msgspec.Struct, frozen=True):
    """An exclusive right for a bounded time; `token` is a fencing token, raised by each claim."""

    tenant_id: str
    name: str
    token: int


class SubscriptionState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a durable subscription.

    `owner` is None while no process holds its lease. `failures` counts failed attempts since the
    cursor last moved. `last_error` is kept after the cursor has moved on. `attempt` describes the
    batch after the cursor if it was attempted and not handled. `skipped` is the number of batches
    that were skipped.
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
    attempt: BatchAttempt | None = None
    skipped: int = 0


class SubscriptionStatus(SubscriptionState, frozen=True, kw_only=True):
    """A durable subscription, its status and its lag.

    `status` is `parked` while it waits for an operator, `retrying` while its next batch has failed
    and is attempted again, otherwise `ready`.

    `lag_events` counts the positions from the oldest pending event (one that matches and was not
    handled) to the head, so it is at least the number of pending events. `lag_seconds` is the age
    of the oldest pending event. Both are 0 if no event is pending.
    """

    head: int
    lag_events: int
    lag_seconds: float
    status: Literal["ready", "retrying", "parked"] = "ready"

    @property
    def attempts(self) -> int:
        """The number of attempts to handle the next batch; 0 if it was not attempted."""
        return 0 if self.attempt is None else self.attempt.attempts


def make_lease_name(subscription: str) -> str:
    """Return the name of the lease that protects a subscription."""
    return f"subscription:{subscription}"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check by `verify` or `doctor`; `cure` says how to repair a problem."""

    level: Literal["ok", "warning", "error"]
    check: str
    message: str
    cure: str = ""


class GroupWriter(Protocol):
    """The part of a backend that commits groups of appends; see `Submission`.

    `recommended_writers` is the number of groups in flight with which it commits most appends per
    second.
    """

    recommended_writers: int

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Commit a group of appends and return one outcome per request, in order.

        A refused request does not affect the others: its outcome is the error. An empty group
        stores nothing.
        """
        ...

    def can_commit_now(self, request: AppendRequest) -> bool:
        """Return True if `commit_now` accepts this append together with others."""
        ...

    def commit_now(
        self, group: Sequence[AppendRequest], timeout: float
    ) -> Sequence[Outcome | Deferred] | None:
        """Commit a group in the thread of a caller, which waits no longer than `timeout`.

        Args:
            group: The appends, as returned by `Store.prepare_request`.
            timeout: Seconds to wait for the reply.

        Returns:
            The outcome of each append, in order. None if nothing was sent, because the group would
            have to wait for another writer or a connection: it is then committed by `append`.

        Raises:
            Deferred: Nothing was stored; the requests must be committed by `append`.

        """
        ...

    def can_begin_append(self, request: AppendRequest) -> bool:
        """Return True if `begin_append` accepts this append."""
        ...

    def begin_append(self, group: Sequence[AppendRequest]) -> Exchange | None:
        """Send a group to the server without blocking; return None if that is not possible."""
        ...


class Store(GroupWriter, Protocol):
    """A storage backend; `name` identifies it in messages."""

    name: str

    # -- identity and appends
    def identity(self) -> LogIdentity:
        """Return the log's id and epoch."""
        ...

    def raise_epoch(self) -> LogIdentity:
        """Increment the epoch, so that consumers notice a restore; return the new identity."""
        ...

    def prepare_request(self, request: AppendRequest, rules: Rules) -> AppendRequest:
        """Return the request with the data that can be computed before any lock is taken.

        Runs in the caller's thread: it encodes rows and evaluates contexts.
        """
        ...

    def append_in(self, connection: Any, request: AppendRequest) -> Any:
        """Append in the caller's own transaction.

        Args:
            connection: An open psycopg connection, sync or async, in a transaction.
            request: The append.

        Returns:
            The receipt, or an awaitable of it if the connection is async.

        Raises:
            InvalidArgument: The backend does not support it, or the connection is unsuitable.

        """
        ...

    def explain(self, request: AppendRequest) -> DecisionTrace | Explanation:
        """Decide one append as `append` would, store nothing, and return the steps.

        The store of a service returns the explanation that the service made of them. It reads one
        snapshot and takes no lock that delays other appends.

        Args:
            request: The append, as returned by `prepare_request`.

        Raises:
            StaleRules: The append was validated under older declarations.

        """
        ...

    def restore(self, events: Sequence[RestoredEvent]) -> None:
        """Store archived events unchanged, directly after the head; all of them or none.

        Events of one command share an idempotency key (C7), so a key that is already stored is
        not a conflict here.
        """
        ...

    # -- reads
    def head(self) -> int:
        """Return the last position of the log, 0 if it is empty."""
        ...

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of records."""
        ...

    def event(self, tenant_id: str, event_id: str) -> EventRecord | None:
        """Return the event with this id, None if there is none."""
        ...

    def event_id_at(self, position: int) -> str | None:
        """Return the id of the event at a position, None if there is none."""
        ...

    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        """Return the append stored under an append key, or else the one with this event key."""
        ...

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        """Return the append that a command stored, with its request hash and response."""
        ...

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream, None if the stream does not exist."""
        ...

    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]:
        """Return the last event of each stream, in the order of `streams`."""
        ...

    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> StreamPage:
        """Return a page of streams whose first event is after position `after`.

        It reads a bounded number of events, also if few of them open a stream of the type.
        """
        ...

    def event_types(self, tenant_id: str, names: EventTypeRange) -> list[EventTypeCount]:
        """Return event types by name, with their bounded counts and last positions."""
        ...

    def select(
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
        """Return the first `limit` matching records in (after, until], without duplicates.

        With `max_bytes`, the page ends with the record whose payload brings the total to that many
        bytes; the HTTP client may return up to one response more.
        """
        ...

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        """Return the highest matching position up to `until`, None if nothing matches."""
        ...

    # -- declarations
    def rules(self) -> Rules:
        """Return the rules of all stored declarations."""
        ...

    def declare(self, declaration: Declaration) -> None:
        """Store a declaration unless it is stored already."""
        ...

    # -- consumers
    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        """Return a consumer's cursor, None if it has none."""
        ...

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        """Return all cursors of one purpose, ordered by name."""
        ...

    def add_cursor(self, cursor: Cursor) -> Cursor:
        """Store a cursor unless the consumer has one; return the stored cursor."""
        ...

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        """Store a cursor, and forget the attempts at the batch after the old one.

        A reset of a subscription voids the lease of its owner, which would otherwise move the
        cursor on, and forgets the skipped batches after the new position.

        Args:
            cursor: The new cursor.
            lease: The lease under which the consumer runs, None if it has none.
            reset: Allow a lower position and another query.

        Raises:
            LeaseLost: Another owner has claimed the lease.
            InvalidArgument: The position is lower and `reset` is False.
            Conflict: The query differs and `reset` is False.

        """
        ...

    def skip_batch(
        self, cursor: Cursor, skipped: SkippedBatch, *, after: int, lease: Lease | None
    ) -> None:
        """Move the cursor of a subscription past a batch, and record that it was skipped.

        Args:
            cursor: The cursor after the batch.
            skipped: The batch.
            after: The position of the cursor before the batch.
            lease: The lease of the owner that skips; None for an operator, who voids the lease.

        Raises:
            LeaseLost: Another owner has claimed the lease.
            Conflict: The cursor is not at `after`.
            LimitExceeded: The owner has skipped `SKIPPED_BATCHES_MAX` batches.

        """
        ...

    def put_attempt(
        self,
        lease: Lease,
        name: str,
        attempt: BatchAttempt,
        *,
        error: str | None = None,
        park: bool = False,
    ) -> None:
        """Store the attempts at the batch after a subscription's cursor.

        Args:
            lease: The lease of its owner.
            name: The subscription.
            attempt: The attempts; `parked_at` is ignored.
            error: The error of the last attempt; None if it has only begun.
            park: Whether the subscription stops at this batch.

        Raises:
            LeaseLost: Another owner has claimed the lease.

        """
        ...

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        """Store a subscription's last error; do nothing if the lease was lost."""
        ...

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        """Claim a lease; return None while another owner holds it."""
        ...

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """Extend a lease from now; return False if it was lost."""
        ...

    def release_lease(self, lease: Lease) -> None:
        """End a lease, unless it was lost."""
        ...

    def purge_commands(self, older_than_seconds: float) -> int:
        """Delete old command records and return their number."""
        ...

    # -- wake-ups, checks, lifecycle
    def wait(self, position: int, timeout: float) -> None:
        """Block until the head may have passed `position`, at most `timeout` seconds.

        It may return early: callers check the head themselves.
        """
        ...

    def verify(self) -> Iterator[Finding]:
        """Check the integrity of the storage, beyond what re-reading all events shows."""
        ...

    def doctor(self) -> Iterator[Finding]:
        """Check the configuration and environment of the storage."""
        ...

    def after_fork(self) -> None:
        """Replace locks and connections in a forked child process."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class ServiceStore(Store, Protocol):
    """A backend that a service can use: it also lists tenants and limits their consumers."""

    def tenants(self, limit: int) -> list[str]:
        """Return tenants that have events, ordered by name."""
        ...

    def count_events_read(
        self,
        tenant_id: str,
        query: Query,
        after: int,
        until: int,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> int:
        """Run `select` again and return how many events it reads, matching or not.

        An event that two steps of a statement read counts twice.
        """
        ...

    def size(self) -> LogSize:
        """Return the space that the log takes, of all tenants."""
        ...

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        """Return a page of cursors whose names are greater than `after`, ordered by name."""
        ...

    def subscriptions(
        self, tenant_id: str, after: str, limit: int, *, name: str | None = None
    ) -> list[SubscriptionState]:
        """Return a page of subscriptions whose names are greater than `after`, ordered by name.

        With `name`, return only the subscription of this name.
        """
        ...

    def skipped_batches(
        self, tenant_id: str, name: str, after: int, limit: int
    ) -> list[SkippedBatch]:
        """Return skipped batches that begin after a position, ordered by position."""
        ...

    def resume_attempts(self, tenant_id: str, name: str, position: int) -> bool:
        """Let a parked subscription attempt its batch again, counting from 0.

        Returns:
            Whether it was parked and its cursor is at `position`.

        """
        ...

    def can_add_cursor(self, tenant_id: str, purpose: str, name: str, limit: int) -> bool:
        """Return True if the cursor exists, or if the tenant has fewer than `limit` cursors."""
        ...

    def reserve_lease_slot(self, tenant_id: str, name: str, limit: int) -> bool:
        """Return True if the lease exists or may be added; an expired lease may be replaced.

        A lease that was replaced and is claimed again gets a higher token than it ever had.
        """
        ...

"""The bodies of requests and responses; the OpenAPI document is generated from them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from seriatim.core.event import StreamRef
from seriatim.core.explanation import ExplainedStep
from seriatim.core.indexes import PayloadIndex, StoredIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.operation import Operation
from seriatim.core.query_plan import IndexName
from seriatim.store.port import (
    Cursor,
    EventTypeCount,
    Finding,
    Lease,
    SkippedBatch,
    StreamSummary,
    SubscriptionStatus,
)
from seriatim.store.readmodel.port import FailureRecord, ProjectionStanding
from seriatim.wire.problems import Problem
from seriatim.wire.records import WireEvent, WireRecord

ProfileName = Literal["log", "traces", "facts", "aggregates"]


class WireCondition(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A condition of an append: the last sequence number of a stream, or a context's version.

    With a `query`, give `version` (null: no event may match) or `after`: no matching event was
    appended after this position.
    """

    stream: tuple[str, str] | None = None
    seq: int | None = None
    query: dict[str, Any] | None = None
    version: int | msgspec.UnsetType | None = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET


class WireCommand(msgspec.Struct, forbid_unknown_fields=True):
    """The command of an append, named by the caller."""

    actor: str
    endpoint: str
    key: str
    request: Any = None
    response: Any = None


class AppendBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One append: events, conditions, and an idempotency key or command."""

    events: list[WireEvent]
    conditions: list[WireCondition] = []
    idempotency_key: str | None = None
    command: WireCommand | None = None
    profile: ProfileName = "log"
    on_id_mismatch: Literal["error", "warn"] | None = None


class AppendIfBody(msgspec.Struct, forbid_unknown_fields=True):
    """An append of facts that is stored only if a context is unchanged since it was read."""

    events: list[WireEvent]
    query: Any
    expected_version: int | msgspec.UnsetType | None = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET
    idempotency_key: str | None = None


class AppendsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Several independent appends in one request; each has its own outcome."""

    appends: list[AppendBody]


class EventPosition(msgspec.Struct, frozen=True, gc=False):
    """The position and sequence number of one event of an append."""

    position: int
    event_id: str
    stream_seq: int | None


class AddedFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields that the service added to events which did not have them."""

    actor_type: str | None = None
    actor_id: str | None = None
    metadata: dict[str, str] = {}


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt of an append; `records` are included if it is a replay."""

    first_position: int
    last_position: int
    recorded_at: str
    events: list[EventPosition]
    response: Any = None
    id_mismatch: list[str] = []
    added: AddedFields | None = None
    records: list[WireRecord] | None = None


class AppendOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one of several appends: a receipt or a problem."""

    receipt: Receipt | None = None
    problem: Problem | None = None
    replayed: bool = False


class AppendOutcomes(msgspec.Struct, frozen=True):
    """The outcomes of several appends, in the order of the request."""

    outcomes: list[AppendOutcome]


class ExplanationResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an append would do now: its checks in order, and why it is replayed or refused.

    `events` are the stored events that decided, if the caller may read them.
    """

    outcome: Literal["accepted", "replayed", "refused"]
    steps: list[ExplainedStep]
    problem: Problem | None = None
    first_position: int | None = None
    stream_seqs: list[int | None] = []
    response: Any = None
    id_mismatch: list[str] = []
    events: list[WireRecord] = []


class StoredReceipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt of a stored append, with its events, when and by whom they were appended.

    The actor is that of the first event. A command also has its request hash and its response.
    """

    first_position: int
    last_position: int
    recorded_at: str
    actor_type: str | None
    actor_id: str | None
    records: list[WireRecord]
    request_hash: str | None = None
    response: Any = None


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's token. The tenant `*` means all tenants; null `types` means all types."""

    subject: str
    service: bool
    tenant_id: str
    rights: list[str]
    types: list[str] | None


class LogInfo(msgspec.Struct, frozen=True):
    """The identity and head of the log, and the tenant of the request."""

    log_id: str
    epoch: int
    head: int
    tenant_id: str
    version: str


class PageResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One page of a read; the next page has `after` = `last_scanned`, even if this one is empty.

    `cut` means that the page ended early because its events are large.
    """

    records: list[WireRecord]
    last_scanned: int
    cut: bool = False


class RecordResponse(msgspec.Struct, frozen=True):
    """One event."""

    record: WireRecord


class StreamsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Streams, each as its type and its id."""

    streams: list[StreamRef]


class LastRecordsResponse(msgspec.Struct, frozen=True):
    """The last event of each stream; null if the stream does not exist."""

    records: list[WireRecord | None]


class StreamsResponse(msgspec.Struct, frozen=True):
    """Streams in the order of their first events.

    A page reads a bounded number of events, so it can be empty before the end of the list. The
    next page has `after` = `last_scanned`, which is null on the last page.
    """

    streams: list[StreamSummary]
    last_scanned: int | None


class EventTypesResponse(msgspec.Struct, frozen=True):
    """Event types by name; `counted` is at most 10,000, and `exact` is false if there are more.

    The next page has `after` = the last `event_type`.
    """

    types: list[EventTypeCount]


class QueryBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A query, and the range of its snapshot to return; `explain` adds the access paths."""

    query: dict[str, Any] = {}
    limit: int | None = None
    after: int | None = None
    head: int | None = None
    until: int | None = None
    newest_first: bool = False
    explain: bool = False


class QueryAccess(msgspec.Struct, frozen=True):
    """How a filter of a query is answered in a range of positions.

    `index` names the index that finds candidates: `payload` (with tags, if the filter has some),
    `tag`, `correlation`, `causation`, `actor`, `stream`, `type`, or `tenant`, that of all events of
    the tenant. With `exact` every
    candidate matches, otherwise the other conditions are evaluated for each. The range is after
    `after` and up to `until`.
    """

    filter: int
    index: IndexName
    after: int
    until: int
    exact: bool


class QueryResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a query; the next page has the same `head` and the last position.

    With `explain`, `events_read` is the number of events that were read to find these, matching or
    not. An event that two steps of a statement read counts twice. It is
    omitted for tokens that are restricted to event types.
    """

    records: list[WireRecord]
    last_returned_position: int | None
    context_version: int | None
    head: int
    more: bool
    access: list[QueryAccess] | None = None
    events_read: int | None = None


class SelectBody(msgspec.Struct, forbid_unknown_fields=True):
    """A query over a range of positions."""

    query: dict[str, Any]
    after: int
    until: int
    limit: int
    newest_first: bool = False


class RecordsResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events in order; `cut` means that the list ended early because the events are large."""

    records: list[WireRecord]
    cut: bool = False


class VersionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A query whose context version is requested, as of the head `until`."""

    query: dict[str, Any]
    until: int


class VersionResponse(msgspec.Struct, frozen=True):
    """The highest matching position; null if no event matches."""

    context_version: int | None


class LastEventIdResponse(msgspec.Struct, frozen=True):
    """The id of the event at a position, or an opaque value if the caller may not read it."""

    last_event_id: str | None


class DeclarationsResponse(msgspec.Struct, frozen=True):
    """The declarations of a log."""

    version: int
    kinds: list[StreamKind]
    types: list[EventType]
    indexes: list[StoredIndex]


class DeclareBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Declarations to store."""

    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[PayloadIndex] = []


class CursorsResponse(msgspec.Struct, frozen=True):
    """The cursors of consumers."""

    cursors: list[Cursor]


class SkippedBody(msgspec.Struct, forbid_unknown_fields=True):
    """A batch that the owner of a subscription passes by its policy.

    `after` is the position of the cursor before the batch, which ends at its new position.
    """

    after: int
    first_position: int
    attempts: int
    error: str


class CursorBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A cursor to store; `only_new` does not change an existing one.

    With `skipped` and a lease, it passes a batch that was not handled, which is recorded.
    """

    purpose: Literal["subscription", "projection"]
    name: str
    position: int
    log_id: str
    epoch: int
    last_event_id: str = ""
    query: str = ""
    lease: Lease | None = None
    reset: bool = False
    only_new: bool = False
    skipped: SkippedBody | None = None


class CursorResponse(msgspec.Struct, frozen=True):
    """The stored cursor."""

    cursor: Cursor | None


class SubscriptionsResponse(msgspec.Struct, frozen=True):
    """Durable subscriptions by name: owner, cursor, lag and last error."""

    subscriptions: list[SubscriptionStatus]


class SkippedBatchesResponse(msgspec.Struct, frozen=True):
    """Batches that a subscription has passed without handling them, by position."""

    batches: list[SkippedBatch]


class AttemptBody(msgspec.Struct, forbid_unknown_fields=True):
    """An attempt at the batch after a subscription's cursor, by the owner of its lease.

    `error` is that of a failed attempt, null for one that begins. `park` stops the subscription at
    this batch until an operator acts.
    """

    name: str
    lease: Lease
    first_position: int
    last_position: int
    attempts: int
    failures: int = 0
    error: str | None = None
    park: bool = False


class SubscriptionRetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """A parked subscription that attempts its batch again, and why."""

    name: str
    reason: str = ""


class SubscriptionSkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """The first position of the failing batch of a subscription, and why it is skipped."""

    name: str
    position: int
    reason: str


class SubscriptionResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """The position after which a subscription continues, its new query if it changes, and why."""

    name: str
    position: int
    query: dict[str, Any] | None = None
    reason: str = ""


class FailureBody(msgspec.Struct, forbid_unknown_fields=True):
    """The last error of a subscription, reported by the owner of its lease."""

    name: str
    lease: Lease
    failures: int
    error: str


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The name and owner of a lease, and how many seconds it lasts."""

    name: str
    owner: str
    seconds: float


class LeaseResponse(msgspec.Struct, frozen=True):
    """The lease; null if another owner holds it."""

    lease: Lease | None


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    """A lease to renew, and for how many seconds."""

    lease: Lease
    seconds: float


class RenewResponse(msgspec.Struct, frozen=True):
    """Whether the caller still holds the lease."""

    held: bool


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """A lease to release."""

    lease: Lease


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The minimum age of the command records to delete; at least 24 hours."""

    older_than_hours: float = 24.0


class ProjectionsResponse(msgspec.Struct, frozen=True):
    """The status of projections."""

    projections: list[ProjectionStanding]


class FailuresResponse(msgspec.Struct, frozen=True):
    """Events that a projection could not process, and how each was resolved.

    `count` is the number of all of them, and `unresolved` of those that no operator has skipped.
    """

    failures: list[FailureRecord]
    count: int = 0
    unresolved: int = 0


class DoctorResponse(msgspec.Struct, frozen=True):
    """The findings of `seriatim doctor`: checks of the log's database."""

    findings: list[Finding]


class LastReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The last comparison of a publisher's topics with the log, up to the position `until`.

    `findings` counts the findings of each kind. Only duplicates are no difference.
    """

    target: str
    log_id: str
    epoch: int
    until: int
    finished_at: str
    equal: bool
    events: int
    messages: int
    findings: dict[str, int]


class PublisherStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last checkpoint of a publisher; `problem` says why there is none."""

    place: str
    target: str = ""
    position: int = 0
    log_id: str = ""
    epoch: int = 0
    written_at: str = ""
    problem: str = ""
    reconciliation: LastReconciliation | None = None


class SealedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment of an archive: its events, its file, and the digests of both."""

    first: int
    last: int
    bytes: int
    digest: str
    sha256: str
    file: str


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An archive: its last position, the digest of all its events, and its latest segments.

    `problem` says why it cannot be read.
    """

    place: str
    log_id: str = ""
    end: int = 0
    digest: str = ""
    segment_count: int = 0
    segments: list[SealedSegment] = []
    problem: str = ""


class StorageResponse(msgspec.Struct, frozen=True):
    """The publishers and archives of the places that the service was started with."""

    publishers: list[PublisherStatus]
    archives: list[ArchiveStatus]


class RefusedAppend(msgspec.Struct, frozen=True):
    """A refused append: its time, error code, sender and event types, and the request as JSON text.

    `request` is the body for `POST /v1/explain`. It is null if the guard rejects it, or if it was
    larger than 16 KiB or malformed.
    """

    id: str
    at: str
    code: str
    subject: str
    event_types: list[str]
    request: str | None


class RefusalsResponse(msgspec.Struct, frozen=True):
    """The last refused appends of a tenant in the process that answers, newest first.

    `processes` is the number of processes of the service; each has its own list.
    """

    refusals: list[RefusedAppend]
    processes: int


class LogSizeResponse(msgspec.Struct, frozen=True):
    """The space that the log takes, of all tenants: events, tags and their indexes.

    On SQLite it is the size of the file, and `index_bytes` is null. In memory, both are null.
    """

    bytes: int | None
    index_bytes: int | None


class ProjectionBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A projection to pause or resume, and the reason."""

    name: str
    reason: str = ""


class ProjectionRetryBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The failures of a projection to retry: one by position, or `expected_count` in all."""

    name: str
    position: int | None = None
    expected_count: int | None = None
    reason: str = ""


class ProjectionSkipBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The position of a failed event that a projection is to skip, and the reason."""

    name: str
    position: int
    reason: str = ""


class CountResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number of affected items.

    `recorded` is false if the action succeeded but could not be recorded in the journal.
    """

    count: int
    recorded: bool = True


class DoneResponse(msgspec.Struct, frozen=True):
    """The operation succeeded."""

    done: bool = True


class OperationsResponse(msgspec.Struct, frozen=True):
    """Actions of operators, newest first; the next page has `before` = the last position."""

    operations: list[Operation]

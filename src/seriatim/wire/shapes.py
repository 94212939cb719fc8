"""The bodies of requests and answers as types: parsed, shown and described from one place."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from seriatim.core.event import StreamRef
from seriatim.core.indexes import PayloadIndex, StoredIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.store.port import Cursor, Lease, StreamSummary, SubscriptionStatus
from seriatim.store.readmodel.port import FailureRecord, Standing
from seriatim.wire.problems import Problem
from seriatim.wire.records import WireEvent, WireRecord

Profile = Literal["log", "traces", "facts", "aggregates"]


class WireCondition(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What must hold for an append: a stream's last number, or a context's version.

    A query has a `version` (none: nothing may match), or `after`: nothing that matches was appended
    after this position.
    """

    stream: tuple[str, str] | None = None
    seq: int | None = None
    query: msgspec.Raw | None = None
    version: int | msgspec.UnsetType | None = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET


class WireCommand(msgspec.Struct, forbid_unknown_fields=True):
    """The command behind an append, named by the caller itself."""

    actor: str
    endpoint: str
    key: str
    request: Any = None
    response: Any = None


class AppendBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One append: its events, what must hold, and what makes it repeatable."""

    events: list[WireEvent]
    conditions: list[WireCondition] = []
    idempotency_key: str | None = None
    command: WireCommand | None = None
    profile: Profile = "log"
    on_id_mismatch: Literal["error", "warn"] | None = None


class AppendIfBody(msgspec.Struct, forbid_unknown_fields=True):
    """An append that holds only while a context is as it was read."""

    events: list[WireEvent]
    query: msgspec.Raw
    expected_version: int | msgspec.UnsetType | None = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET
    idempotency_key: str | None = None


class AppendsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Several appends that share a request and nothing else; each gets its own answer."""

    appends: list[AppendBody]


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where one event of an append has its place."""

    position: int
    event_id: str
    stream_seq: int | None


class Added(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the service wrote into events that did not say it themselves."""

    actor_type: str | None = None
    actor_id: str | None = None
    metadata: dict[str, str] = {}


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an append was stored as; `records` are there when it was stored before."""

    first_position: int
    last_position: int
    recorded_at: str
    events: list[Placed]
    response: Any = None
    id_mismatch: list[str] = []
    added: Added | None = None
    records: list[WireRecord] | None = None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one of several appends: a receipt or a problem."""

    receipt: Receipt | None = None
    problem: Problem | None = None
    replayed: bool = False


class Outcomes(msgspec.Struct, frozen=True):
    """The answers to several appends, in their order."""

    outcomes: list[Outcome]


class FoundAppend(msgspec.Struct, frozen=True, omit_defaults=True):
    """An append found by its key or command; a command has a request hash and a response."""

    first_position: int
    last_position: int
    records: list[WireRecord]
    request_hash: str | None = None
    response: Any = None


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says; the tenant `*` stands for all of them, no types for all types."""

    subject: str
    service: bool
    tenant_id: str
    rights: list[str]
    types: list[str] | None


class LogInfo(msgspec.Struct, frozen=True):
    """Which log this is, how far it reaches, and for whom it was asked."""

    log_id: str
    epoch: int
    head: int
    tenant_id: str
    version: str


class PageAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One page of a read: ask on with `after` = `last_scanned`, which moves on even when empty.

    `cut` tells that it would be longer, were its events not so large.
    """

    records: list[WireRecord]
    last_scanned: int
    cut: bool = False


class OneRecord(msgspec.Struct, frozen=True):
    """One event."""

    record: WireRecord


class StreamsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Streams, each as its type and its id."""

    streams: list[StreamRef]


class LastRecords(msgspec.Struct, frozen=True):
    """The last event of each stream, null where there is no such stream."""

    records: list[WireRecord | None]


class StreamsAnswer(msgspec.Struct, frozen=True):
    """Streams in the order in which they began; page on with the last first_position."""

    streams: list[StreamSummary]


class QueryBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A query, and which page of its snapshot is wanted."""

    query: dict[str, Any] = {}
    limit: int | None = None
    after: int | None = None
    head: int | None = None
    until: int | None = None
    newest_first: bool = False


class QueryAnswer(msgspec.Struct, frozen=True):
    """What a query found; give `head` and the last position back to page on in its snapshot."""

    records: list[WireRecord]
    last_returned_position: int | None
    context_version: int | None
    head: int
    more: bool


class SelectBody(msgspec.Struct, forbid_unknown_fields=True):
    """A query over a range of positions."""

    query: dict[str, Any]
    after: int
    until: int
    limit: int
    newest_first: bool = False


class RecordsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events in order; `cut` tells that there would be more of them, were they not so large."""

    records: list[WireRecord]
    cut: bool = False


class VersionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A query whose context's version is wanted, as it was when the log ended at `until`."""

    query: dict[str, Any]
    until: int


class VersionAnswer(msgspec.Struct, frozen=True):
    """The highest position that matches, null when nothing does."""

    context_version: int | None


class TipAnswer(msgspec.Struct, frozen=True):
    """What stands at a position: an id if it is the caller's own, else a mark that says nothing."""

    tip: str | None


class Declarations(msgspec.Struct, frozen=True):
    """What is declared in a log."""

    version: int
    kinds: list[StreamKind]
    types: list[EventType]
    indexes: list[StoredIndex]


class DeclareBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What is to be declared."""

    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[PayloadIndex] = []


class CursorsAnswer(msgspec.Struct, frozen=True):
    """How far consumers have come."""

    cursors: list[Cursor]


class CursorBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Where a cursor is to stand; `only_new` keeps one that is there already."""

    purpose: Literal["subscription", "projection"]
    name: str
    position: int
    log_id: str
    epoch: int
    tip: str = ""
    query: str = ""
    lease: Lease | None = None
    reset: bool = False
    only_new: bool = False


class CursorAnswer(msgspec.Struct, frozen=True):
    """A cursor as it is stored."""

    cursor: Cursor | None


class SubscriptionsAnswer(msgspec.Struct, frozen=True):
    """Durable subscriptions by name: owner, cursor, lag and last error."""

    subscriptions: list[SubscriptionStatus]


class FailureBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a subscription failed with, told by the owner of its lease."""

    name: str
    lease: Lease
    failures: int
    error: str


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """Who wants to do a named thing, and for how long."""

    name: str
    owner: str
    seconds: float


class LeaseAnswer(msgspec.Struct, frozen=True):
    """The lease, null when another has it."""

    lease: Lease | None


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    """A lease that is to go on."""

    lease: Lease
    seconds: float


class RenewAnswer(msgspec.Struct, frozen=True):
    """Whether it is still the caller's."""

    held: bool


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """A lease that is given back."""

    lease: Lease


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """How old command records must be to be forgotten: a day at least."""

    older_than_hours: float = 24.0


class ProjectionsAnswer(msgspec.Struct, frozen=True):
    """Where projections stand."""

    projections: list[Standing]


class FailuresAnswer(msgspec.Struct, frozen=True):
    """What a projection could not take, and what became of it."""

    failures: list[FailureRecord]


class Count(msgspec.Struct, frozen=True):
    """How many."""

    count: int


class Done(msgspec.Struct, frozen=True):
    """It was done."""

    done: bool = True

"""The in-memory backend, which is also the reference model for tests of the other backends."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from seriatim.core.decide import (
    DecisionTrace,
    StreamHead,
    assign_event_keys,
    find_by_id,
    trace_decision,
)
from seriatim.core.errors import InvalidArgument, LeaseLost
from seriatim.core.event import EventRecord, LogIdentity, StreamRef
from seriatim.core.ids import hash_key, stream_key
from seriatim.core.indexes import StoredIndex
from seriatim.core.kinds import NO_RULES, Declaration, EventType, Rules, StreamKind
from seriatim.core.predicate import PayloadDocument
from seriatim.core.query import Matcher, Query
from seriatim.core.request import AppendRequest, PreparedEvent, StoredCommand
from seriatim.core.times import format_us
from seriatim.store.append_group import PlacedAppend, build_outcomes, decide_group
from seriatim.store.cancellation import ReadBudget
from seriatim.store.common import (
    check_cursor_move,
    check_skip,
    check_skipped_count,
    find_append_by_command,
    find_append_by_key,
    matches_spec,
    summarize_stream,
    take_page,
)
from seriatim.store.contexts import (
    NEWEST_EVENTS_MAX,
    EvaluatedContext,
    GroupContexts,
    collect_contexts,
    collect_evaluated_contexts,
)
from seriatim.store.port import (
    BatchAttempt,
    Cursor,
    EventTypeCount,
    EventTypeRange,
    Finding,
    Lease,
    LogSize,
    Outcome,
    ReadSpec,
    RestoredEvent,
    SkippedBatch,
    StoredAppend,
    StreamPage,
    StreamSummary,
    SubscriptionState,
    check_contiguous,
    make_lease_name,
    make_type_counts,
)

_CursorKey = tuple[str, str, str]


class _StoredLease(NamedTuple):
    """A claimed lease; it is kept after it has expired, so that its token keeps rising."""

    lease: Lease
    owner: str
    expires_at: float  # a time of `time.monotonic`


class MemoryStore:
    """A log in the memory of one process: lists and dictionaries, guarded by one lock.

    `_changed` is that lock, reentrant because some operations call others; it is notified when
    events are added. While it decides a group, the store is its own view (`StoreView`).
    """

    name = "memory"
    recommended_writers = 1

    def __init__(self, read_timeout_s: float | None = None) -> None:
        self._read_timeout_s = read_timeout_s
        self._contexts = GroupContexts((), {})
        self._changed = threading.Condition(threading.RLock())
        self._identity = LogIdentity(str(uuid.uuid4()), 1)
        self._records: list[EventRecord] = []
        self._streams: dict[bytes, list[int]] = {}
        self._keys: dict[bytes, int] = {}
        self._ids: dict[tuple[str, bytes], int] = {}
        self._commands: dict[bytes, tuple[StoredCommand, float]] = {}
        self._kinds: list[StreamKind] = []
        self._types: list[EventType] = []
        self._indexes: list[StoredIndex] = []
        self._rules = NO_RULES
        self._cursors: dict[_CursorKey, Cursor] = {}
        # Count, error and time.
        self._failures: dict[_CursorKey, tuple[int, str | None, int | None]] = {}
        self._leases: dict[tuple[str, str], _StoredLease] = {}
        self._skipped: dict[tuple[str, str], dict[int, SkippedBatch]] = {}  # by tenant and name

    # -- identity and appends

    def identity(self) -> LogIdentity:
        return self._identity

    def raise_epoch(self) -> LogIdentity:
        self._identity = LogIdentity(self._identity.log_id, self._identity.epoch + 1)
        return self._identity

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        with self._changed:
            recorded_us = time.time_ns() // 1000
            head = len(self._records)
            self._contexts = self._complete_contexts(group, head)
            budget = self._contexts.lock_budget
            results = decide_group(group, self, self._rules, head, recorded_us, budget)
            for result in results:
                if isinstance(result, PlacedAppend):
                    self._store_append(result, recorded_us)
            self._changed.notify_all()
            return build_outcomes(results, recorded_us)

    def _store_append(self, placed: PlacedAppend, recorded_us: int) -> None:
        for event, record in zip(
            placed.request.events, placed.build_records(recorded_us), strict=True
        ):
            self._store_event(event, record)
        command = placed.request.command
        if command is not None:
            last = placed.first_position + len(placed.request.events) - 1
            stored = StoredCommand(
                command.request_hash, command.response, placed.first_position, last
            )
            self._commands[command.command_key] = stored, time.time()

    def _store_event(self, event: PreparedEvent, record: EventRecord) -> None:
        self._records.append(record)
        self._ids[event.tenant_id, event.event_key] = record.position
        if event.stream_key is not None:
            self._streams.setdefault(event.stream_key, []).append(record.position)
        if event.idempotency_index is not None:
            self._keys.setdefault(event.idempotency_index, record.position)

    def prepare_request(self, request: AppendRequest, rules: Rules) -> AppendRequest:
        """Evaluate the request's contexts in the caller's thread, before the lock is taken."""
        del rules  # no index helps to evaluate a context here
        contexts = collect_contexts((request,)) if request.conditions else None
        if not contexts:
            return request
        # Without the lock: records are only added, so those up to this head never change.
        head = len(self._records)
        evaluated = {
            key: EvaluatedContext(head, self.context_version(request.tenant_id, query, head))
            for key, query in contexts.items()
        }
        return msgspec.structs.replace(request, encoded=evaluated)

    def _complete_contexts(self, group: Sequence[AppendRequest], head: int) -> GroupContexts:
        """Complete the contexts of a group under the lock, with the events appended since."""
        contexts = GroupContexts(group, collect_evaluated_contexts(group))
        for tenant_id, after in contexts.find_stale_tenants(head).items():
            # Limit the time under the lock; if events are left out, the caller evaluates again.
            lowest = max(after, head - NEWEST_EVENTS_MAX)
            newest = (
                record
                for record in reversed(self._records[lowest:])
                if record.tenant_id == tenant_id
            )
            contexts.add_newest_events(tenant_id, newest, complete=lowest == after, head=head)
        return contexts

    def can_commit_now(self, request: AppendRequest) -> bool:
        del request
        return True

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> list[Outcome]:
        del timeout
        return self.append(group)

    def can_begin_append(self, request: AppendRequest) -> bool:
        del request
        return False

    def begin_append(self, group: Sequence[AppendRequest]) -> None:
        del group

    def append_in(self, connection: Any, request: AppendRequest) -> Any:
        del connection, request
        msg = (
            "appending in the caller's transaction requires a Postgres log, but this one is in "
            "memory: append without connection="
        )
        raise InvalidArgument(msg, details={"argument": "connection"})

    def explain(self, request: AppendRequest) -> DecisionTrace:
        with self._changed:
            self._contexts = self._complete_contexts([request], len(self._records))
            return trace_decision(request, self, self._rules)

    def restore(self, events: Sequence[RestoredEvent]) -> None:
        with self._changed:
            check_contiguous(len(self._records), events)
            with_keys = assign_event_keys([restored.event for restored in events], self.find_by_id)
            for restored, event in zip(events, with_keys, strict=True):
                self._store_event(event, restored.to_record())
            self._changed.notify_all()

    # -- the view that `decide` uses, under the lock

    def _record_at(self, position: int | None) -> EventRecord | None:
        return None if position is None else self._records[position - 1]

    def find_by_key(self, idempotency_index: bytes) -> EventRecord | None:
        return self._record_at(self._keys.get(idempotency_index))

    def find_by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        return self._record_at(self._ids.get((tenant_id, event_key)))

    def read_range(self, first: int, last: int) -> tuple[EventRecord, ...]:
        return tuple(self._records[first - 1 : last])

    def find_command(self, command_key: bytes) -> StoredCommand | None:
        stored = self._commands.get(command_key)
        return None if stored is None else stored[0]

    def stream_head(self, stream_key: bytes) -> StreamHead | None:
        positions = self._streams.get(stream_key)
        if not positions:
            return None
        last = self._records[positions[-1] - 1]
        return StreamHead(last.stream_seq or 0, last.event_type)

    def current_context_version(self, tenant_id: str, query: Query) -> int | None:
        return self._contexts.version(tenant_id, query)

    # -- reads

    def head(self) -> int:
        return len(self._records)

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        until = len(self._records) if spec.until is None else spec.until
        budget = ReadBudget(self._read_timeout_s)

        def iterate_matches() -> Iterator[EventRecord]:
            for record in _order(self._records[spec.after : until], spec.newest_first):
                budget.check()
                if matches_spec(spec, record):
                    yield record

        return take_page(iterate_matches(), spec.limit, spec.max_bytes)

    def event(self, tenant_id: str, event_id: str) -> EventRecord | None:
        return find_by_id(tenant_id, event_id, self.find_by_id)

    def event_id_at(self, position: int) -> str | None:
        return self._records[position - 1].event_id if position <= len(self._records) else None

    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        return find_append_by_key(self.find_by_key, self.read, tenant_id, producer_id, key)

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        stored = self.find_command(hash_key(tenant_id, actor, endpoint, key))
        return find_append_by_command(stored, self.read, tenant_id)

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None:
        positions = self._streams.get(stream_key(tenant_id, *stream))
        return self._record_at(positions[-1]) if positions else None

    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]:
        return [self.last_of_stream(tenant_id, stream) for stream in streams]

    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> StreamPage:
        summaries: list[StreamSummary] = []
        for positions in self._streams.values():  # in the order of their first events
            first, last = self._records[positions[0] - 1], self._records[positions[-1] - 1]
            if (
                first.tenant_id == tenant_id
                and first.position > after
                and stream_type in (None, first.stream_type)
            ):
                summaries.append(summarize_stream(first, last))
        page = summaries[:limit]
        return StreamPage(page, page[-1].first_position if len(page) >= limit else None)

    def event_types(self, tenant_id: str, names: EventTypeRange) -> list[EventTypeCount]:
        budget = ReadBudget(self._read_timeout_s)
        found: dict[str, tuple[int, int]] = {}
        for record in self._records[:]:
            budget.check()
            name = record.event_type
            if record.tenant_id == tenant_id and name.startswith(names.prefix):
                found[name] = found.get(name, (0, 0))[0] + 1, record.position
        wanted = sorted(name for name in found if name > names.after)[: names.limit]
        return make_type_counts((name, *found[name]) for name in wanted)

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
        records = _order(self._records[after:until], newest_first)
        return take_page(self._match_records(tenant_id, query, records), limit, max_bytes)

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        newest = reversed(self._records[:until])
        match = next(self._match_records(tenant_id, query, newest), None)
        return None if match is None else match.position

    def _match_records(
        self, tenant_id: str, query: Query, records: Iterable[EventRecord]
    ) -> Iterator[EventRecord]:
        budget = ReadBudget(self._read_timeout_s)
        budget.check()
        matcher = Matcher(query)
        for record in records:
            budget.check()
            if record.tenant_id == tenant_id and matcher.matches(
                record, PayloadDocument(record.payload_json, budget.check)
            ):
                yield record

    # -- declarations

    def rules(self) -> Rules:
        return self._rules

    def declare(self, declaration: Declaration) -> None:
        with self._changed:
            rules = self._rules
            if isinstance(declaration, StreamKind):
                if not rules.has_kind(declaration):
                    self._kinds.append(declaration)
            elif isinstance(declaration, EventType):
                if not rules.has_type(declaration):
                    self._types.append(declaration)
            elif not rules.has_index(declaration):
                self._indexes.append(StoredIndex(declaration.event_type, declaration.path))
            version = len(self._kinds) + len(self._types) + len(self._indexes)
            self._rules = Rules(
                tuple(self._kinds), tuple(self._types), version, tuple(self._indexes)
            )

    # -- consumers

    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        return self._cursors.get((tenant_id, purpose, name))

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
        count = 0

        def iterate_counted() -> Iterator[EventRecord]:
            nonlocal count
            for record in _order(self._records[after:until], newest_first):
                count += 1
                yield record

        take_page(self._match_records(tenant_id, query, iterate_counted()), limit)
        return count

    def size(self) -> LogSize:
        return LogSize()

    def tenants(self, limit: int) -> list[str]:
        return sorted({tenant_id for tenant_id, _ in list(self._ids)})[:limit]

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        keys = [key for key in self._cursors if key[:2] == (tenant_id, purpose)]
        return [self._cursors[key] for key in sorted(keys)]

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        cursors = [cursor for cursor in self.cursors(tenant_id, purpose) if cursor.name > after]
        return cursors[:limit]

    def can_add_cursor(self, tenant_id: str, purpose: str, name: str, limit: int) -> bool:
        exists = (tenant_id, purpose, name) in self._cursors
        return exists or len(self.cursors(tenant_id, purpose)) < limit

    def add_cursor(self, cursor: Cursor) -> Cursor:
        with self._changed:
            key = cursor.tenant_id, cursor.purpose, cursor.name
            if key not in self._cursors:
                self.put_cursor(cursor, lease=None, reset=False)
            return self._cursors[key]

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        with self._changed:
            if lease is not None and not self._is_held(lease):
                raise LeaseLost
            key = cursor.tenant_id, cursor.purpose, cursor.name
            check_cursor_move(self._cursors.get(key), cursor, reset=reset)
            if reset and lease is None and cursor.purpose == "subscription":
                self._void_lease(cursor)
                skipped = self._skipped.get((cursor.tenant_id, cursor.name), {})
                for position in [first for first in skipped if first > cursor.position]:
                    del skipped[position]
            self._store_cursor(key, cursor)

    def _store_cursor(self, key: _CursorKey, cursor: Cursor) -> None:
        now = format_us(time.time_ns() // 1000)
        self._cursors[key] = msgspec.structs.replace(cursor, updated_at=now, attempt=None)
        if key in self._failures:
            self._failures[key] = (0, *self._failures[key][1:])

    def _void_lease(self, cursor: Cursor) -> None:
        key = cursor.tenant_id, make_lease_name(cursor.name)
        if key in self._leases:
            stored = self._leases[key]
            voided = Lease(cursor.tenant_id, key[1], stored.lease.token + 1)
            self._leases[key] = _StoredLease(voided, stored.owner, 0.0)

    def skip_batch(
        self, cursor: Cursor, skipped: SkippedBatch, *, after: int, lease: Lease | None
    ) -> None:
        with self._changed:
            if lease is not None and not self._is_held(lease):
                raise LeaseLost
            key = cursor.tenant_id, cursor.purpose, cursor.name
            batches = self._skipped.setdefault((cursor.tenant_id, cursor.name), {})
            if lease is not None:
                check_skipped_count(sum(batch.skipped_by is None for batch in batches.values()))
            check_skip(self._cursors.get(key), cursor, after)
            if lease is None:
                self._void_lease(cursor)
            now = format_us(time.time_ns() // 1000)
            batches[skipped.first_position] = msgspec.structs.replace(skipped, skipped_at=now)
            self._store_cursor(key, cursor)

    def put_attempt(
        self,
        lease: Lease,
        name: str,
        attempt: BatchAttempt,
        *,
        error: str | None = None,
        park: bool = False,
    ) -> None:
        with self._changed:
            key = lease.tenant_id, "subscription", name
            if not self._is_held(lease) or key not in self._cursors:
                raise LeaseLost
            now = time.time_ns() // 1000
            stored = msgspec.structs.replace(attempt, parked_at=format_us(now) if park else None)
            self._cursors[key] = msgspec.structs.replace(self._cursors[key], attempt=stored)
            _, last_error, failed_us = self._failures.get(key, (0, None, None))
            if error is not None:
                last_error, failed_us = error, now
            self._failures[key] = attempt.failures, last_error, failed_us

    def resume_attempts(self, tenant_id: str, name: str, position: int) -> bool:
        with self._changed:
            key = tenant_id, "subscription", name
            cursor = self._cursors.get(key)
            if cursor is None or not cursor.parked or cursor.position != position:
                return False
            self._cursors[key] = msgspec.structs.replace(cursor, attempt=None)
            self._failures[key] = (0, *self._failures[key][1:])
            return True

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        with self._changed:
            if self._is_held(lease):
                key = lease.tenant_id, "subscription", name
                self._failures[key] = failures, error, time.time_ns() // 1000

    def subscriptions(
        self, tenant_id: str, after: str, limit: int, *, name: str | None = None
    ) -> list[SubscriptionState]:
        with self._changed:
            cursors = self.cursors_after(tenant_id, "subscription", after, limit)
            if name is not None:
                cursor = self._cursors.get((tenant_id, "subscription", name))
                cursors = [] if cursor is None or name <= after else [cursor]
            return [self._subscription_state(cursor) for cursor in cursors]

    def skipped_batches(
        self, tenant_id: str, name: str, after: int, limit: int
    ) -> list[SkippedBatch]:
        with self._changed:
            batches = self._skipped.get((tenant_id, name), {})
            return [batches[first] for first in sorted(batches) if first > after][:limit]

    def _subscription_state(self, cursor: Cursor) -> SubscriptionState:
        stored = self._leases.get((cursor.tenant_id, make_lease_name(cursor.name)))
        owned = stored is not None and stored.expires_at > time.monotonic()
        key = cursor.tenant_id, "subscription", cursor.name
        failures, error, failed_us = self._failures.get(key, (0, None, None))
        return SubscriptionState(
            tenant_id=cursor.tenant_id,
            name=cursor.name,
            position=cursor.position,
            query=cursor.query,
            updated_at=cursor.updated_at,
            owner=stored.owner if stored is not None and owned else None,
            failures=failures,
            last_error=error,
            last_error_at=None if failed_us is None else format_us(failed_us),
            attempt=cursor.attempt,
            skipped=len(self._skipped.get((cursor.tenant_id, cursor.name), ())),
        )

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        with self._changed:
            stored = self._leases.get((tenant_id, name))
            now = time.monotonic()
            if stored is not None and stored.expires_at > now and stored.owner != owner:
                return None
            # `reserve_lease_slot` may have removed an earlier lease of this name. Tokens rise once
            # per claim, far slower than the clock, so the clock is above all of its tokens.
            token = time.time_ns() // 1000 if stored is None else stored.lease.token + 1
            lease = Lease(tenant_id, name, token)
            self._leases[tenant_id, name] = _StoredLease(lease, owner, now + seconds)
            return lease

    def reserve_lease_slot(self, tenant_id: str, name: str, limit: int) -> bool:
        with self._changed:
            names = [lease_name for owner_id, lease_name in self._leases if owner_id == tenant_id]
            if name in names or len(names) < limit:
                return True
            now = time.monotonic()
            expired = [
                lease_name
                for lease_name in names
                if self._leases[tenant_id, lease_name].expires_at <= now
            ]
            if expired:
                del self._leases[tenant_id, expired[0]]
            return bool(expired)

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        with self._changed:
            return self._set_expiry(lease, time.monotonic() + seconds)

    def release_lease(self, lease: Lease) -> None:
        with self._changed:
            self._set_expiry(lease, 0.0)

    def _is_held(self, lease: Lease) -> bool:
        """Return True if no other owner has claimed the lease since."""
        stored = self._leases.get((lease.tenant_id, lease.name))
        return stored is not None and stored.lease.token == lease.token

    def _set_expiry(self, lease: Lease, expires_at: float) -> bool:
        if not self._is_held(lease):
            return False
        key = lease.tenant_id, lease.name
        self._leases[key] = self._leases[key]._replace(expires_at=expires_at)
        return True

    def purge_commands(self, older_than_seconds: float) -> int:
        with self._changed:
            oldest = time.time() - older_than_seconds
            expired = [key for key, (_, created) in self._commands.items() if created < oldest]
            for key in expired:
                del self._commands[key]
            return len(expired)

    # -- wake-ups, checks, lifecycle

    def wait(self, position: int, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._records) > position, timeout)

    def verify(self) -> Iterator[Finding]:
        yield Finding("ok", "storage", "events are in memory until the process ends")

    def doctor(self) -> Iterator[Finding]:
        yield Finding(
            "warning",
            "durability",
            "this log is in memory and is lost when the process ends",
            "open sqlite:///file or postgresql://… to store events durably",
        )

    def after_fork(self) -> None:
        # A thread of the parent, which the child does not have, may hold the old lock.
        self._changed = threading.Condition(threading.RLock())

    def close(self) -> None:
        """Do nothing; the garbage collector frees the memory."""


def _order(records: list[EventRecord], newest_first: bool) -> Iterable[EventRecord]:
    return reversed(records) if newest_first else records

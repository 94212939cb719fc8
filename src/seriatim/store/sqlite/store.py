"""The SQLite store: it implements `Store` on one file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.core.decide import DecisionTrace, find_by_id
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.event import EventRecord, LogIdentity, StreamRef
from seriatim.core.ids import hash_key, stream_key
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest, StoredCommand
from seriatim.store.append_group import PlacedAppend, build_outcomes
from seriatim.store.cancellation import ReadBudget
from seriatim.store.common import (
    PageBounds,
    find_append_by_command,
    find_append_by_key,
    make_stream_page,
)
from seriatim.store.port import (
    STREAM_SCAN_MAX,
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
    SubscriptionState,
    make_type_counts,
)
from seriatim.store.sqlite import (
    append,
    checks,
    consumers,
    failures,
    fork_safety,
    lookups,
    migrate,
    payload_predicates,
    queries,
)
from seriatim.store.sqlite.connection import DatabaseFile, HeadWatcher
from seriatim.store.sqlite.declarations import SqliteDeclarations
from seriatim.store.sqlite.statements import SQL
from seriatim.store.sqlite.writer import SqliteWriter

_STEPS_PER_CHECK = 10_000  # VM instructions between two checks of the clock, about a millisecond


class ReaderPool:
    """A limited number of read-only connections, each used by one thread at a time."""

    def __init__(self, file: DatabaseFile, size: int, timeout_s: float | None = None) -> None:
        self._file = file
        self._size = size
        self._timeout_s = timeout_s
        self._reset()

    def _reset(self) -> None:
        self._slots = threading.BoundedSemaphore(self._size)
        self._idle: list[sqlite3.Connection] = []

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection for the block."""
        if not self._slots.acquire(timeout=self._file.busy_timeout_s):
            msg = (
                f"all {self._size} read connections to {self._file.path} were busy for "
                f"{self._file.busy_timeout_s:g} s: try again, or read from fewer threads"
            )
            raise BackendFailure(msg)
        try:
            self._file.check_usable()
            with failures.translate_errors(self._file.path):
                connection = self._take()
                try:
                    yield connection
                except BaseException as error:
                    self._give_back(connection, broken=failures.invalidates_connection(error))
                    raise
                self._give_back(connection)
        finally:
            self._slots.release()

    @contextmanager
    def bounded_connection(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection whose statements stop at the time limit or on cancellation.

        Raises:
            TimedOut: The read was stopped.
            BackendFailure: All connections are busy, or a statement failed.

        """
        budget = ReadBudget(self._timeout_s)
        budget.check()
        with self.connection() as connection, payload_predicates.check_matches_with(budget.check):
            if budget.bounded:
                connection.set_progress_handler(budget.is_exhausted, _STEPS_PER_CHECK)
            try:
                yield connection
            except sqlite3.OperationalError as error:
                # SQLite discards the error of a SQL function, which tells more than its own.
                if (cause := payload_predicates.take_error()) is not None:
                    raise cause from error
                if failures.get_error_code(error) != sqlite3.SQLITE_INTERRUPT:
                    raise
                raise budget.make_error() from error
            finally:
                connection.set_progress_handler(None, 0)

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._file.open(mode="ro")
            connection.execute("pragma query_only = on")
            return connection

    def _give_back(self, connection: sqlite3.Connection, *, broken: bool = False) -> None:
        if broken or self._file.closed:
            connection.close()
        else:
            self._idle.append(connection)

    def pause(self, seconds: float) -> bool:
        """Close the connections after running reads, and block new reads until `resume`.

        Returns:
            False if a read did not end within `seconds`; then nothing is blocked.

        """
        deadline = time.monotonic() + seconds
        for slots in range(self._size):
            if not self._slots.acquire(timeout=max(0, deadline - time.monotonic())):
                if slots:
                    self._slots.release(slots)
                return False
        self.close()
        return True

    def resume(self) -> None:
        """End a pause."""
        self._slots.release(self._size)

    def after_fork(self) -> None:
        """Reset the state in a forked child; the parent's connections are kept, but unused."""
        for connection in self._idle:
            fork_safety.abandon_connection(connection)
        self._reset()

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()


_PURGE_BATCH = 10_000  # command records deleted in one transaction


class SqliteStore:
    """A log in one SQLite file, shared by any number of processes on one machine."""

    name = "sqlite"
    recommended_writers = 1

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        busy_timeout_s: float = 10.0,
        readers: int = 4,
        read_timeout_s: float | None = None,
    ) -> None:
        self._file = DatabaseFile(path, busy_timeout_s)
        self._writer = SqliteWriter(self._file)
        self._readers = ReaderPool(self._file, readers, read_timeout_s)
        self._declarations = SqliteDeclarations()
        self._wakeups = HeadWatcher(self.head)
        try:
            migrate.ensure_schema(self._file, self._writer, create=create)
        except BaseException:
            self._writer.close()
            raise
        fork_safety.register_holder(self._writer)
        fork_safety.register_holder(self._readers)

    # -- identity and appends

    def identity(self) -> LogIdentity:
        """Return the log's id and epoch."""
        with self._readers.connection() as connection:
            return LogIdentity(*connection.execute(SQL["select_identity"]).fetchone())

    def raise_epoch(self) -> LogIdentity:
        """Increment the epoch, so that consumers notice a restore; return the new identity."""
        with self._writer.transaction() as connection:
            connection.execute(SQL["raise_epoch"])
            return LogIdentity(*connection.execute(SQL["select_identity"]).fetchone())

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Commit a group of appends and return one outcome per request, in order."""
        if not group:
            return []
        rejection: Exception | None = None
        # From the cheapest path to the one that looks everything up. A rejected statement has
        # stored nothing.
        for append_path in (self._append_fast, self._append_as_new, self._append_validated):
            try:
                outcomes = append_path(group)
            except (BackendFailure, ValueError, OverflowError) as error:
                if not _is_rejection(error):
                    raise
                rejection = error
            else:
                if outcomes:
                    return outcomes
        # The database rejected one of the requests: commit them one by one to find out which.
        if len(group) == 1:
            return [_make_failure(rejection)]
        return [outcome for request in group for outcome in self.append([request])]

    def _append_fast(
        self, group: Sequence[AppendRequest], *, wait_for_lock: bool = True
    ) -> list[Outcome]:
        """Commit a group on the fast path; return nothing if it does not qualify."""
        rules = self._declarations.last_rules
        if not append.is_fast_path(group, rules):
            return []
        insert = append.FastPathInsert(group, rules)
        places = self._writer.commit_statement(
            insert.insert, insert.read_placements, wait_for_lock=wait_for_lock
        )
        if places is None:
            return []
        return self._finish(places, insert.recorded_us)

    def _append_as_new(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        return self._append_validated(group, assume_new=True)

    def _append_validated(
        self, group: Sequence[AppendRequest], *, assume_new: bool = False
    ) -> list[Outcome]:
        with self._writer.transaction() as connection:
            recorded_us = consumers.get_now_us()
            results = append.append_group(
                connection, group, self._declarations, recorded_us, assume_new=assume_new
            )
        return self._finish(results, recorded_us)

    def _finish(self, results: Sequence[PlacedAppend | Outcome], recorded_us: int) -> list[Outcome]:
        """Wake threads that wait for the committed events, and return the outcomes."""
        for result in reversed(results):
            if isinstance(result, PlacedAppend):
                self._wakeups.notify(result.first_position + len(result.request.events) - 1)
                break
        return build_outcomes(results, recorded_us)

    def prepare_request(self, request: AppendRequest, rules: Rules) -> AppendRequest:
        """Evaluate the request's contexts in the caller's thread, before the lock is taken."""
        if not lookups.has_contexts(request):  # encoding rows is fast enough under the lock
            return request
        with self._readers.bounded_connection() as connection:
            rules = self._declarations.load_rules(connection)
            contexts = lookups.evaluate_contexts(connection, request, rules)
            return msgspec.structs.replace(request, encoded=contexts)

    def can_commit_now(self, request: AppendRequest) -> bool:
        """Return whether the append requests nothing but positions."""
        return append.is_fast_path((request,), self._declarations.last_rules)

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> list[Outcome] | None:
        """Commit a group on the fast path, unless another thread or process is writing."""
        del timeout  # it never waits
        try:
            return self._append_fast(group, wait_for_lock=False) or None
        except (BackendFailure, ValueError, OverflowError) as error:
            if not _is_rejection(error):
                raise
            return None

    def can_begin_append(self, request: AppendRequest) -> bool:
        """Return False: there is no server to send to."""
        del request
        return False

    def begin_append(self, group: Sequence[AppendRequest]) -> None:
        """Return None: there is no server to send to."""
        del group

    def append_in(self, connection: Any, request: AppendRequest) -> Any:
        """Raise `InvalidArgument`: only the log's own connection writes to the file."""
        del connection, request
        msg = (
            "appending in the caller's transaction requires a Postgres log, but this one is "
            f"{self._file.path}: append without connection="
        )
        raise InvalidArgument(msg, details={"argument": "connection"})

    def explain(self, request: AppendRequest) -> DecisionTrace:
        """Decide one append in a read transaction, store nothing, and return the steps."""
        with self._readers.bounded_connection() as connection:
            connection.execute("begin")  # one snapshot for all statements
            try:
                return append.explain_append(connection, request, self._declarations)
            finally:
                connection.execute("rollback")

    def restore(self, events: Sequence[RestoredEvent]) -> None:
        """Store archived events unchanged, directly after the head; all of them or none."""
        with self._writer.transaction() as connection:
            migrate.restore(connection, events)
        self._wakeups.notify(events[-1].position)

    # -- reads

    def head(self) -> int:
        """Return the last position of the log, 0 if it is empty."""
        with self._readers.connection() as connection:
            return lookups.read_head(connection)

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of a read."""
        with self._readers.bounded_connection() as connection:
            return queries.read(connection, spec)

    def event(self, tenant_id: str, event_id: str) -> EventRecord | None:
        """Return the event with this id, None if there is none."""
        with self._readers.connection() as connection:
            return find_by_id(tenant_id, event_id, lookups.make_event_lookup(connection))

    def event_id_at(self, position: int) -> str | None:
        """Return the id of the event at a position."""
        with self._readers.connection() as connection:
            row = connection.execute(SQL["find_event_id"], (position,)).fetchone()
            return None if row is None else str(row[0])

    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        """Return the append stored under an idempotency key."""
        return find_append_by_key(self._find_by_index, self.read, tenant_id, producer_id, key)

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        """Return the append that a command stored."""
        stored = self._find_command(hash_key(tenant_id, actor, endpoint, key))
        return find_append_by_command(stored, self.read, tenant_id)

    def _find_by_index(self, idempotency_index: bytes) -> EventRecord | None:
        with self._readers.connection() as connection:
            return lookups.find_record(connection, "find_event_by_key", (idempotency_index,))

    def _find_command(self, command_key: bytes) -> StoredCommand | None:
        with self._readers.connection() as connection:
            row = connection.execute(SQL["find_command"], (command_key,)).fetchone()
            return None if row is None else StoredCommand(*row)

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream."""
        with self._readers.connection() as connection:
            return lookups.find_record(
                connection, "find_last_event", (stream_key(tenant_id, *stream),)
            )

    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]:
        """Return the last event of each of many streams."""
        return [self.last_of_stream(tenant_id, stream) for stream in streams]

    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> StreamPage:
        """Return a page of streams, ordered by the position of their first event."""
        values = {
            "tenant": tenant_id,
            "stream_type": stream_type,
            "after": after,
            "limit": limit,
            "scanned": STREAM_SCAN_MAX,
        }
        with self._readers.bounded_connection() as connection:
            return make_stream_page(connection.execute(SQL["list_streams"], values), limit)

    def event_types(self, tenant_id: str, names: EventTypeRange) -> list[EventTypeCount]:
        """Return event types by name, with their bounded counts and last positions."""
        with self._readers.bounded_connection() as connection:
            values = names.as_parameters(tenant_id)
            return make_type_counts(connection.execute(SQL["count_event_types"], values))

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
        """Return the first matching records in (after, until]."""
        with self._readers.bounded_connection() as connection:
            rules = self._declarations.load_rules(connection)
            return queries.select(
                connection,
                tenant_id,
                query,
                rules,
                after=after,
                until=until,
                limit=limit,
                newest_first=newest_first,
                max_bytes=max_bytes,
            )

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        """Return the highest matching position up to `until`."""
        with self._readers.bounded_connection() as connection:
            rules = self._declarations.load_rules(connection)
            return queries.context_version(
                connection, tenant_id, query, rules, after=0, until=until
            )

    # -- declarations

    def rules(self) -> Rules:
        """Return the rules of all stored declarations."""
        with self._readers.connection() as connection:
            return self._declarations.load_rules(connection)

    def declare(self, declaration: Declaration) -> None:
        """Store a declaration unless it is stored already."""
        with self._writer.transaction() as connection:
            self._declarations.declare(connection, declaration)

    # -- consumers

    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        """Return a consumer's cursor, None if it has none."""
        with self._readers.connection() as connection:
            return consumers.get_cursor(connection, tenant_id, purpose, name)

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
        """Run `select` again and return how many events it reads, matching or not."""
        page = PageBounds(after, until, limit, newest_first=newest_first)
        with self._readers.bounded_connection() as connection:
            rules = self._declarations.load_rules(connection)
            return queries.count_events_read(connection, tenant_id, query, rules, page)

    def size(self) -> LogSize:
        """Return the size of the file."""
        with self._readers.connection() as connection:
            return LogSize(connection.execute(SQL["select_size"]).fetchone()[0])

    def tenants(self, limit: int) -> list[str]:
        """Return tenants that have events, ordered by name."""
        with self._readers.bounded_connection() as connection:
            return [row[0] for row in connection.execute(SQL["list_tenants"], (limit,))]

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        """Return all cursors of one purpose, ordered by name."""
        with self._readers.connection() as connection:
            return consumers.list_cursors(connection, tenant_id, purpose)

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        """Return a page of cursors, ordered by name."""
        with self._readers.connection() as connection:
            return consumers.list_cursors_after(connection, tenant_id, purpose, after, limit)

    def can_add_cursor(self, tenant_id: str, purpose: str, name: str, limit: int) -> bool:
        """Return True if the cursor exists, or if the tenant has fewer than `limit` cursors."""
        with self._readers.connection() as connection:
            return consumers.can_add_cursor(connection, tenant_id, purpose, name, limit)

    def add_cursor(self, cursor: Cursor) -> Cursor:
        """Store a cursor unless the consumer has one; return the stored cursor."""
        with self._writer.transaction() as connection:
            return consumers.add_cursor(connection, cursor)

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        """Store a cursor; a lower position requires `reset`, a lost lease raises `LeaseLost`."""
        with self._writer.transaction() as connection:
            consumers.put_cursor(connection, cursor, lease, reset=reset)

    def skip_batch(
        self, cursor: Cursor, skipped: SkippedBatch, *, after: int, lease: Lease | None
    ) -> None:
        """Move a cursor past a batch and record it; without a lease, void that of the owner."""
        with self._writer.transaction() as connection:
            consumers.skip_batch(connection, cursor, skipped, after, lease)

    def put_attempt(
        self,
        lease: Lease,
        name: str,
        attempt: BatchAttempt,
        *,
        error: str | None = None,
        park: bool = False,
    ) -> None:
        """Store the attempts at the next batch of a subscription."""
        with self._writer.transaction() as connection:
            consumers.put_attempt(connection, lease, name, attempt, error=error, park=park)

    def resume_attempts(self, tenant_id: str, name: str, position: int) -> bool:
        """Let a parked subscription attempt its batch again."""
        with self._writer.transaction() as connection:
            return consumers.resume_attempts(connection, tenant_id, name, position)

    def subscriptions(
        self, tenant_id: str, after: str, limit: int, *, name: str | None = None
    ) -> list[SubscriptionState]:
        """Return a page of durable subscriptions, ordered by name; with `name`, only this one."""
        with self._readers.connection() as connection:
            return consumers.list_subscriptions(connection, tenant_id, after, limit, name)

    def skipped_batches(
        self, tenant_id: str, name: str, after: int, limit: int
    ) -> list[SkippedBatch]:
        """Return skipped batches of a subscription, ordered by position."""
        with self._readers.connection() as connection:
            return consumers.list_skipped_batches(connection, tenant_id, name, after, limit)

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        """Store the last error of a subscription, unless its lease was lost."""
        with self._writer.transaction() as connection:
            consumers.record_failure(connection, lease, name, failures, error)

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        """Claim a lease; return None while another owner holds it."""
        with self._writer.transaction() as connection:
            return consumers.claim_lease(connection, tenant_id, name, owner, seconds)

    def reserve_lease_slot(self, tenant_id: str, name: str, limit: int) -> bool:
        """Return True if the lease exists or may be added; an expired lease may be replaced."""
        with self._readers.connection() as connection:
            if consumers.can_add_lease(connection, tenant_id, name, limit):
                return True
        with self._writer.transaction() as connection:
            # Check again under the lock: another process may have added or removed a lease.
            return consumers.can_add_lease(
                connection, tenant_id, name, limit
            ) or consumers.reuse_lease(connection, tenant_id, name)

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """Extend a lease from now; return False if it was lost."""
        with self._writer.transaction() as connection:
            return consumers.renew_lease(connection, lease, seconds)

    def release_lease(self, lease: Lease) -> None:
        """End a lease, unless it was lost."""
        with self._writer.transaction() as connection:
            consumers.release_lease(connection, lease)

    def purge_commands(self, older_than_seconds: float) -> int:
        """Delete old command records in short transactions, and return their number."""
        purged = 0
        while True:
            with self._writer.transaction() as connection:
                deleted = consumers.purge_commands(connection, older_than_seconds, _PURGE_BATCH)
            purged += deleted
            if deleted < _PURGE_BATCH:
                return purged

    # -- wake-ups, checks, lifecycle

    def wait(self, position: int, timeout: float) -> None:
        """Block until the head may have passed a position; it may return early."""
        self._wakeups.wait(position, timeout)

    def verify(self) -> Iterator[Finding]:
        """Check the integrity of the file."""
        with self._readers.connection() as connection:
            return iter(list(checks.verify(connection, self._declarations)))

    def doctor(self) -> Iterator[Finding]:
        """Check the settings and the environment of the file."""
        settings = self._writer.read_settings()
        with self._readers.connection() as connection:
            rules = self._declarations.load_rules(connection)
            return iter(list(checks.doctor(self._file.path, settings, connection, rules)))

    def after_fork(self) -> None:
        """Replace locks and connections in a forked child process."""
        self._writer.after_fork()
        self._readers.after_fork()
        self._wakeups = HeadWatcher(self.head)

    def close(self) -> None:
        """Close all connections; SQLite checkpoints the file with the last one."""
        self._file.close()
        self._wakeups.close()
        self._readers.close()
        self._writer.close()


def _is_rejection(error: Exception) -> bool:
    cause = error.__cause__ if isinstance(error, BackendFailure) else error
    return isinstance(
        cause, sqlite3.IntegrityError | sqlite3.DataError | ValueError | OverflowError
    )


def _make_failure(error: Exception | None) -> BackendFailure:
    if isinstance(error, BackendFailure):
        return error
    return failures.make_permanent_failure(
        f"SQLite cannot store a value of this append ({type(error).__name__}): correct the value"
    )

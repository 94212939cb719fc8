"""The Postgres store: it implements `Store` and owns the connections of a process."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from seriatim.config import Settings
from seriatim.core.decide import DecisionTrace, StaleRules, find_by_id
from seriatim.core.errors import BackendFailure, InvalidArgument, SeriatimError
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, StreamRef
from seriatim.core.ids import hash_key, stream_key
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest, StoredCommand
from seriatim.store.cancellation import make_read_timeout_error
from seriatim.store.common import (
    PageBounds,
    find_append_by_command,
    find_append_by_key,
    make_stream_page,
)
from seriatim.store.contexts import ContextKey, EvaluatedContext
from seriatim.store.port import (
    STREAM_SCAN_MAX,
    BatchAttempt,
    Cursor,
    EventTypeCount,
    EventTypeRange,
    Finding,
    Lease,
    LogClosed,
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
from seriatim.store.postgres.append import ValidatedAppend, run_steps, run_steps_async
from seriatim.store.postgres.checks import doctor, examine_database, verify
from seriatim.store.postgres.connection import (
    Connection,
    Listener,
    ServerInfo,
    build_snapshot_statement,
    connect,
    inspect_server,
    is_dead,
    parse_url,
    set_isolation_level,
)
from seriatim.store.postgres.connection_failures import ServerAddress, translate_connection_error
from seriatim.store.postgres.consumers import PostgresConsumers
from seriatim.store.postgres.declarations import build_rules, declare
from seriatim.store.postgres.failures import LOCK_BUSY, ROLLED_BACK, translate_error
from seriatim.store.postgres.fast_path import PostgresExchange, encode_append, is_groupable
from seriatim.store.postgres.migrate import ensure_schema, restore
from seriatim.store.postgres.queries import PostgresQueries
from seriatim.store.postgres.reader import TenantReader
from seriatim.store.postgres.statements import decode_record, load_store_statements
from seriatim.store.postgres.writer import PostgresWriter

__all__ = ["PostgresStore", "examine_database"]

T = TypeVar("T")
# Operations that store nothing, so that their failure is never ambiguous.
_READS = frozenset({"reading", "verifying", "examining the database"})


class PostgresStore:
    """A log in a Postgres database, shared by any number of processes."""

    name = "postgres"
    recommended_writers = 2

    def __init__(self, url: str, settings: Settings, *, create: bool = True) -> None:
        self._settings = settings
        self.address = parse_url(url, settings)
        self.schema = self.address.schema
        self._sql = load_store_statements(self.schema)
        with connect(self.address) as connection:
            ensure_schema(connection, self.address, create=create)
            self._server_info = inspect_server(connection, self.address, settings)
            self._rules = build_rules(connection.execute(self._sql["list_declarations"]).fetchall())
        self._pools: list[ConnectionPool[Connection]] = []
        self._pool_lock = threading.Lock()
        self._pool_pid = 0
        self._connect_error: SeriatimError | None = None
        self._listener = Listener(lambda: connect(self.address), self.schema)
        self._writer = PostgresWriter(
            self.address, settings, self._open_writer, lambda: self._rules, self._listener.notify
        )
        self._reader = TenantReader(self.schema, self._borrow_connection, settings.read_timeout_s)
        self._consumers = PostgresConsumers(self.schema, self._reader, settings)
        self._queries = PostgresQueries(self.schema, self._reader, lambda: self._rules)

    # -- connections

    def _pool(self) -> ConnectionPool[Connection]:
        """Return the connection pool of this process.

        A forked child adds its own pool and keeps the parent's referenced, but unused.
        """
        with self._pool_lock:
            if not self._pools or self._pool_pid != os.getpid():
                self._pools.append(self._new_pool())
                self._pool_pid = os.getpid()
            return self._pools[-1]

    def _new_pool(self) -> ConnectionPool[Connection]:
        connect_for_pool = self._connect_for_pool

        class ReportingConnection(psycopg.Connection[tuple[Any, ...]]):
            @classmethod
            def connect(cls, conninfo: str = "", **options: Any) -> Any:
                return connect_for_pool(conninfo, **options)

        return ConnectionPool(
            self.address.conninfo,
            connection_class=ReportingConnection,
            min_size=0,  # a process that only appends needs no connection for reads
            max_size=self._settings.pool_size,
            open=True,
            timeout=self._settings.connect_timeout_s,
            kwargs={"autocommit": True, "prepare_threshold": None},
            configure=self._configure_connection,
            check=_check_alive,  # the pool replaces a connection that the server has closed
            name="seriatim-readers",
        )

    def _make_pool_timeout_error(self) -> BackendFailure:
        settings = self._settings
        msg = (
            f"no connection to Postgres at {ServerAddress.of(self.address.conninfo)} was free "
            f"within {settings.connect_timeout_s:g} s: raise pool_size (now {settings.pool_size}) "
            "or connect_timeout_s, and check that the server responds"
        )
        return BackendFailure(msg, details={"ambiguous": False})

    def _connect_for_pool(self, conninfo: str, **options: Any) -> Connection:
        """Open a connection for the pool and remember a failure, which the pool only logs."""
        try:
            return psycopg.Connection.connect(conninfo, **options)
        except psycopg.Error as error:
            self._connect_error = translate_connection_error(error, conninfo)
            raise

    def _configure_connection(self, connection: Connection) -> None:
        set_isolation_level(connection)
        try:
            self._server_info = inspect_server(connection, self.address, self._settings)
        except SeriatimError as error:
            self._connect_error = error  # the pool only logs it
            raise
        self._connect_error = None

    def _open_writer(self) -> tuple[Connection, ServerInfo]:
        connection = connect(self.address)
        try:
            server_info = inspect_server(connection, self.address, self._settings)
        except BaseException:
            connection.close()
            raise
        self._server_info = server_info
        return connection, server_info

    @contextmanager
    def _borrow_connection(self, operation: str = "reading") -> Iterator[Connection]:
        """Borrow a pooled connection for the block, and translate its errors.

        Args:
            operation: The operation, as it appears in messages after "while".

        Raises:
            LogClosed: The log is closed.
            BackendFailure: No connection was available in time, or a statement failed.
            TimedOut: A read exceeded its time limit.

        """
        try:
            with self._pool().connection() as connection:
                yield connection
        except PoolTimeout as error:
            raise self._connect_error or self._make_pool_timeout_error() from error
        except PoolClosed as error:
            raise LogClosed from error
        except psycopg.errors.QueryCanceled as error:
            if self._settings.read_timeout_s is None:
                raise translate_error(error, operation, schema=self.schema) from error
            raise make_read_timeout_error(self._settings.read_timeout_s) from error
        except psycopg.Error as error:
            sent = operation not in _READS
            raise translate_error(error, operation, sent=sent, schema=self.schema) from error

    def _fetch_one(
        self, name: str, parameters: Sequence[Any] = (), *, tenant_id: str | None = None
    ) -> tuple[Any, ...] | None:
        rows = self._reader.fetch_rows(tenant_id, self._sql[name], parameters)
        return rows[0] if rows else None

    def _write(self, operation: str, write: Callable[[Connection], T]) -> T:
        """Run a write on a pooled connection; repeat it until the timeout while a lock is busy.

        It is also repeated after a serialization failure or deadlock. In all these cases the
        server has stored nothing.

        Args:
            operation: The operation, as it appears in messages after "while".
            write: Writes on the connection.

        """
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            try:
                with self._borrow_connection(operation) as connection:
                    return write(connection)
            except BackendFailure as error:
                state = error.details.get("sqlstate")
                retryable = state == LOCK_BUSY or state in ROLLED_BACK
                if not retryable or time.monotonic() >= deadline:
                    raise

    # -- identity and appends

    def identity(self) -> LogIdentity:
        return self._server_info.identity

    def raise_epoch(self) -> LogIdentity:
        self._write(
            "raising the epoch",
            lambda connection: connection.execute(self._sql["raise_epoch"], (True,)),
        )
        row = self._fetch_one("select_identity")
        if row is None:
            msg = (
                f"the table {self.schema}.log has no row, so the log has no identity: restore the "
                "schema from a backup"
            )
            raise BackendFailure(msg, retryable=False)
        identity = LogIdentity(row[0], row[1])
        self._server_info = msgspec.structs.replace(self._server_info, identity=identity)
        return identity

    def prepare_request(self, request: AppendRequest, rules: Rules) -> AppendRequest:
        return msgspec.structs.replace(
            request, encoded=encode_append(request, rules, self._evaluate_contexts)
        )

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        return self._writer.commit_group(group)

    def can_commit_now(self, request: AppendRequest) -> bool:
        return is_groupable(request)

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> list[Outcome] | None:
        exchange = self._writer.begin_append(group)
        return None if exchange is None else exchange.wait(timeout)

    def can_begin_append(self, request: AppendRequest) -> bool:
        return is_groupable(request)

    def begin_append(self, group: Sequence[AppendRequest]) -> PostgresExchange | None:
        return self._writer.begin_append(group)

    def append_in(self, connection: Any, request: AppendRequest) -> Any:
        """Append in the caller's transaction (B12); the lock is held until the caller commits."""
        if isinstance(connection, psycopg.AsyncConnection):
            return self._append_in_async(connection, request)
        if not isinstance(connection, psycopg.Connection):
            msg = f"connection must be a psycopg connection, not {type(connection).__name__}"
            raise InvalidArgument(msg, details={"argument": "connection"})
        _check_in_transaction(connection)
        # A failure is not ambiguous: only the caller's COMMIT stores anything.
        try:
            return _unwrap_single(
                run_steps(connection, self._validated_append(request).build_steps())
            )
        except psycopg.Error as error:
            raise translate_error(error, "appending in the caller's transaction") from error

    async def _append_in_async(
        self, connection: psycopg.AsyncConnection[Any], request: AppendRequest
    ) -> AppendResult:
        _check_in_transaction(connection)
        try:
            steps = self._validated_append(request).build_steps()
            return _unwrap_single(await run_steps_async(connection, steps))
        except psycopg.Error as error:
            raise translate_error(error, "appending in the caller's transaction") from error

    def _validated_append(self, request: AppendRequest) -> ValidatedAppend:
        contexts = request.encoded.contexts
        return ValidatedAppend(self.schema, self._server_info, [request], self._rules, contexts)

    def _evaluate_contexts(
        self, tenant_id: str, contexts: Mapping[ContextKey, Query]
    ) -> dict[ContextKey, EvaluatedContext]:
        """Evaluate contexts up to the current head, before the lock is taken."""
        head = self.head()
        return {
            key: EvaluatedContext(head, self.context_version(tenant_id, query, head))
            for key, query in contexts.items()
        }

    def explain(self, request: AppendRequest) -> DecisionTrace:
        steps = self._validated_append(request).build_explain_steps()
        with (
            self._borrow_connection() as connection,
            connection.transaction(force_rollback=True),
        ):
            connection.execute(build_snapshot_statement(self._settings).encode())
            return run_steps(connection, steps)

    def restore(self, events: Sequence[RestoredEvent]) -> None:
        self._write(
            "restoring",
            lambda connection: restore(
                connection, self.schema, self._server_info, self._settings, events
            ),
        )

    # -- reads

    def head(self) -> int:
        row = self._fetch_one("select_head_and_identity")
        if row is None:
            return 0
        identity = LogIdentity(row[1], row[2])
        if identity != self._server_info.identity:  # another process raised the epoch
            self._server_info = msgspec.structs.replace(self._server_info, identity=identity)
        return int(row[0])

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        return self._queries.read(spec)

    def event(self, tenant_id: str, event_id: str) -> EventRecord | None:
        return find_by_id(tenant_id, event_id, self._find_by_event_key)

    def _find_by_event_key(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        key = uuid.UUID(bytes=event_key)
        row = self._fetch_one("find_event_by_id", (key, tenant_id), tenant_id=tenant_id)
        return None if row is None else decode_record(row)

    def event_id_at(self, position: int) -> str | None:
        row = self._fetch_one("find_event_id", (position,))
        return None if row is None else str(row[0])

    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        find_by_index = partial(self._find_by_index, tenant_id)
        return find_append_by_key(find_by_index, self.read, tenant_id, producer_id, key)

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        stored = self._find_command(tenant_id, hash_key(tenant_id, actor, endpoint, key))
        return find_append_by_command(stored, self.read, tenant_id)

    def _find_by_index(self, tenant_id: str, idempotency_index: bytes) -> EventRecord | None:
        keys = [uuid.UUID(bytes=idempotency_index)]
        row = self._fetch_one("find_stored_keys", (keys,), tenant_id=tenant_id)
        return None if row is None else decode_record(row)

    def _find_command(self, tenant_id: str, command_key: bytes) -> StoredCommand | None:
        keys = [uuid.UUID(bytes=command_key)]
        row = self._fetch_one("find_stored_commands", (keys,), tenant_id=tenant_id)
        return None if row is None else StoredCommand(*row[1:])

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None:
        key = uuid.UUID(bytes=stream_key(tenant_id, *stream))
        row = self._fetch_one("find_last_event", (key,), tenant_id=tenant_id)
        return None if row is None else decode_record(row)

    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]:
        keys = [uuid.UUID(bytes=stream_key(tenant_id, *stream)) for stream in streams]
        rows = self._reader.fetch_rows(tenant_id, self._sql["find_last_events"], (keys,))
        return [None if row[0] is None else decode_record(row) for row in rows]

    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> StreamPage:
        values = {
            "tenant_id": tenant_id,
            "stream_type": stream_type,
            "after": after,
            "limit": limit,
            "scanned": STREAM_SCAN_MAX,
        }
        rows = self._reader.fetch_rows(tenant_id, self._sql["list_streams"], values)
        return make_stream_page(rows, limit)

    def event_types(self, tenant_id: str, names: EventTypeRange) -> list[EventTypeCount]:
        values = names.as_parameters(tenant_id)
        rows = self._reader.fetch_rows(
            tenant_id, self._sql["count_event_types"], values, only_index_scans=True
        )
        return make_type_counts((name, counted, last) for name, counted, last in rows)

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
        page = PageBounds(after, until, limit, max_bytes, newest_first)
        return self._queries.select(tenant_id, query, page)

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        return self._queries.context_version(tenant_id, query, until)

    # -- declarations

    def rules(self) -> Rules:
        with self._borrow_connection() as connection:
            self._rules = build_rules(connection.execute(self._sql["list_declarations"]).fetchall())
        return self._rules

    def declare(self, declaration: Declaration) -> None:
        self._write(
            "declaring",
            lambda connection: declare(
                connection, self.schema, self._server_info, self._settings, declaration
            ),
        )

    # -- consumers

    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        return self._consumers.get_cursor(tenant_id, purpose, name)

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
        page = PageBounds(after, until, limit, newest_first=newest_first)
        return self._queries.count_events_read(tenant_id, query, page)

    def size(self) -> LogSize:
        row = self._fetch_one("select_size")
        return LogSize() if row is None else LogSize(*row)

    def tenants(self, limit: int) -> list[str]:
        return [
            row[0] for row in self._reader.fetch_rows(None, self._sql["list_tenants"], (limit,))
        ]

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        return self._consumers.list_cursors(tenant_id, purpose)

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        return self._consumers.list_cursors_after(tenant_id, purpose, after, limit)

    def can_add_cursor(self, tenant_id: str, purpose: str, name: str, limit: int) -> bool:
        return self._consumers.can_add_cursor(tenant_id, purpose, name, limit)

    def add_cursor(self, cursor: Cursor) -> Cursor:
        return self._write(
            "creating a cursor",
            lambda connection: self._consumers.add_cursor(connection, cursor),
        )

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        self._write(
            "moving a cursor",
            lambda connection: self._consumers.put_cursor(connection, cursor, lease, reset=reset),
        )

    def skip_batch(
        self, cursor: Cursor, skipped: SkippedBatch, *, after: int, lease: Lease | None
    ) -> None:
        self._write(
            "skipping a batch",
            lambda connection: self._consumers.skip_batch(
                connection, cursor, skipped, after, lease
            ),
        )

    def put_attempt(
        self,
        lease: Lease,
        name: str,
        attempt: BatchAttempt,
        *,
        error: str | None = None,
        park: bool = False,
    ) -> None:
        self._write(
            "recording an attempt of a subscription",
            lambda connection: self._consumers.put_attempt(
                connection, lease, name, attempt, error=error, park=park
            ),
        )

    def resume_attempts(self, tenant_id: str, name: str, position: int) -> bool:
        return self._write(
            "resuming a subscription",
            lambda connection: self._consumers.resume_attempts(
                connection, tenant_id, name, position
            ),
        )

    def subscriptions(
        self, tenant_id: str, after: str, limit: int, *, name: str | None = None
    ) -> list[SubscriptionState]:
        return self._consumers.list_subscriptions(tenant_id, after, limit, name)

    def skipped_batches(
        self, tenant_id: str, name: str, after: int, limit: int
    ) -> list[SkippedBatch]:
        return self._consumers.list_skipped_batches(tenant_id, name, after, limit)

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        with self._borrow_connection("recording a subscription's failure") as connection:
            self._consumers.record_failure(connection, lease, name, failures, error)

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        return self._write(
            "claiming a lease",
            lambda connection: self._consumers.claim_lease(
                connection, tenant_id, name, owner, seconds
            ),
        )

    def reserve_lease_slot(self, tenant_id: str, name: str, limit: int) -> bool:
        if self._consumers.can_add_lease(tenant_id, name, limit):
            return True
        return self._write(
            "replacing an expired lease",
            lambda connection: self._consumers.reuse_lease(connection, tenant_id, name),
        )

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        return self._write(
            "renewing a lease",
            lambda connection: self._consumers.renew_lease(connection, lease, seconds),
        )

    def release_lease(self, lease: Lease) -> None:
        self._write(
            "releasing a lease", lambda connection: self._consumers.release_lease(connection, lease)
        )

    def purge_commands(self, older_than_seconds: float) -> int:
        return self._write(
            "purging command records",
            lambda connection: self._consumers.purge_commands(connection, older_than_seconds),
        )

    # -- wake-ups, checks, lifecycle

    def wait(self, position: int, timeout: float) -> None:
        # Count notifications before reading the head: one that arrives in between is not missed.
        count = self._listener.begin_wait()
        if self.head() <= position:
            self._listener.wait(count, timeout)

    def verify(self) -> Iterator[Finding]:
        with self._borrow_connection("verifying") as connection:
            yield from verify(connection, self.schema)

    def doctor(self) -> Iterator[Finding]:
        with self._borrow_connection("examining the database") as connection:
            yield from doctor(connection, self.schema, lambda: connect(self.address))

    def after_fork(self) -> None:
        self._pool_lock = threading.Lock()
        self._writer.after_fork()
        self._listener.after_fork()

    def close(self) -> None:
        self._listener.close()
        self._writer.close()
        with self._pool_lock:
            if self._pools and self._pool_pid == os.getpid():
                self._pools[-1].close()


def _check_alive(connection: Connection) -> None:
    """Reject a pooled connection that the server has closed, without a round trip."""
    if is_dead(connection):
        msg = "the connection was closed by the server"
        raise psycopg.OperationalError(msg)


def _check_in_transaction(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> None:
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if idle and connection.autocommit:
        msg = "connection is in autocommit mode: begin a transaction before the append"
        raise InvalidArgument(msg, details={"argument": "connection"})


def _unwrap_single(outcomes: list[Outcome]) -> AppendResult:
    [outcome] = outcomes
    if isinstance(outcome, SeriatimError | StaleRules):
        raise outcome
    return outcome

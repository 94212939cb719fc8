"""The log in one SQLite file: a table of contents of its acts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from seriatim.core.decide import find_by_id
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.event import EventRecord, LogIdentity, StreamRef
from seriatim.core.ids import hash_key, stream_key
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.query import Query
from seriatim.core.request import Request, StoredCommand
from seriatim.store.grouping import Placed, finish
from seriatim.store.port import (
    Cursor,
    Finding,
    Lease,
    Outcome,
    ReadSpec,
    Restored,
    StoredAppend,
    StreamSummary,
    SubscriptionState,
)
from seriatim.store.reading import append_by_command, append_by_key
from seriatim.store.sqlite import (
    appends,
    checks,
    consumers,
    failures,
    forking,
    plain,
    queries,
    reads,
    restoring,
    schema,
    view,
)
from seriatim.store.sqlite.declarations import Declarations
from seriatim.store.sqlite.file import File
from seriatim.store.sqlite.readers import Readers
from seriatim.store.sqlite.statements import SQL
from seriatim.store.sqlite.waiting import Wakeups
from seriatim.store.sqlite.writer import Writer

_PURGE_MOST = 10_000


class SqliteStore:
    """One file, shared by any number of processes of one machine."""

    name = "sqlite"
    best_writers = 1

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        busy_timeout_s: float = 10.0,
        readers: int = 4,
        read_timeout_s: float | None = None,
    ) -> None:
        self._file = File(path, busy_timeout_s)
        self._writer = Writer(self._file)
        self._readers = Readers(self._file, readers, read_timeout_s)
        self._declarations = Declarations()
        self._wakeups = Wakeups(self.head)
        try:
            schema.ensure(self._file, self._writer, create=create)
        except BaseException:
            self._writer.close()
            raise
        forking.watch(self._writer)
        forking.watch(self._readers)

    # -- the log itself

    def identity(self) -> LogIdentity:
        """Return which log this is."""
        with self._readers.connection() as connection:
            return LogIdentity(*connection.execute(SQL["identity"]).fetchone())

    def raise_epoch(self) -> LogIdentity:
        """Mark that the log's past was restored, so that consumers notice."""
        with self._writer.transaction() as connection:
            connection.execute(SQL["raise_epoch"])
            return LogIdentity(*connection.execute(SQL["identity"]).fetchone())

    def append(self, group: Sequence[Request]) -> list[Outcome]:
        """Commit a group, giving each request its own answer; one never fails another."""
        refusal: Exception | None = None
        for way in (self._append_plain, self._append_trusting, self._append_decided):
            try:
                outcomes = way(group)
            except (BackendFailure, ValueError, OverflowError) as error:
                if not _refused(error):
                    raise
                refusal = error
            else:
                if outcomes:
                    return outcomes
        # What the database itself refuses is one request's doing: find out whose.
        if len(group) == 1:
            return [_as_failure(refusal)]
        return [outcome for request in group for outcome in self.append([request])]

    def _append_plain(self, group: Sequence[Request], *, patient: bool = True) -> list[Outcome]:
        """Commit a group in one statement; no outcome if it is not plain, or the rules changed."""
        rules = self._declarations.known
        if not plain.is_plain(group, rules):
            return []
        appending = plain.Plain(group, rules)
        places = self._writer.at_once(appending.insert, appending.places, patient=patient)
        if places is None:
            return []
        return self._told(places, appending.recorded_us)

    def _append_trusting(self, group: Sequence[Request]) -> list[Outcome]:
        return self._append_decided(group, trusting=True)

    def _append_decided(self, group: Sequence[Request], *, trusting: bool = False) -> list[Outcome]:
        with self._writer.transaction() as connection:
            recorded_us = consumers.now_us()
            answers = appends.append(
                connection, group, self._declarations, recorded_us, trusting=trusting
            )
        return self._told(answers, recorded_us)

    def _told(self, answers: Sequence[Placed | Outcome], recorded_us: int) -> list[Outcome]:
        """Wake those who wait for what was committed, and return its receipts."""
        for answer in reversed(answers):
            if isinstance(answer, Placed):
                self._wakeups.tell(answer.first_position + len(answer.request.events) - 1)
                break
        return finish(answers, recorded_us)

    def packed(self, request: Request, rules: Rules) -> Request:
        """Look at the request's contexts, in its caller's thread and before any lock."""
        del rules
        if not view.has_contexts(request):  # rows are made quickly enough under the lock
            return request
        with self._readers.bounded() as connection:
            known = self._declarations.rules(connection)
            return msgspec.structs.replace(request, packed=view.foresee(connection, request, known))

    def at_once(self, request: Request, timeout: float) -> Outcome | None:
        """Commit a plain append here and now, unless somebody else is writing."""
        del timeout  # it never waits
        try:
            outcomes = self._append_plain([request], patient=False)
        except (BackendFailure, ValueError, OverflowError) as error:
            if not _refused(error):
                raise
            return None
        return outcomes[0] if outcomes else None

    def light(self, request: Request) -> bool:
        """Say no: there is no server."""
        del request
        return False

    def begin(self, group: Sequence[Request]) -> None:
        """There is no server."""
        del group

    def append_in(self, connection: Any, request: Request) -> Any:
        """Refuse: SQLite's one writer is the log's own."""
        del connection, request
        msg = "only a Postgres log can append in the caller's own transaction"
        raise InvalidArgument(msg, details={"argument": "connection"})

    def restore(self, events: Sequence[Restored]) -> None:
        """Store events of an archive as they were, right behind the head, or none of them."""
        with self._writer.transaction() as connection:
            restoring.restore(connection, events)
        self._wakeups.tell(events[-1].position)

    # -- reads

    def head(self) -> int:
        """Return the highest position, 0 for an empty log."""
        with self._readers.connection() as connection:
            return view.head(connection)

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of a read."""
        with self._readers.bounded() as connection:
            return reads.read(connection, spec)

    def event(self, tenant_id: str, event_id: str) -> EventRecord | None:
        """Return the event with an id."""
        with self._readers.connection() as connection:
            return find_by_id(tenant_id, event_id, view.by_event_key(connection))

    def event_id_at(self, position: int) -> str | None:
        """Return the id of the event at a position."""
        with self._readers.connection() as connection:
            row = connection.execute(SQL["event_id_at"], (position,)).fetchone()
            return None if row is None else str(row[0])

    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        """Return the append stored under a key."""
        return append_by_key(self._by_index, self.read, tenant_id, producer_id, key)

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        """Return the append stored under a command."""
        stored = self._command(hash_key(tenant_id, actor, endpoint, key))
        return append_by_command(stored, self.read, tenant_id)

    def _by_index(self, idempotency_index: bytes) -> EventRecord | None:
        with self._readers.connection() as connection:
            return view.record(connection, "by_key", (idempotency_index,))

    def _command(self, command_key: bytes) -> StoredCommand | None:
        with self._readers.connection() as connection:
            row = connection.execute(SQL["command"], (command_key,)).fetchone()
            return None if row is None else StoredCommand(*row)

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream."""
        with self._readers.connection() as connection:
            return view.record(connection, "last_of_stream", (stream_key(tenant_id, *stream),))

    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]:
        """Return the last event of each of many streams."""
        return [self.last_of_stream(tenant_id, stream) for stream in streams]

    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> list[StreamSummary]:
        """Return streams in the order in which they began."""
        values = {"tenant": tenant_id, "stream_type": stream_type, "after": after, "limit": limit}
        with self._readers.bounded() as connection:
            return [StreamSummary(*row) for row in connection.execute(SQL["streams"], values)]

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
        """Return the first records in (after, until] that match a query."""
        with self._readers.bounded() as connection:
            rules = self._declarations.rules(connection)
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
        """Return the highest position up to `until` that matches a query."""
        with self._readers.bounded() as connection:
            rules = self._declarations.rules(connection)
            return queries.context_version(
                connection, tenant_id, query, rules, after=0, until=until
            )

    # -- declarations

    def rules(self) -> Rules:
        """Return the declarations that hold now."""
        with self._readers.connection() as connection:
            return self._declarations.rules(connection)

    def declare(self, declaration: Declaration) -> None:
        """Store a declaration unless it is stored already."""
        with self._writer.transaction() as connection:
            self._declarations.declare(connection, declaration)

    # -- consumers

    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        """Return how far a consumer has come."""
        with self._readers.connection() as connection:
            return consumers.cursor(connection, tenant_id, purpose, name)

    def tenants(self, limit: int) -> list[str]:
        """Return the tenants that have events, by name."""
        with self._readers.bounded() as connection:
            return [row[0] for row in connection.execute(SQL["tenants"], (limit,))]

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        """Return how far all consumers of one purpose have come."""
        with self._readers.connection() as connection:
            return consumers.cursors(connection, tenant_id, purpose)

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        """Return a page of cursors by name."""
        with self._readers.connection() as connection:
            return consumers.cursors_after(connection, tenant_id, purpose, after, limit)

    def cursor_room(self, tenant_id: str, purpose: str, name: str, at_most: int) -> bool:
        """Tell whether a cursor is there already or may be made beside so many."""
        with self._readers.connection() as connection:
            return consumers.cursor_room(connection, tenant_id, purpose, name, at_most)

    def add_cursor(self, cursor: Cursor) -> Cursor:
        """Store a cursor unless its consumer has one; return the one that is stored."""
        with self._writer.transaction() as connection:
            return consumers.add_cursor(connection, cursor)

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        """Store a cursor; backwards only with `reset`, under a lost lease never."""
        with self._writer.transaction() as connection:
            consumers.put_cursor(connection, cursor, lease, reset=reset)

    def subscriptions(self, tenant_id: str, after: str, limit: int) -> list[SubscriptionState]:
        """Return a page of durable subscriptions by name."""
        with self._readers.connection() as connection:
            return consumers.subscriptions(connection, tenant_id, after, limit)

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        """Store the last error of a subscription, if its lease still holds."""
        with self._writer.transaction() as connection:
            consumers.record_failure(connection, lease, name, failures, error)

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        """Take the right to do one named thing for a while."""
        with self._writer.transaction() as connection:
            return consumers.claim_lease(connection, tenant_id, name, owner, seconds)

    def lease_room(self, tenant_id: str, name: str, at_most: int) -> bool:
        """Tell whether a lease is known by name or may be, in the place of an ended one."""
        with self._readers.connection() as connection:
            if consumers.lease_room(connection, tenant_id, name, at_most):
                return True
        with self._writer.transaction() as connection:
            return consumers.lease_room(
                connection, tenant_id, name, at_most
            ) or consumers.reuse_lease(connection, tenant_id, name)

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """Keep that right for longer, if nobody else took it."""
        with self._writer.transaction() as connection:
            return consumers.extend_lease(connection, lease, seconds)

    def release_lease(self, lease: Lease) -> None:
        """Give that right back."""
        with self._writer.transaction() as connection:
            consumers.extend_lease(connection, lease, None)

    def purge_commands(self, older_than_seconds: float) -> int:
        """Forget old commands, and tell how many they were."""
        purged = 0
        while True:
            with self._writer.transaction() as connection:
                some = consumers.purge_commands(connection, older_than_seconds, _PURGE_MOST)
            purged += some
            if some < _PURGE_MOST:
                return purged

    # -- hints, checks, life

    def wait(self, position: int, timeout: float) -> None:
        """Sleep until the head may have passed a position: a hint, never a promise."""
        self._wakeups.wait(position, timeout)

    def verify(self) -> Iterator[Finding]:
        """Return what the file can prove of itself."""
        with self._readers.connection() as connection:
            return iter(list(checks.verify(connection, self._declarations)))

    def doctor(self) -> Iterator[Finding]:
        """Return what the settings and surroundings of the file cost or endanger."""
        settings = self._writer.settings()
        with self._readers.connection() as connection:
            rules = self._declarations.rules(connection)
            return iter(list(checks.doctor(self._file.path, settings, connection, rules)))

    def after_fork(self) -> None:
        """Begin anew in a child process, with connections of its own."""
        self._writer.after_fork()
        self._readers.after_fork()
        self._wakeups = Wakeups(self.head)

    def close(self) -> None:
        """Close every connection; the last one to close tidies the file up."""
        self._file.close()
        self._wakeups.close()
        self._readers.close()
        self._writer.close()


def _refused(error: Exception) -> bool:
    cause = error.__cause__ if isinstance(error, BackendFailure) else error
    return isinstance(
        cause, sqlite3.IntegrityError | sqlite3.DataError | ValueError | OverflowError
    )


def _as_failure(error: Exception | None) -> BackendFailure:
    if isinstance(error, BackendFailure):
        return error
    return failures.lasting(f"SQLite cannot hold a value of this append: {type(error).__name__}")

"""Group commit on Postgres: the fast path where possible, otherwise the validated path.

Fast path: one statement takes the lock, numbers and checks the events and inserts the whole group.
It and the unique indexes reject every conflict. After a rejection, and for requests with
a context or a command, the validated path decides each request in `core` while the lock is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from seriatim.config import Settings
from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult
from seriatim.core.kinds import Rules
from seriatim.core.request import AppendRequest
from seriatim.store.port import Outcome
from seriatim.store.postgres.append import ValidatedAppend, run_steps
from seriatim.store.postgres.connection import (
    Connection,
    LogAddress,
    ServerInfo,
    build_timeout_statement,
    get_statement_timeout_ms,
    is_dead,
    make_lock_timeout_error,
    to_milliseconds,
)
from seriatim.store.postgres.failures import (
    CANCELLED,
    LOCK_BUSY,
    NEEDS_VALIDATED_PATH,
    ROLLED_BACK,
    translate_error,
)
from seriatim.store.postgres.fast_path import (
    APPEND_OIDS,
    EncodedAppend,
    GroupStatement,
    PostgresExchange,
    build_receipts,
    is_fast_path,
    is_groupable,
    send_group,
)
from seriatim.store.postgres.statements import load_store_statements

WriterConnection = tuple[Connection, ServerInfo]
_IDLE_MAX = 4  # connections kept open for the next groups


class PostgresWriter:
    """Commits groups of appends, each on a connection used by one group at a time."""

    def __init__(
        self,
        address: LogAddress,
        settings: Settings,
        opener: Callable[[], WriterConnection],
        rules: Callable[[], Rules],
        notify: Callable[[], None],
    ) -> None:
        self._address = address
        self._settings = settings
        self._opener = opener
        self._rules = rules
        self._notify = notify
        self._sql = load_store_statements(address.schema)
        self._append = GroupStatement(
            b"seriatim_append_events",
            self._sql["append_events"].encode(),
            APPEND_OIDS,
            self._sql["set_statement_timeout"].encode(),
            get_statement_timeout_ms(settings),
        )
        self._wait_ms = to_milliseconds(settings.lock_wait_s)
        # One round trip for BEGIN and the limits. The level is named because the default of the
        # server, database or role may be higher, which the validated path does not allow.
        self._begin = (
            f"begin isolation level read committed;{build_timeout_statement(settings)}".encode()
        )
        self._reset()

    def _open(self) -> WriterConnection:
        """Open a connection; on a direct one, prepare the statement of the fast path."""
        connection, server_info = self._opener()
        if server_info.is_direct:
            try:
                self._append.prepare(connection, server_info)
            except psycopg.Error as error:
                connection.close()
                raise translate_error(error, "appending", schema=self._address.schema) from error
        return connection, server_info

    def _reset(self) -> None:
        # Used without a lock: append and pop of a list are atomic, and an append takes both.
        self._idle: list[WriterConnection] = []
        self._closed = False

    def _take_idle(self) -> WriterConnection | None:
        """Take an idle connection that is alive, None if there is none."""
        while True:
            try:
                pair = self._idle.pop()  # the one used last, which is the least likely to be dead
            except IndexError:
                return None
            if not is_dead(pair[0]):
                return pair
            pair[0].close()

    def _give_back(self, pair: WriterConnection) -> None:
        if self._closed or pair[0].closed or len(self._idle) >= _IDLE_MAX:
            pair[0].close()
        else:
            self._idle.append(pair)

    @contextmanager
    def _borrow_connection(self) -> Iterator[WriterConnection]:
        pair = self._take_idle() or self._open()
        try:
            yield pair
        finally:
            self._give_back(pair)

    def begin_append(self, group: Sequence[AppendRequest]) -> PostgresExchange | None:
        """Send a group on the fast path without waiting for the reply.

        Returns:
            The exchange in flight; None if a request needs the validated path, or if no idle
            connection exists.

        """
        if len(group) == len(group[0].events) == 1:
            can_send = is_fast_path(group[0])
        else:
            check = is_fast_path if len(group) == 1 else is_groupable
            can_send = all(map(check, group)) and not has_duplicates(group)
        if not can_send:
            return None
        pair = self._take_idle()
        if pair is None:
            return None
        connection, server_info = pair
        if not server_info.sees_commits_during_lock_wait:
            # The implicit transaction begins at the default level, with a snapshot older than the
            # lock.
            self._give_back(pair)
            return None
        try:
            reply = send_group(connection, self._append, server_info, self._wait_ms, group)
        except psycopg.Error:
            connection.close()  # the statement was not sent completely, so nothing is stored
            return None
        return PostgresExchange(
            connection, reply, group, lambda: self._release(pair), self._settings
        )

    def _release(self, pair: WriterConnection) -> None:
        self._give_back(pair)
        self._notify()

    def commit_group(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Commit a group, and wake the readers of this process.

        The requests that can use the fast path share one statement, the others one transaction.

        Returns:
            One outcome per request, in order.

        """
        paths: dict[str, list[int]] = {"fast": [], "validated": []}
        for index, request in enumerate(group):
            encoded: EncodedAppend = request.encoded
            # An append that requires a certain head cannot share a statement with others.
            fast = encoded.rows and (encoded.required_head is None or len(group) == 1)
            paths["fast" if fast else "validated"].append(index)
        # The statement refuses such requests only as a group; `decide` answers each of them.
        fast_requests = [group[index] for index in paths["fast"]]
        if has_duplicates(fast_requests):
            paths["validated"] = sorted(paths["validated"] + paths["fast"])
            paths["fast"] = []
        outcomes: dict[int, Outcome] = {}
        for path, indexes in paths.items():
            if indexes:
                requests = [group[index] for index in indexes]
                outcomes.update(zip(indexes, self._commit_on(path, requests), strict=True))
        self._notify()
        return [outcomes[index] for index in range(len(group))]

    def _commit_on(self, path: str, requests: list[AppendRequest]) -> list[Outcome]:
        """Commit on one path; retry while the lock is busy, and fall back to the validated path."""
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            # Another connection for each attempt: the failed one may be lost.
            try:
                with self._borrow_connection() as (connection, server_info):
                    try:
                        if path == "fast" and server_info.sees_commits_during_lock_wait:
                            return self._commit_fast(connection, server_info, requests)
                        return self._commit_validated(connection, server_info, requests)
                    except psycopg.Error as error:
                        retry = error.sqlstate == LOCK_BUSY or error.sqlstate in ROLLED_BACK
                        if error.sqlstate in NEEDS_VALIDATED_PATH and path != "validated":
                            path = "validated"
                        elif error.sqlstate == CANCELLED:  # by the server, which stored nothing
                            return [make_lock_timeout_error(self._settings)] * len(requests)
                        elif not retry or time.monotonic() >= deadline:
                            failed = translate_error(
                                error, "appending", sent=True, schema=self._address.schema
                            )
                            return [failed] * len(requests)
            except SeriatimError as error:
                return [error] * len(requests)

    def _commit_fast(
        self, connection: Connection, server_info: ServerInfo, requests: list[AppendRequest]
    ) -> list[Outcome]:
        reply = send_group(connection, self._append, server_info, self._wait_ms, requests)
        # Without a deadline: the server ends the statement by its own timeout (B14), and the caller
        # of a queued append waits no longer than its own. Keepalives end a lost connection.
        reply.wait()
        return build_receipts(requests, *reply.read_numbers())

    def _commit_validated(
        self, connection: Connection, server_info: ServerInfo, requests: list[AppendRequest]
    ) -> list[Outcome]:
        contexts = {
            key: evaluated
            for request in requests
            for key, evaluated in request.encoded.contexts.items()
        }
        schema, settings = self._address.schema, self._settings
        append = ValidatedAppend(schema, server_info, requests, self._rules(), contexts, settings)
        try:
            connection.execute(self._begin)
            outcomes = run_steps(connection, append.build_steps())
        except psycopg.Error as error:
            _roll_back(connection)
            if error.sqlstate in NEEDS_VALIDATED_PATH or error.sqlstate in (LOCK_BUSY, CANCELLED):
                raise
            # COMMIT was not sent yet, so the failure is not ambiguous.
            raise translate_error(error, "appending", schema=self._address.schema) from error
        except BaseException:
            _roll_back(connection)
            raise
        stored = any(
            isinstance(outcome, AppendResult) and not outcome.replayed for outcome in outcomes
        )
        # Outside the block above: a failure of COMMIT is ambiguous, and the caller reports it so.
        connection.execute("commit" if stored else "rollback")
        return outcomes

    def after_fork(self) -> None:
        """Forget the parent's connections; psycopg never closes those of another process."""
        self._reset()

    def close(self) -> None:
        """Close idle connections now, and the others when they are given back."""
        self._closed = True
        while (pair := self._take_idle()) is not None:
            pair[0].close()


def has_duplicates(requests: Sequence[AppendRequest]) -> bool:
    """Return True if one statement cannot store the appends together.

    They share a key or an id, which the unique indexes refuse, or were checked under different
    rules, while the statement checks one version.
    """
    if len(requests) <= 1:
        return False
    ids = [event.event_key for request in requests for event in request.events]
    keys = [
        event.idempotency_index
        for request in requests
        for event in request.events
        if event.idempotency_index is not None
    ]
    return (
        len(set(ids)) != len(ids)
        or len(set(keys)) != len(keys)
        or len({request.rules_version for request in requests}) > 1
    )


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("rollback")
    except psycopg.Error:
        connection.close()

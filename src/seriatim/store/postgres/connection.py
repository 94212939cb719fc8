"""Open connections to a log, check their server, detect closed ones, and listen for events."""

from __future__ import annotations

import select
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from difflib import get_close_matches
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, SeriatimError, TimedOut
from seriatim.core.event import LogIdentity
from seriatim.store.database_url import (
    check_postgres_url,
    join_options,
    make_url_error,
    split_options,
)
from seriatim.store.postgres.binary_format import RowArray, RowArrayDumper
from seriatim.store.postgres.connection_failures import ServerAddress, translate_connection_error
from seriatim.store.postgres.failures import CANCELLED, translate_error
from seriatim.store.postgres.statements import check_schema, get_channel_name, load_store_statements

APPLICATION_NAME = "seriatim"
READ_COMMITTED = "read committed"
DEFAULT_SCHEMA = "seriatim"
MIN_SERVER_VERSION = 130000
_CLOSE_WAIT_MS = 5  # for the end of a connection after an unsolicited message

Connection = psycopg.Connection[tuple[Any, ...]]


class LogAddress(msgspec.Struct, frozen=True):
    """The connection string of a database, and the schema of the log in it."""

    conninfo: str
    schema: str


class ServerInfo(msgspec.Struct, frozen=True):
    """The properties of the log and its server, read when a connection is opened."""

    identity: LogIdentity
    row_array: int  # the oid of the type new_event[]
    row_type: int  # the oid of the type new_event
    isolation: str = READ_COMMITTED  # the default of transactions
    is_direct: bool = False  # whether the session is ours alone, so that it keeps our state

    @property
    def sees_commits_during_lock_wait(self) -> bool:
        """Whether a single statement sees events committed while it waited for the lock."""
        return self.isolation == READ_COMMITTED

    @property
    def lock_key(self) -> int:
        """The key of the log's advisory lock, derived from its id, so no two logs share it."""
        return int.from_bytes(uuid.UUID(self.identity.log_id).bytes[8:], "big", signed=True)


def parse_url(url: str, settings: Settings) -> LogAddress:
    """Split the `schema` option from a URL and add the connection options that Seriatim needs.

    Args:
        url: A Postgres URL; the option `schema` names the schema of the log.
        settings: The connect timeout.

    Raises:
        InvalidArgument: The URL is malformed or has an unknown option.

    """
    check_postgres_url(url)
    base, options = split_options(url)
    schema = check_schema(options.pop("schema", DEFAULT_SCHEMA))
    url_options = _parse_conninfo(join_options(base, options))
    if url_options is None:
        raise make_url_error(_find_misspelled(options))
    defaults = {
        # libpq advises against less than 2 seconds.
        "connect_timeout": str(max(2, round(settings.connect_timeout_s))),
        # Notice a server that has vanished (B14): on an idle connection after 5 + 3 * 2 seconds,
        # with unacknowledged data after 15 seconds.
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "15000",
        # A standby lags: it must not evaluate conditions or advance tails.
        "target_session_attrs": "read-write",
    }
    merged = {**defaults, **url_options, "application_name": APPLICATION_NAME}
    return LogAddress(make_conninfo("", **merged), schema)


def _parse_conninfo(url: str) -> dict[str, Any] | None:
    """Parse a URL with libpq; drop its error, which may quote a password."""
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return None


def _find_misspelled(options: Mapping[str, str]) -> str | None:
    """Return the first misspelled libpq option; any other name may be part of a password."""
    known = [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]
    return next(
        (name for name in options if name not in known and get_close_matches(name, known)), None
    )


def connect(address: LogAddress) -> Connection:
    """Open a connection in autocommit mode.

    The driver uses no named prepared statements and no session state, so it works through a
    transaction pooler.

    Raises:
        BackendFailure: The connection failed; the message names the cause and the cure.

    """
    try:
        connection = psycopg.connect(address.conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        # Without the cause: the driver's message may quote a password.
        raise translate_connection_error(error, address.conninfo) from None
    connection.adapters.register_dumper(RowArray, RowArrayDumper)
    set_isolation_level(connection)
    return connection


def set_isolation_level(connection: Connection) -> None:
    """Make transactions of a connection begin at READ COMMITTED, whatever the server's default.

    The driver names the level at each BEGIN, so there is no session state that a pooler could lose.
    """
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def check_server_version(connection: Connection, address: LogAddress) -> None:
    """Raise `BackendFailure` if the server is too old, before it runs any statement."""
    version = connection.info.server_version
    if version < MIN_SERVER_VERSION:
        server = ServerAddress.of(address.conninfo)
        msg = (
            f"Postgres {MIN_SERVER_VERSION // 10000} or newer is required, but the server at "
            f"{server} has version {version // 10000}: upgrade it, or connect to another server"
        )
        raise BackendFailure(msg, retryable=False)


def inspect_server(connection: Connection, address: LogAddress, settings: Settings) -> ServerInfo:
    """Check that a connection is suitable for a log, and read the properties of log and server.

    If the server's fingerprint differs from the stored one (after a restore or a promotion), the
    epoch is raised.

    Args:
        connection: A new connection.
        address: The address of the log.
        settings: Whether asynchronous commits are allowed.

    Raises:
        BackendFailure: The server is too old, is a standby, or may lose acknowledged events; or
            there is no log in the schema.

    """
    check_server_version(connection, address)
    statements = load_store_statements(address.schema)
    try:
        row = connection.execute(statements["select_server_info"]).fetchone()
    except psycopg.Error as error:
        raise translate_error(error, "opening the log", schema=address.schema) from error
    if row is None:
        msg = f"schema {address.schema} exists but contains no log: run seriatim init"
        raise BackendFailure(msg, retryable=False)
    log_id, epoch, same_server, standby, synchronous, _, isolation, row_array, row_type, pid = row
    if standby:
        server = ServerAddress.of(address.conninfo)
        msg = (
            f"the server at {server} is a standby, which accepts no appends: connect to the primary"
        )
        raise BackendFailure(msg)
    if synchronous == "off" and not settings.allow_async_commit:
        msg = (
            "synchronous_commit is off, so a crash could lose acknowledged events: turn it on for "
            "this role, or set allow_async_commit=True to accept the loss"
        )
        raise BackendFailure(msg, retryable=False)
    if not same_server:
        # Nothing is returned if another process has raised it meanwhile, by one.
        raised = connection.execute(statements["raise_epoch"], (False,)).fetchone()
        epoch = raised[0] if raised and raised[0] else epoch + 1
    # A pooler answers with a process id of its own, by which it later knows what to cancel.
    is_direct = pid == connection.pgconn.backend_pid
    return ServerInfo(LogIdentity(log_id, epoch), row_array, row_type, isolation, is_direct)


def is_dead(connection: Connection) -> bool:
    """Return True if an idle connection was closed by the server; nothing is sent.

    Checking before use spares the append an ambiguous failure: a statement sent on a closed
    connection may or may not have arrived.
    """
    if connection.closed:
        return True
    poller = select.poll()  # select() cannot handle descriptors from 1024 on
    poller.register(connection.fileno(), select.POLLIN)
    wait_ms = 0
    while poller.poll(wait_ms):
        try:
            connection.pgconn.consume_input()
        except psycopg.Error:
            return True
        if connection.pgconn.status != psycopg.pq.ConnStatus.OK:
            return True
        # An unsolicited message, such as a shutdown notice, is often followed by the close.
        wait_ms = _CLOSE_WAIT_MS
    return False


def to_milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, at least 1: Postgres takes 0 as no limit."""
    return max(1, round(seconds * 1000))


def build_timeout_statement(settings: Settings) -> str:
    """Return the statements that limit lock waits and idle time of a transaction."""
    return (
        f"set local lock_timeout = {to_milliseconds(settings.lock_wait_s)};"
        f"set local idle_in_transaction_session_timeout = {to_milliseconds(settings.lock_hold_s)}"
    )


def build_snapshot_statement(settings: Settings) -> str:
    """Return the statements that make a transaction a bounded, read-only snapshot."""
    timeout_ms = 0 if settings.read_timeout_s is None else to_milliseconds(settings.read_timeout_s)
    return (
        "set transaction isolation level repeatable read, read only;"
        f"set local statement_timeout = {timeout_ms};"
        f"set local idle_in_transaction_session_timeout = {to_milliseconds(settings.lock_hold_s)}"
    )


def get_statement_timeout_ms(settings: Settings) -> int:
    """Return the time limit of one statement under a lock, in milliseconds."""
    return to_milliseconds(settings.lock_wait_s + settings.lock_hold_s)


@contextmanager
def bounded_transaction(connection: Connection, settings: Settings) -> Iterator[None]:
    """Run the block in a transaction with limits on lock waits, idle time and statements.

    Raises:
        TimedOut: The server cancelled a statement.

    """
    timeout_ms = get_statement_timeout_ms(settings)
    try:
        with connection.transaction():
            connection.execute(
                f"{build_timeout_statement(settings)};"
                f"set local statement_timeout = {timeout_ms}".encode()
            )
            yield
    except psycopg.errors.QueryCanceled as error:
        raise make_lock_timeout_error(settings) from error


@contextmanager
def locked_transaction(
    connection: Connection, schema: str, server_info: ServerInfo, settings: Settings
) -> Iterator[None]:
    """Run the block in a bounded transaction that holds the log's lock.

    Raises:
        TimedOut: The server cancelled a statement.

    """
    with bounded_transaction(connection, settings):
        connection.execute(load_store_statements(schema)["lock_log"], (server_info.lock_key,))
        yield


def make_lock_timeout_error(settings: Settings) -> TimedOut:
    """Return the error for work under the log's lock that the server cancelled."""
    msg = (
        f"cancelled after {get_statement_timeout_ms(settings) / 1000:g} s (lock_wait_s plus "
        "lock_hold_s), because other writers wait for the log's lock; nothing was stored: append "
        "fewer events or tags at a time, or raise lock_hold_s"
    )
    return TimedOut(msg, details={"sqlstate": CANCELLED, "ambiguous": False})


_CLOSE_CHECK_S = 0.5  # between two checks whether the log was closed
_RETRY_S = 1.0  # after a lost connection; meanwhile readers poll


class Listener:
    """One thread that listens on behalf of all waiting threads; the first wait starts it."""

    def __init__(self, connect: Callable[[], Connection], schema: str) -> None:
        self._connect = connect
        self._channel = get_channel_name(schema)
        self._reset()

    def _reset(self) -> None:
        self._notified = threading.Condition()
        # A count, not a flag: a notification between `begin_wait` and `wait` must not be lost.
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def begin_wait(self) -> int:
        """Return the current notification count to pass to `wait`; start the thread if needed."""
        with self._notified:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="seriatim-listener", daemon=True
                )
                self._thread.start()
            return self._count

    def wait(self, count: int, timeout: float) -> None:
        """Block until a notification arrives after `count`, at most `timeout` seconds."""
        with self._notified:
            self._notified.wait_for(lambda: self._count != count or self._closed.is_set(), timeout)

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self._notified:
            self._count += 1
            self._notified.notify_all()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(self._connect()) as connection:
                    connection.execute(f'listen "{self._channel}"')
                    self.notify()  # notifications before LISTEN were missed
                    self._listen(connection)
            except (psycopg.Error, SeriatimError):
                self._closed.wait(_RETRY_S)

    def _listen(self, connection: Connection) -> None:
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=_CLOSE_CHECK_S, stop_after=1):
                self.notify()

    def after_fork(self) -> None:
        """Reset the state in a forked child; the thread exists only in the parent."""
        # The condition is replaced as well: the parent's thread may have held it during the fork.
        self._reset()

    def close(self) -> None:
        """Stop the thread and wake all waiting threads."""
        self._closed.set()
        self.notify()
        if self._thread is not None:
            self._thread.join(timeout=5)

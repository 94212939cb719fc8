"""Read connections from Spark processes to a log's database, through ADBC (Arrow, not rows)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import adbc_driver_manager as adbc
import adbc_driver_postgresql as postgres
import adbc_driver_sqlite as sqlite
import msgspec
import pyarrow as pa

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, InvalidArgument, SeriatimError
from seriatim.factory import sqlite_path
from seriatim.store.database_url import join_options, split_options
from seriatim.store.postgres.connection import APPLICATION_NAME, parse_url
from seriatim.store.postgres.connection_failures import make_connection_failure, redact_secrets
from seriatim.store.postgres.failures import find_remedy
from seriatim.store.postgres.statements import load_postgres_statements
from seriatim.store.sqlite.statements import load_sqlite_statements

BATCH_BYTES = 2 * 1024 * 1024  # fits into a processor's cache
# Few rows per batch of the SQLite driver, which has no limit in bytes: a payload may be a megabyte.
SQLITE_BATCH_ROWS = 256

_BUSY_TIMEOUT_MS = 10_000
_POSTGRES_DEFAULTS = {
    "connect_timeout": "10",
    # A server that disappears is noticed after 11 s; the system's own limits take hours.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    # A standby may lag, so the last position it knows is not the head of the log.
    "target_session_attrs": "primary",
}

_CONNECT_FAILED = "Failed to connect:"
# Arrow raises its own error when a result breaks off; the driver raises all other errors.
DRIVER_ERRORS = (adbc.Error, pa.ArrowException, OSError)


class DatabaseAddress(msgspec.Struct, frozen=True):
    """The database of a log, in the form its ADBC driver takes."""

    backend: Literal["postgres", "sqlite"]
    uri: str
    schema: str = ""

    @property
    def statements(self) -> dict[str, str]:
        """The statements of the backend's `scan.sql`, by name."""
        if self.backend == "postgres":
            return dict(load_postgres_statements("scan.sql", self.schema))
        return load_sqlite_statements("scan.sql")


def parse_database_url(url: str) -> DatabaseAddress:
    """Parse the URL of a log.

    Args:
        url: `sqlite:///file` or `postgresql://…`, with the options of a log URL.

    Returns:
        The backend, the driver's URI and, on Postgres, the schema.

    Raises:
        InvalidArgument: The scheme is unknown, or the log is in memory, where other processes
            cannot read it.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        # mode=ro: otherwise SQLite would create a file that does not exist.
        return DatabaseAddress("sqlite", f"{Path(sqlite_path(url)).absolute().as_uri()}?mode=ro")
    if scheme in ("postgresql", "postgres"):
        return _parse_postgres_url(url)
    if scheme == "memory":
        msg = (
            "Spark processes cannot read a log in another process's memory: use SQLite or Postgres"
        )
        raise InvalidArgument(msg, details={"argument": "url"})
    msg = f"unknown backend {scheme!r:.40}: use sqlite:///file or postgresql://…"
    raise InvalidArgument(msg, details={"argument": "url"})


def _parse_postgres_url(url: str) -> DatabaseAddress:
    schema = parse_url(url, Settings()).schema
    base, options = split_options(url)
    options.pop("schema", None)
    merged = {**_POSTGRES_DEFAULTS, **options, "application_name": APPLICATION_NAME}
    return DatabaseAddress("postgres", join_options(base, merged), schema)


class ReadConnection:
    """A read-only connection on ADBC's low-level API; its DB-API module would import pandas."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        driver = postgres if address.backend == "postgres" else sqlite
        self._database = driver.connect(address.uri)
        try:
            self._connection = adbc.AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise
        if address.backend == "sqlite":
            # A reader waits while another process recovers the file or closes its write-ahead log.
            for _ in self.stream_batches(f"pragma busy_timeout = {_BUSY_TIMEOUT_MS}"):
                pass

    def stream_batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Run a statement and stream its result as record batches."""
        size = (
            {"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
            if self._address.backend == "postgres"
            else {"adbc.sqlite.query.batch_rows": str(SQLITE_BATCH_ROWS)}
        )
        with closing(adbc.AdbcStatement(self._connection)) as statement:
            statement.set_options(**size)
            statement.set_sql_query(sql)
            handle, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(handle) as reader:
                yield from reader

    def fetch_rows(self, sql: str) -> list[dict[str, Any]]:
        """Run a statement with a small result and return its rows."""
        return [row for batch in self.stream_batches(sql) for row in batch.to_pylist()]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._database.close()


@contextmanager
def open_connection(
    address: DatabaseAddress, operation: str, *, reuse: bool = False
) -> Iterator[ReadConnection]:
    """Open a connection for a block and translate the driver's errors.

    Args:
        address: The database.
        operation: A gerund phrase for error messages, such as "reading events".
        reuse: Take a Postgres connection from this process's cache and return it there after the
            block. A Spark worker serves many tasks, and connecting takes as long as reading
            thousands of events.

    Raises:
        BackendFailure: The database cannot be reached or refuses a statement.
    """
    reuse = reuse and address.backend == "postgres"
    try:
        connection = (_take_cached(address) if reuse else None) or ReadConnection(address)
        try:
            yield connection
        except BaseException:
            reuse = False  # part of a result may still be unread on this connection
            raise
        finally:
            if reuse:
                _cache[address.uri] = connection
            else:
                connection.close()
    except DRIVER_ERRORS as error:
        # `from None`: the driver's own text may contain the URL with its password.
        raise translate_driver_error(address, error, operation) from None


# One idle connection per database. `pop` takes it out atomically, so no two threads share it.
_cache: dict[str, ReadConnection] = {}


def _take_cached(address: DatabaseAddress) -> ReadConnection | None:
    """Remove and return the cached connection if it still works."""
    connection = _cache.pop(address.uri, None)
    if connection is None:
        return None
    try:
        connection.fetch_rows("select 1 as alive")
    except DRIVER_ERRORS:
        with suppress(*DRIVER_ERRORS):
            connection.close()
        return None
    return connection


def translate_driver_error(
    address: DatabaseAddress, error: Exception, operation: str
) -> SeriatimError:
    """Return the error of Seriatim for a driver's error, without the secrets of the URL.

    Args:
        address: The database that the statement ran on.
        error: One of `DRIVER_ERRORS`.
        operation: A gerund phrase that says what failed, such as "reading events".
    """
    text = str(error).strip()
    if address.backend == "sqlite":
        return _translate_sqlite_error(address, text, operation)
    state = getattr(error, "sqlstate", None)
    if _CONNECT_FAILED in text:
        reason = text.partition(_CONNECT_FAILED)[2]
        return make_connection_failure(reason, address.uri, sqlstate=state)
    cure, retryable = find_remedy(state)
    message = f"Postgres failed while {operation}"
    if cure:
        message += f": {cure}"
    else:
        lines = redact_secrets(text, address.uri).splitlines()
        message += f": {lines[-1] if lines else 'no reason was given'}"
    return BackendFailure(message, details={"sqlstate": state}, retryable=retryable)


def _translate_sqlite_error(address: DatabaseAddress, text: str, operation: str) -> SeriatimError:
    path = unquote(address.uri.removeprefix("file://").partition("?")[0])
    if "no such table" in text:
        return BackendFailure(f"{path} contains no log: run seriatim init", retryable=False)
    if "failed to open" in text or "unable to open" in text:
        msg = f"cannot open {path}: check that the log exists and is readable on this machine"
        return BackendFailure(msg, retryable=False)
    return BackendFailure(f"SQLite failed on {path} while {operation}: {text}")

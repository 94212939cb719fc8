"""Connections of Spark's processes to a log's database, through ADBC: columns, not rows."""

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
from seriatim.opening import sqlite_path
from seriatim.store.database_url import split_options, with_options
from seriatim.store.postgres.connecting import APPLICATION, parse_url
from seriatim.store.postgres.connection_failures import failure_to_connect, without_secrets
from seriatim.store.postgres.failures import cure_of
from seriatim.store.postgres.statements import named_statements
from seriatim.store.sqlite.statements import named

BATCH_BYTES = 2 * 1024 * 1024  # what a processor's cache holds
SQLITE_ROWS = 256  # a batch of the driver: small, since a payload may be a megabyte

_BUSY_MS = 10_000
_POSTGRES_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    # A standby may be behind: what it calls the head is none.
    "target_session_attrs": "primary",
}

# An answer that breaks off is told by Arrow, everything else by the driver.
_NOT_CONNECTED = "Failed to connect:"
DRIVER_ERRORS = (adbc.Error, pa.ArrowException, OSError)


class Place(msgspec.Struct, frozen=True):
    """The database that a URL names, in the words of its driver."""

    backend: Literal["postgres", "sqlite"]
    uri: str
    schema: str = ""

    @property
    def sql(self) -> dict[str, str]:
        """The statements of `scan.sql` by name."""
        if self.backend == "postgres":
            return dict(named_statements("scan.sql", self.schema))
        return named("scan.sql")


def find_place(url: str) -> Place:
    """Understand a log's URL."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return Place("sqlite", f"{Path(sqlite_path(url)).absolute().as_uri()}?mode=ro")
    if scheme in ("postgresql", "postgres"):
        return _postgres_place(url)
    if scheme == "memory":
        msg = "Spark's processes cannot see a log in the memory of another: use SQLite or Postgres"
        raise InvalidArgument(msg, details={"argument": "url"})
    msg = f"{scheme!r:.40} is no backend: use sqlite:///file or postgresql://…"
    raise InvalidArgument(msg, details={"argument": "url"})


def _postgres_place(url: str) -> Place:
    schema = parse_url(url, Settings()).schema
    base, options = split_options(url)
    options.pop("schema", None)
    merged = {**_POSTGRES_DEFAULTS, **options, "application_name": APPLICATION}
    return Place("postgres", with_options(base, merged), schema)


class Connection:
    """A connection that only reads: the driver's bare one, whose DB-API would import pandas."""

    def __init__(self, place: Place) -> None:
        self._place = place
        driver = postgres if place.backend == "postgres" else sqlite
        self._database = driver.connect(place.uri)
        try:
            self._connection = adbc.AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise
        if place.backend == "sqlite":
            for _ in self.batches(f"pragma busy_timeout = {_BUSY_MS}"):
                pass

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        """Stream the record batches of one statement."""
        size = (
            {"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
            if self._place.backend == "postgres"
            else {"adbc.sqlite.query.batch_rows": str(SQLITE_ROWS)}
        )
        with closing(adbc.AdbcStatement(self._connection)) as statement:
            statement.set_options(**size)
            statement.set_sql_query(text)
            handle, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(handle) as reader:
                yield from reader

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Return the few rows of a small answer."""
        return [row for batch in self.batches(text) for row in batch.to_pylist()]

    def close(self) -> None:
        """Let it go."""
        self._connection.close()
        self._database.close()


@contextmanager
def connected(place: Place, doing: str, *, keep: bool = False) -> Iterator[Connection]:
    """Open a connection, and close it whatever happens; errors are explained.

    `keep` leaves a server's connection to the next one who keeps: a worker serves task after task,
    and to connect takes as long as to read thousands of events.
    """
    keep = keep and place.backend == "postgres"
    try:
        connection = (_kept(place) if keep else None) or Connection(place)
        try:
            yield connection
        except BaseException:
            keep = False  # an answer may be left half read
            raise
        finally:
            if keep:
                _spare[place.uri] = connection
            else:
                connection.close()
    except DRIVER_ERRORS as error:
        raise explain(place, error, doing) from None  # the driver's own text may hold the URL


_spare: dict[str, Connection] = {}


def _kept(place: Place) -> Connection | None:
    """Take the spare connection, if it still answers."""
    connection = _spare.pop(place.uri, None)
    if connection is None:
        return None
    try:
        connection.rows("select 1 as alive")
    except DRIVER_ERRORS:
        with suppress(*DRIVER_ERRORS):
            connection.close()
        return None
    return connection


def explain(place: Place, error: Exception, doing: str) -> SeriatimError:
    """Turn the driver's error into ours, without the secrets of the URL."""
    text = str(error).strip()
    if place.backend == "sqlite":
        return _sqlite_failure(place, text, doing)
    state = getattr(error, "sqlstate", None)
    if _NOT_CONNECTED in text:
        reason = text.partition(_NOT_CONNECTED)[2]
        return failure_to_connect(reason, place.uri, sqlstate=state)
    cure, retryable = cure_of(state)
    message = f"Postgres failed while {doing}"
    if cure:
        message += f": {cure}"
    else:
        said = without_secrets(text, place.uri).splitlines()
        message += f": {said[-1] if said else 'no reason was given'}"
    return BackendFailure(message, details={"sqlstate": state}, retryable=retryable)


def _sqlite_failure(place: Place, text: str, doing: str) -> SeriatimError:
    path = unquote(place.uri.removeprefix("file://").partition("?")[0])
    if "no such table" in text:
        return BackendFailure(f"{path} holds no log: run seriatim init", retryable=False)
    if "failed to open" in text or "unable to open" in text:
        msg = f"{path} cannot be opened: a log must be there, and be readable from this machine"
        return BackendFailure(msg, retryable=False)
    return BackendFailure(f"SQLite failed on {path} while {doing}: {text}")

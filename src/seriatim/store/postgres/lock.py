"""Transactions that hold locks of a log, within bounds that the server itself enforces.

A process that stops in the middle of one delays the others by `lock_hold_s` at most, whatever it
was doing; a statement that works is ended after `lock_wait_s` and `lock_hold_s` together. The
settings are those of the transaction, so a transaction pooler keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from seriatim.config import Settings
from seriatim.core.errors import TimedOut
from seriatim.store.postgres.connecting import Connection, Hello
from seriatim.store.postgres.failures import CANCELLED
from seriatim.store.postgres.statements import statements


def milliseconds(seconds: float) -> int:
    """Return seconds as Postgres takes them; 0 would be no bound at all."""
    return max(1, round(seconds * 1000))


def bounds(settings: Settings) -> str:
    """Return the statement that bounds how long a transaction waits for locks and idles."""
    return (
        f"set local lock_timeout = {milliseconds(settings.lock_wait_s)};"
        f"set local idle_in_transaction_session_timeout = {milliseconds(settings.lock_hold_s)}"
    )


def statement_ms(settings: Settings) -> int:
    """Return how long one statement may take under a lock, in milliseconds."""
    return milliseconds(settings.lock_wait_s + settings.lock_hold_s)


@contextmanager
def bounded(connection: Connection, settings: Settings) -> Iterator[None]:
    """Open a transaction at READ COMMITTED whose waits, pauses and statements are bounded."""
    whole = statement_ms(settings)
    try:
        with connection.transaction():
            connection.execute(f"{bounds(settings)};set local statement_timeout = {whole}".encode())
            yield
    except psycopg.errors.QueryCanceled as error:
        raise held_too_long(settings) from error


@contextmanager
def locked(connection: Connection, schema: str, hello: Hello, settings: Settings) -> Iterator[None]:
    """Hold the log's lock for a transaction within the same bounds."""
    with bounded(connection, settings):
        connection.execute(statements(schema)["lock"], (hello.lock_key,))
        yield


def held_too_long(settings: Settings) -> TimedOut:
    """Make the error for work under the log's lock that the server ended."""
    msg = (
        f"it would have held the log's lock for more than {statement_ms(settings) / 1000:g} s "
        "(lock_wait_s and lock_hold_s) and was ended, so that others can write; nothing was "
        "stored: append fewer events or tags at a time, or raise lock_hold_s"
    )
    return TimedOut(msg, details={"sqlstate": CANCELLED, "ambiguous": False})

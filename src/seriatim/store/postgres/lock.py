"""Transactions that hold locks of a log, with time limits that the server enforces.

A process that hangs while it holds a lock delays the others by at most `lock_hold_s`. A running
statement is cancelled after `lock_wait_s` plus `lock_hold_s`. The limits are set locally to the
transaction, so they also work through a transaction pooler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from seriatim.config import Settings
from seriatim.core.errors import TimedOut
from seriatim.store.postgres.connection import Connection, ServerInfo
from seriatim.store.postgres.failures import CANCELLED
from seriatim.store.postgres.statements import load_store_statements


def to_milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, at least 1: Postgres takes 0 as no limit."""
    return max(1, round(seconds * 1000))


def build_timeout_statement(settings: Settings) -> str:
    """Return the statements that limit lock waits and idle time of a transaction."""
    return (
        f"set local lock_timeout = {to_milliseconds(settings.lock_wait_s)};"
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
    """Run the block in such a transaction while it holds the log's lock."""
    with bounded_transaction(connection, settings):
        connection.execute(load_store_statements(schema)["lock"], (server_info.lock_key,))
        yield


def make_lock_timeout_error(settings: Settings) -> TimedOut:
    """Return the error for work under the log's lock that the server cancelled."""
    msg = (
        f"cancelled after {get_statement_timeout_ms(settings) / 1000:g} s (lock_wait_s plus "
        "lock_hold_s), "
        "because other writers wait for the log's lock; nothing was stored: append fewer events "
        "or tags at a time, or raise lock_hold_s"
    )
    return TimedOut(msg, details={"sqlstate": CANCELLED, "ambiguous": False})

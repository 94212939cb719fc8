"""Cursors, leases and commands: what the store keeps for those around the log."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from seriatim.core.errors import LeaseLost
from seriatim.core.times import format_us
from seriatim.store.port import Cursor, Lease, SubscriptionState
from seriatim.store.reading import check_cursor_move, subscription_state
from seriatim.store.sqlite.statements import SQL


def now_us() -> int:
    """Return the time by the clock of the database, which is this machine's."""
    return time.time_ns() // 1000


def cursor(
    connection: sqlite3.Connection, tenant_id: str, purpose: str, name: str
) -> Cursor | None:
    """Return a stored cursor."""
    row = connection.execute(SQL["cursor"], (tenant_id, purpose, name)).fetchone()
    return None if row is None else _cursor_of(row)


def cursors(connection: sqlite3.Connection, tenant_id: str, purpose: str) -> list[Cursor]:
    """Return the cursors of one purpose by name."""
    return [_cursor_of(row) for row in connection.execute(SQL["cursors"], (tenant_id, purpose))]


def cursors_after(
    connection: sqlite3.Connection, tenant_id: str, purpose: str, after: str, limit: int
) -> list[Cursor]:
    """Return a page of them."""
    values = (tenant_id, purpose, after, limit)
    return [_cursor_of(row) for row in connection.execute(SQL["cursors_after"], values)]


def subscriptions(
    connection: sqlite3.Connection, tenant_id: str, after: str, limit: int
) -> list[SubscriptionState]:
    """Return a page of durable subscriptions by name."""
    values = {"tenant": tenant_id, "after": after, "limit": limit, "now": now_us()}
    return [subscription_state(row) for row in connection.execute(SQL["subscriptions"], values)]


def record_failure(
    connection: sqlite3.Connection, lease: Lease, name: str, failures: int, error: str
) -> None:
    """Store the last error of a subscription, if its lease still holds."""
    values = {
        "failures": failures,
        "error": error,
        "now": now_us(),
        "tenant": lease.tenant_id,
        "name": name,
        "lease": lease.name,
        "token": lease.token,
    }
    connection.execute(SQL["record_failure"], values)


def cursor_room(
    connection: sqlite3.Connection, tenant_id: str, purpose: str, name: str, at_most: int
) -> bool:
    """Tell whether a cursor is there or may be made beside so many."""
    values = {"tenant_id": tenant_id, "purpose": purpose, "name": name, "at_most": at_most}
    return bool(connection.execute(SQL["cursor_room"], values).fetchone()[0])


def _cursor_of(row: tuple[Any, ...]) -> Cursor:
    tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us = row
    return Cursor(
        tenant_id=tenant_id,
        purpose=purpose,
        name=name,
        position=position,
        log_id=log_id,
        epoch=epoch,
        tip=tip,
        query=query,
        updated_at=format_us(updated_us),
    )


def add_cursor(connection: sqlite3.Connection, wanted: Cursor) -> Cursor:
    """Store a cursor unless there is one; return the one that is stored."""
    stored = cursor(connection, wanted.tenant_id, wanted.purpose, wanted.name)
    if stored is None:
        put_cursor(connection, wanted, None, reset=False)
    return stored or wanted


def put_cursor(
    connection: sqlite3.Connection, wanted: Cursor, lease: Lease | None, *, reset: bool
) -> None:
    """Store a cursor if its lease still holds and the move is allowed."""
    if lease is not None:
        held = _held(connection, lease.tenant_id, lease.name)
        if held is None or held[1] != lease.token:
            raise LeaseLost
    stored = cursor(connection, wanted.tenant_id, wanted.purpose, wanted.name)
    check_cursor_move(stored, wanted, reset=reset)
    connection.execute(
        SQL["put_cursor"],
        (
            wanted.tenant_id,
            wanted.purpose,
            wanted.name,
            wanted.position,
            wanted.log_id,
            wanted.epoch,
            wanted.tip,
            wanted.query,
            now_us(),
        ),
    )


def claim_lease(
    connection: sqlite3.Connection, tenant_id: str, name: str, owner: str, seconds: float
) -> Lease | None:
    """Take a lease that is free, expired, or the owner's own; the token rises every time."""
    held = _held(connection, tenant_id, name)
    now = now_us()
    if held is not None and held[2] > now and held[0] != owner:
        return None
    # The clock is above all tokens that a forgotten lease of this name had.
    lease = Lease(tenant_id, name, now if held is None else held[1] + 1)
    expires = now + _microseconds(seconds)
    connection.execute(SQL["put_lease"], (tenant_id, name, owner, lease.token, expires))
    return lease


def lease_room(connection: sqlite3.Connection, tenant_id: str, name: str, at_most: int) -> bool:
    """Tell whether a lease is known by name, or may be made beside so many."""
    values = {"tenant_id": tenant_id, "name": name, "at_most": at_most}
    return bool(connection.execute(SQL["lease_room"], values).fetchone()[0])


def reuse_lease(connection: sqlite3.Connection, tenant_id: str, name: str) -> bool:
    """Give the place of an ended lease to another name; tell whether there was one."""
    values = {"tenant_id": tenant_id, "name": name, "now": now_us()}
    return connection.execute(SQL["reuse_lease"], values).rowcount == 1


def extend_lease(connection: sqlite3.Connection, lease: Lease, seconds: float | None) -> bool:
    """Renew a lease from now on, or end it; tell whether it was still this owner's."""
    expires = 0 if seconds is None else now_us() + _microseconds(seconds)
    values = (expires, lease.tenant_id, lease.name, lease.token)
    return connection.execute(SQL["extend_lease"], values).rowcount == 1


def _held(connection: sqlite3.Connection, tenant_id: str, name: str) -> tuple[str, int, int] | None:
    found: tuple[str, int, int] | None = connection.execute(
        SQL["lease"], (tenant_id, name)
    ).fetchone()
    return found


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


def purge_commands(connection: sqlite3.Connection, older_than_seconds: float, most: int) -> int:
    """Forget commands that are older, so many at most, and tell how many they were."""
    values = {"before": now_us() - _microseconds(older_than_seconds), "most": most}
    return connection.execute(SQL["purge_commands"], values).rowcount

"""Cursors, leases and command records, the mutable tables beside the log."""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

from seriatim.core.errors import LeaseLost
from seriatim.store.common import (
    check_cursor_move,
    check_skip,
    check_skipped_count,
    decode_cursor,
    decode_skipped_batch,
    decode_subscription,
)
from seriatim.store.port import (
    SKIPPED_BATCHES_MAX,
    BatchAttempt,
    Cursor,
    Lease,
    SkippedBatch,
    SubscriptionState,
    make_lease_name,
)
from seriatim.store.sqlite.statements import SQL


def get_now_us() -> int:
    """Return the current time in microseconds, by the clock of this machine."""
    return time.time_ns() // 1000


def get_cursor(
    connection: sqlite3.Connection, tenant_id: str, purpose: str, name: str
) -> Cursor | None:
    """Return a stored cursor, None if there is none."""
    row = connection.execute(SQL["find_cursor"], (tenant_id, purpose, name)).fetchone()
    return None if row is None else decode_cursor(row)


def list_cursors(connection: sqlite3.Connection, tenant_id: str, purpose: str) -> list[Cursor]:
    """Return all cursors of one purpose, ordered by name."""
    return [
        decode_cursor(row) for row in connection.execute(SQL["list_cursors"], (tenant_id, purpose))
    ]


def list_cursors_after(
    connection: sqlite3.Connection, tenant_id: str, purpose: str, after: str, limit: int
) -> list[Cursor]:
    """Return a page of cursors whose names are greater than `after`."""
    values = (tenant_id, purpose, after, limit)
    return [decode_cursor(row) for row in connection.execute(SQL["list_cursors_after"], values)]


def list_subscriptions(
    connection: sqlite3.Connection, tenant_id: str, after: str, limit: int, name: str | None
) -> list[SubscriptionState]:
    """Return a page of durable subscriptions, ordered by name; with `name`, only this one."""
    values = {
        "tenant": tenant_id,
        "after": after,
        "limit": limit,
        "name": name,
        "now": get_now_us(),
    }
    return [
        decode_subscription(row) for row in connection.execute(SQL["list_subscriptions"], values)
    ]


def list_skipped_batches(
    connection: sqlite3.Connection, tenant_id: str, name: str, after: int, limit: int
) -> list[SkippedBatch]:
    """Return skipped batches of a subscription, ordered by position."""
    rows = connection.execute(SQL["list_skipped_batches"], (tenant_id, name, after, limit))
    return [decode_skipped_batch(row) for row in rows]


def put_attempt(
    connection: sqlite3.Connection,
    lease: Lease,
    name: str,
    attempt: BatchAttempt,
    *,
    error: str | None,
    park: bool,
) -> None:
    """Store the attempts at the next batch of a subscription if its lease was not lost."""
    values = {
        "tenant": lease.tenant_id,
        "name": name,
        "lease": lease.name,
        "token": lease.token,
        "attempts": attempt.attempts,
        "failures": attempt.failures,
        "first": attempt.first_position,
        "last": attempt.last_position,
        "error": error,
        "park": park,
        "now": get_now_us(),
    }
    if connection.execute(SQL["put_attempt"], values).rowcount != 1:
        raise LeaseLost


def resume_attempts(
    connection: sqlite3.Connection, tenant_id: str, name: str, position: int
) -> bool:
    """Let a parked subscription attempt its batch again; return False if it is not parked there."""
    values = {"tenant": tenant_id, "name": name, "position": position}
    return connection.execute(SQL["resume_attempts"], values).rowcount == 1


def record_failure(
    connection: sqlite3.Connection, lease: Lease, name: str, failures: int, error: str
) -> None:
    """Store the last error of a subscription, unless its lease was lost."""
    values = {
        "failures": failures,
        "error": error,
        "now": get_now_us(),
        "tenant": lease.tenant_id,
        "name": name,
        "lease": lease.name,
        "token": lease.token,
    }
    connection.execute(SQL["record_failure"], values)


def can_add_cursor(
    connection: sqlite3.Connection, tenant_id: str, purpose: str, name: str, limit: int
) -> bool:
    """Return True if the cursor exists, or if the tenant has fewer than `limit` cursors."""
    values = {"tenant_id": tenant_id, "purpose": purpose, "name": name, "limit": limit}
    return bool(connection.execute(SQL["check_cursor_limit"], values).fetchone()[0])


def add_cursor(connection: sqlite3.Connection, requested: Cursor) -> Cursor:
    """Store a cursor unless there is one; return the stored cursor."""
    stored = get_cursor(connection, requested.tenant_id, requested.purpose, requested.name)
    if stored is None:
        put_cursor(connection, requested, None, reset=False)
    return stored or requested


def put_cursor(
    connection: sqlite3.Connection, requested: Cursor, lease: Lease | None, *, reset: bool
) -> None:
    """Store a cursor if its lease was not lost and the move is allowed."""
    if lease is not None:
        _check_lease(connection, lease)
    elif reset and requested.purpose == "subscription":
        _void_lease(connection, requested)
        values = (requested.tenant_id, requested.name, requested.position)
        connection.execute(SQL["delete_skipped_batches"], values)
    stored = get_cursor(connection, requested.tenant_id, requested.purpose, requested.name)
    check_cursor_move(stored, requested, reset=reset)
    _upsert_cursor(connection, requested)


def skip_batch(
    connection: sqlite3.Connection,
    cursor: Cursor,
    skipped: SkippedBatch,
    after: int,
    lease: Lease | None,
) -> None:
    """Move a cursor past a batch and record it; without a lease, void that of the owner."""
    if lease is None:
        _void_lease(connection, cursor)
    else:
        _check_lease(connection, lease)
        limits = {"tenant": cursor.tenant_id, "name": cursor.name, "limit": SKIPPED_BATCHES_MAX}
        check_skipped_count(connection.execute(SQL["count_policy_skips"], limits).fetchone()[0])
    stored = get_cursor(connection, cursor.tenant_id, cursor.purpose, cursor.name)
    check_skip(stored, cursor, after)
    values = {
        "tenant": cursor.tenant_id,
        "name": cursor.name,
        "first": skipped.first_position,
        "last": skipped.last_position,
        "attempts": skipped.attempts,
        "error": skipped.error,
        "now": get_now_us(),
        "skipped_by": skipped.skipped_by,
        "reason": skipped.reason,
    }
    connection.execute(SQL["insert_skipped_batch"], values)
    _upsert_cursor(connection, cursor)


def _check_lease(connection: sqlite3.Connection, lease: Lease) -> None:
    stored = _find_lease(connection, lease.tenant_id, lease.name)
    if stored is None or stored.token != lease.token:
        raise LeaseLost


def _void_lease(connection: sqlite3.Connection, cursor: Cursor) -> None:
    connection.execute(SQL["void_lease"], (cursor.tenant_id, make_lease_name(cursor.name)))


def _upsert_cursor(connection: sqlite3.Connection, requested: Cursor) -> None:
    connection.execute(
        SQL["upsert_cursor"],
        (
            requested.tenant_id,
            requested.purpose,
            requested.name,
            requested.position,
            requested.log_id,
            requested.epoch,
            requested.last_event_id,
            requested.query,
            get_now_us(),
        ),
    )


def claim_lease(
    connection: sqlite3.Connection, tenant_id: str, name: str, owner: str, seconds: float
) -> Lease | None:
    """Claim a lease that is free, expired, or held by `owner`; each claim raises the token."""
    stored = _find_lease(connection, tenant_id, name)
    now = get_now_us()
    if stored is not None and stored.expires_us > now and stored.owner != owner:
        return None
    # `reuse_lease` may have renamed an earlier lease of this name, and its token is forgotten.
    # Tokens rise once per claim, far slower than the clock, so the clock is above all of them.
    lease = Lease(tenant_id, name, now if stored is None else stored.token + 1)
    expires = now + _microseconds(seconds)
    connection.execute(SQL["upsert_lease"], (tenant_id, name, owner, lease.token, expires))
    return lease


def can_add_lease(connection: sqlite3.Connection, tenant_id: str, name: str, limit: int) -> bool:
    """Return True if the lease exists, or if the tenant has fewer than `limit` leases."""
    values = {"tenant_id": tenant_id, "name": name, "limit": limit}
    return bool(connection.execute(SQL["check_lease_limit"], values).fetchone()[0])


def reuse_lease(connection: sqlite3.Connection, tenant_id: str, name: str) -> bool:
    """Replace an expired lease by one with another name; return False if none has expired."""
    values = {"tenant_id": tenant_id, "name": name, "now": get_now_us()}
    return connection.execute(SQL["reuse_lease"], values).rowcount == 1


def renew_lease(connection: sqlite3.Connection, lease: Lease, seconds: float) -> bool:
    """Extend a lease from now; return False if it was lost."""
    return _set_expiry(connection, lease, get_now_us() + _microseconds(seconds))


def release_lease(connection: sqlite3.Connection, lease: Lease) -> None:
    """End a lease, unless it was lost."""
    _set_expiry(connection, lease, 0)


def _set_expiry(connection: sqlite3.Connection, lease: Lease, expires_us: int) -> bool:
    values = (expires_us, lease.tenant_id, lease.name, lease.token)
    return connection.execute(SQL["update_lease_expiry"], values).rowcount == 1


class _StoredLease(NamedTuple):
    """A row of the statement `find_lease`."""

    owner: str
    token: int
    expires_us: int


def _find_lease(connection: sqlite3.Connection, tenant_id: str, name: str) -> _StoredLease | None:
    row = connection.execute(SQL["find_lease"], (tenant_id, name)).fetchone()
    return None if row is None else _StoredLease(*row)


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


def purge_commands(connection: sqlite3.Connection, older_than_seconds: float, limit: int) -> int:
    """Delete at most `limit` old command records and return their number."""
    values = {"before": get_now_us() - _microseconds(older_than_seconds), "limit": limit}
    return connection.execute(SQL["delete_old_commands"], values).rowcount

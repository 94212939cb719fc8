"""Cursors, leases and command records, the mutable tables beside the log."""

from __future__ import annotations

from seriatim.config import Settings
from seriatim.core.errors import LeaseLost
from seriatim.core.ids import compose_key
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
from seriatim.store.postgres.connection import Connection, bounded_transaction
from seriatim.store.postgres.reader import TenantReader
from seriatim.store.postgres.statements import load_store_statements


class PostgresConsumers:
    """Reads and writes the cursors, leases and command records of one log."""

    def __init__(self, schema: str, reader: TenantReader, settings: Settings) -> None:
        self._schema = schema
        self._settings = settings
        self._sql = load_store_statements(schema)
        self._reader = reader

    def get_cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        rows = self._reader.fetch_rows(
            tenant_id, self._sql["find_cursor"], (tenant_id, purpose, name)
        )
        return decode_cursor(rows[0]) if rows else None

    def list_cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        rows = self._reader.fetch_rows(tenant_id, self._sql["list_cursors"], (tenant_id, purpose))
        return [decode_cursor(row) for row in rows]

    def list_cursors_after(
        self, tenant_id: str, purpose: str, after: str, limit: int
    ) -> list[Cursor]:
        values = (tenant_id, purpose, after, limit)
        rows = self._reader.fetch_rows(tenant_id, self._sql["list_cursors_after"], values)
        return [decode_cursor(row) for row in rows]

    def list_subscriptions(
        self, tenant_id: str, after: str, limit: int, name: str | None
    ) -> list[SubscriptionState]:
        values = {"tenant_id": tenant_id, "after": after, "limit": limit, "name": name}
        rows = self._reader.fetch_rows(tenant_id, self._sql["list_subscriptions"], values)
        return [decode_subscription(row) for row in rows]

    def list_skipped_batches(
        self, tenant_id: str, name: str, after: int, limit: int
    ) -> list[SkippedBatch]:
        values = (tenant_id, name, after, limit)
        rows = self._reader.fetch_rows(tenant_id, self._sql["list_skipped_batches"], values)
        return [decode_skipped_batch(row) for row in rows]

    def put_attempt(
        self,
        connection: Connection,
        lease: Lease,
        name: str,
        attempt: BatchAttempt,
        *,
        error: str | None,
        park: bool,
    ) -> None:
        values = {
            "tenant_id": lease.tenant_id,
            "name": name,
            "lease": lease.name,
            "token": lease.token,
            "attempts": attempt.attempts,
            "failures": attempt.failures,
            "first": attempt.first_position,
            "last": attempt.last_position,
            "error": error,
            "park": park,
        }
        if connection.execute(self._sql["put_attempt"], values).rowcount != 1:
            raise LeaseLost

    def resume_attempts(
        self, connection: Connection, tenant_id: str, name: str, position: int
    ) -> bool:
        values = {"tenant_id": tenant_id, "name": name, "position": position}
        return connection.execute(self._sql["resume_attempts"], values).rowcount == 1

    def record_failure(
        self, connection: Connection, lease: Lease, name: str, failures: int, error: str
    ) -> None:
        values = {
            "failures": failures,
            "error": error,
            "tenant_id": lease.tenant_id,
            "name": name,
            "lease": lease.name,
            "token": lease.token,
        }
        connection.execute(self._sql["record_failure"], values)

    def can_add_cursor(self, tenant_id: str, purpose: str, name: str, limit: int) -> bool:
        values = {"tenant_id": tenant_id, "purpose": purpose, "name": name, "limit": limit}
        return bool(
            self._reader.fetch_rows(tenant_id, self._sql["check_cursor_limit"], values)[0][0]
        )

    def add_cursor(self, connection: Connection, cursor: Cursor) -> Cursor:
        with bounded_transaction(connection, self._settings):
            # Look up and insert under one lock: two processes that start a consumer get one cursor.
            self._lock_cursor(connection, cursor)
            stored = self._load_cursor(connection, cursor)
            if stored is None:
                self._put_cursor(connection, cursor, None, reset=False)
            return stored or cursor

    def _lock_cursor(self, connection: Connection, cursor: Cursor) -> None:
        # An advisory lock instead of a row lock, since the row may not exist yet.
        name = compose_key(self._schema, cursor.tenant_id, cursor.purpose, cursor.name)
        connection.execute(self._sql["lock_cursor"], (name, cursor.tenant_id))

    def _load_cursor(self, connection: Connection, cursor: Cursor) -> Cursor | None:
        values = (cursor.tenant_id, cursor.purpose, cursor.name)
        row = connection.execute(self._sql["find_cursor"], values).fetchone()
        return None if row is None else decode_cursor(row)

    def put_cursor(
        self, connection: Connection, cursor: Cursor, lease: Lease | None, *, reset: bool
    ) -> None:
        with bounded_transaction(connection, self._settings):
            self._lock_cursor(connection, cursor)
            self._put_cursor(connection, cursor, lease, reset=reset)

    def _put_cursor(
        self, connection: Connection, cursor: Cursor, lease: Lease | None, *, reset: bool
    ) -> None:
        if lease is not None:
            self._check_lease(connection, lease)
        elif reset and cursor.purpose == "subscription":
            self._void_lease(connection, cursor)
            values = (cursor.tenant_id, cursor.name, cursor.position)
            connection.execute(self._sql["delete_skipped_batches"], values)
        stored = self._load_cursor(connection, cursor)
        check_cursor_move(stored, cursor, reset=reset)
        self._upsert_cursor(connection, cursor)

    def skip_batch(
        self,
        connection: Connection,
        cursor: Cursor,
        skipped: SkippedBatch,
        after: int,
        lease: Lease | None,
    ) -> None:
        with bounded_transaction(connection, self._settings):
            self._lock_cursor(connection, cursor)
            if lease is None:
                self._void_lease(connection, cursor)
            else:
                self._check_lease(connection, lease)
                self._check_skipped_count(connection, cursor)
            check_skip(self._load_cursor(connection, cursor), cursor, after)
            values = {
                "tenant_id": cursor.tenant_id,
                "name": cursor.name,
                "first": skipped.first_position,
                "last": skipped.last_position,
                "attempts": skipped.attempts,
                "error": skipped.error,
                "skipped_by": skipped.skipped_by,
                "reason": skipped.reason,
            }
            connection.execute(self._sql["insert_skipped_batch"], values)
            self._upsert_cursor(connection, cursor)

    def _check_lease(self, connection: Connection, lease: Lease) -> None:
        # The statement locks the row, so no other owner can claim the lease before the commit.
        values = (lease.tenant_id, lease.name)
        row = connection.execute(self._sql["lock_lease"], values).fetchone()
        if row is None or row[0] != lease.token:
            raise LeaseLost

    def _void_lease(self, connection: Connection, cursor: Cursor) -> None:
        values = (cursor.tenant_id, make_lease_name(cursor.name))
        connection.execute(self._sql["void_lease"], values)

    def _check_skipped_count(self, connection: Connection, cursor: Cursor) -> None:
        values = {
            "tenant_id": cursor.tenant_id,
            "name": cursor.name,
            "limit": SKIPPED_BATCHES_MAX,
        }
        row = connection.execute(self._sql["count_policy_skips"], values).fetchone()
        check_skipped_count(0 if row is None else row[0])

    def _upsert_cursor(self, connection: Connection, cursor: Cursor) -> None:
        connection.execute(
            self._sql["upsert_cursor"],
            (
                cursor.tenant_id,
                cursor.purpose,
                cursor.name,
                cursor.position,
                cursor.log_id,
                cursor.epoch,
                cursor.last_event_id,
                cursor.query,
            ),
        )

    def claim_lease(
        self, connection: Connection, tenant_id: str, name: str, owner: str, seconds: float
    ) -> Lease | None:
        values = {"tenant_id": tenant_id, "name": name, "owner": owner, "seconds": seconds}
        row = connection.execute(self._sql["claim_lease"], values).fetchone()
        return None if row is None else Lease(tenant_id, name, row[0])

    def can_add_lease(self, tenant_id: str, name: str, limit: int) -> bool:
        values = {"tenant_id": tenant_id, "name": name, "limit": limit}
        return bool(
            self._reader.fetch_rows(tenant_id, self._sql["check_lease_limit"], values)[0][0]
        )

    def reuse_lease(self, connection: Connection, tenant_id: str, name: str) -> bool:
        values = {"tenant_id": tenant_id, "name": name}
        return connection.execute(self._sql["reuse_lease"], values).rowcount == 1

    def renew_lease(self, connection: Connection, lease: Lease, seconds: float) -> bool:
        values = (seconds, lease.tenant_id, lease.name, lease.token)
        return connection.execute(self._sql["renew_lease"], values).rowcount == 1

    def release_lease(self, connection: Connection, lease: Lease) -> None:
        values = (lease.tenant_id, lease.name, lease.token)
        connection.execute(self._sql["release_lease"], values)

    def purge_commands(self, connection: Connection, older_than_seconds: float) -> int:
        return connection.execute(self._sql["delete_old_commands"], (older_than_seconds,)).rowcount

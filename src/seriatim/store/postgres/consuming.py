"""Cursors, leases and command records, the mutable tables beside the log."""

from __future__ import annotations

from seriatim.config import Settings
from seriatim.core.errors import LeaseLost
from seriatim.core.ids import compose
from seriatim.store.port import Cursor, Lease, SubscriptionState
from seriatim.store.postgres.confining import Reader
from seriatim.store.postgres.connecting import Connection
from seriatim.store.postgres.lock import bounded
from seriatim.store.postgres.rows import cursor_of
from seriatim.store.postgres.statements import statements
from seriatim.store.reading import check_cursor_move, subscription_state


class Consumers:
    """Reads and writes the cursors, leases and command records of one log."""

    def __init__(self, schema: str, reader: Reader, settings: Settings) -> None:
        self._schema = schema
        self._settings = settings
        self._sql = statements(schema)
        self._reader = reader

    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        rows = self._reader.rows(tenant_id, self._sql["cursor"], (tenant_id, purpose, name))
        return cursor_of(rows[0]) if rows else None

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        rows = self._reader.rows(tenant_id, self._sql["cursors"], (tenant_id, purpose))
        return [cursor_of(row) for row in rows]

    def cursors_after(self, tenant_id: str, purpose: str, after: str, limit: int) -> list[Cursor]:
        values = (tenant_id, purpose, after, limit)
        rows = self._reader.rows(tenant_id, self._sql["cursors_after"], values)
        return [cursor_of(row) for row in rows]

    def subscriptions(self, tenant_id: str, after: str, limit: int) -> list[SubscriptionState]:
        values = (tenant_id, after, limit)
        rows = self._reader.rows(tenant_id, self._sql["subscriptions"], values)
        return [subscription_state(row) for row in rows]

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

    def cursor_room(self, tenant_id: str, purpose: str, name: str, at_most: int) -> bool:
        values = {"tenant_id": tenant_id, "purpose": purpose, "name": name, "at_most": at_most}
        return bool(self._reader.rows(tenant_id, self._sql["cursor_room"], values)[0][0])

    def add_cursor(self, connection: Connection, cursor: Cursor) -> Cursor:
        with bounded(connection, self._settings):
            self._lock_cursor(connection, cursor)
            stored = self._load_cursor(connection, cursor)
            if stored is None:
                self._put_cursor(connection, cursor, None, reset=False)
            return stored or cursor

    def _lock_cursor(self, connection: Connection, cursor: Cursor) -> None:
        # An advisory lock: the row may not exist yet.
        name = compose(self._schema, cursor.tenant_id, cursor.purpose, cursor.name)
        connection.execute(self._sql["lock_cursor"], (name, cursor.tenant_id))

    def _load_cursor(self, connection: Connection, cursor: Cursor) -> Cursor | None:
        values = (cursor.tenant_id, cursor.purpose, cursor.name)
        row = connection.execute(self._sql["cursor"], values).fetchone()
        return None if row is None else cursor_of(row)

    def put_cursor(
        self, connection: Connection, cursor: Cursor, lease: Lease | None, *, reset: bool
    ) -> None:
        with bounded(connection, self._settings):
            self._lock_cursor(connection, cursor)
            self._put_cursor(connection, cursor, lease, reset=reset)

    def _put_cursor(
        self, connection: Connection, cursor: Cursor, lease: Lease | None, *, reset: bool
    ) -> None:
        if lease is not None:
            values = (lease.tenant_id, lease.name)
            held = connection.execute(self._sql["held_lease"], values).fetchone()
            if held is None or held[0] != lease.token:
                raise LeaseLost
        stored = self._load_cursor(connection, cursor)
        check_cursor_move(stored, cursor, reset=reset)
        connection.execute(
            self._sql["put_cursor"],
            (
                cursor.tenant_id,
                cursor.purpose,
                cursor.name,
                cursor.position,
                cursor.log_id,
                cursor.epoch,
                cursor.tip,
                cursor.query,
            ),
        )

    def claim_lease(
        self, connection: Connection, tenant_id: str, name: str, owner: str, seconds: float
    ) -> Lease | None:
        values = {"tenant_id": tenant_id, "name": name, "owner": owner, "seconds": seconds}
        row = connection.execute(self._sql["claim_lease"], values).fetchone()
        return None if row is None else Lease(tenant_id, name, row[0])

    def lease_room(self, tenant_id: str, name: str, at_most: int) -> bool:
        values = {"tenant_id": tenant_id, "name": name, "at_most": at_most}
        return bool(self._reader.rows(tenant_id, self._sql["lease_room"], values)[0][0])

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
        return connection.execute(self._sql["purge_commands"], (older_than_seconds,)).rowcount

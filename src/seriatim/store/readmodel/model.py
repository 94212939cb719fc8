"""A read model: the tables of projections and their cursors, updated in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.core.column_types import COLUMN_TYPES
from seriatim.core.errors import BackendFailure, Conflict, LeaseLost, NotFound
from seriatim.core.event import LogIdentity
from seriatim.core.fold import Failure, ReadModelRow, Row, RowDigest, TenantKey
from seriatim.core.projection import Projection, Table
from seriatim.core.times import format_us
from seriatim.store.engine import Engine, EngineSession, load_engine_statements
from seriatim.store.readmodel import tables
from seriatim.store.readmodel.port import (
    FailureCounts,
    FailureRecord,
    FailureStatus,
    Progress,
    ProjectionStatus,
    ProjectionStep,
)

TableRow = tuple[str, Row, int]  # tenant, row, position


class ReadModelSnapshot:
    """A consistent snapshot of a read model."""

    def __init__(self, engine: Engine, session: EngineSession, progress_sql: str) -> None:
        self._engine = engine
        self._session = session
        self._progress_sql = progress_sql

    def progress(self, name: str, *, shadow: bool = False) -> Progress | None:
        """Return the progress of a projection, None if there is none."""
        rows = self._session.run(self._progress_sql, {"name": name, "shadow": int(shadow)})
        return decode_progress(rows[0]) if rows else None

    def rows(
        self, projection: Projection, table: Table, *, shadow: bool = False, ordered: bool = True
    ) -> Iterator[TableRow]:
        """Yield tenant, row and position of all rows, by default in the order of the key."""
        qualified = tables.qualify_table(self._engine, projection.name, table.name, shadow=shadow)
        sql = f"select {tables.build_select_list(self._engine, table)} from {qualified} t"
        if ordered:
            sql += f" order by {tables.build_key_list(table)}"
        yield from map(make_row_decoder(self._engine, table), self._session.stream(sql))

    def compute_digest(self, projection: Projection, *, shadow: bool = False) -> RowDigest:
        """Return the digest over all rows of a projection."""
        digest = RowDigest()
        for table in projection.tables:
            for tenant_id, row, _ in self.rows(projection, table, shadow=shadow, ordered=False):
                digest.add(table, tenant_id, row)
        return digest


def make_row_decoder(engine: Engine, table: Table) -> Callable[[tuple[Any, ...]], TableRow]:
    """Return a function that decodes the rows selected with `tables.build_select_list`."""
    names = tuple(table.fields)
    kinds = ((name, COLUMN_TYPES[kind].name) for name, kind in table.fields.items())
    decoders = [(name, engine.decoders[kind]) for name, kind in kinds if kind in engine.decoders]

    def decode(values: tuple[Any, ...]) -> TableRow:
        row = dict(zip(names, values[1:-1], strict=True))
        try:
            for name, decoder in decoders:
                if row[name] is not None:
                    row[name] = decoder(row[name])
        except ValueError as error:
            key = {name: row[name] for name in table.key}
            msg = (
                f"table {table.name} was modified outside Seriatim at key {key!r:.200}: {error}; "
                "rebuild the projection"
            )
            raise BackendFailure(msg, retryable=False) from error
        return values[0], row, values[-1]

    return decode


def decode_progress(row: tuple[Any, ...]) -> Progress:
    """Build the progress from a row of `select_progress`, `lock_progress` or `list_progress`."""
    name, shadow, tenant_id, declaration, *columns = row
    position, log_id, epoch, last_event_id, status, *columns = columns
    updated_us, owner, token, held_until_us = columns
    return Progress(
        name=name,
        shadow=bool(shadow),
        tenant_id=tenant_id,
        declaration=declaration,
        position=position,
        log_id=log_id,
        epoch=epoch,
        last_event_id=last_event_id,
        status=status,
        updated_at=format_us(updated_us),
        owner=owner,
        token=token,
        held_until=None if held_until_us is None else format_us(held_until_us),
    )


_LOCK_NOT_AVAILABLE = "55P03"
_SWITCH_TIMEOUT_S = 60.0  # how long a switch is retried
_SWITCH_PAUSE_S = 0.5  # between attempts, in which the queued readers run
_SWITCH_LOCK_TIMEOUT = "2s"
_KEY_TYPES = {"tenant_id": "text", "key": "text"}
_POSITION_TYPES = {"position": "integer"}
_NO_LIMIT = (1 << 63) - 1


class ProjectionMoved(Exception):  # noqa: N818 - not an error: another runner has done the work
    """Raised if the cursor of a projection is not where a step begins."""


class ReadModel:
    """The operations on a read model; each is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sql = load_engine_statements(__package__, engine)
        if engine.is_ready():
            return
        engine.create_tables([self._sql["create_projections"], self._sql["create_failures"]])

    def clone(self) -> ReadModel:
        """Return the same read model with another connection."""
        return ReadModel(self.engine.open_another())

    def close(self) -> None:
        """Close the connection to the database."""
        self.engine.close()

    # -- progress

    def progress(self, name: str, *, shadow: bool = False) -> Progress | None:
        """Return the progress of a projection, None if there is none."""
        with self.engine.transaction(write=False) as session:
            return self._read_progress(session, "select_progress", name, shadow=shadow)

    def list_progress(self) -> list[Progress]:
        """Return the progress of all projections, including shadows."""
        with self.engine.transaction(write=False) as session:
            return [decode_progress(row) for row in session.run(self._sql["list_progress"])]

    def _read_progress(
        self, session: EngineSession, statement: str, name: str, *, shadow: bool
    ) -> Progress | None:
        rows = session.run(self._sql[statement], {"name": name, "shadow": int(shadow)})
        return decode_progress(rows[0]) if rows else None

    def create_projection(
        self, projection: Projection, tenant_id: str, log: LogIdentity, *, shadow: bool = False
    ) -> Progress:
        """Create the tables and the cursor of a projection, if they do not exist.

        Args:
            projection: The projection.
            tenant_id: The tenant of the read model.
            log: The identity of the log.
            shadow: Create the shadow of a rebuild instead of the live tables.

        Raises:
            Conflict: The read model belongs to another tenant, or another projection has a table of
                the same name.

        """
        key = {"name": projection.name, "shadow": int(shadow)}
        values = {
            **key,
            "tenant_id": tenant_id,
            "declaration": projection.declaration,
            "log_id": log.log_id,
            "epoch": log.epoch,
        }
        with self.engine.transaction() as session:
            existing = session.run(self._sql["select_progress"], key)
            if not existing:
                # Of two runners that start at once, the second must see what the first created.
                self._lock_table(session, "seriatim_projections", "share row exclusive")
            self._check_tables(session, projection, tenant_id)
            if not existing and session.run(self._sql["insert_progress"], values):
                for table in tables.list_tables(projection):
                    session.run(
                        tables.build_create_statement(
                            self.engine, projection.name, table, shadow=shadow
                        )
                    )
                if shadow:
                    session.run(self._sql["copy_passed_failures"], {"name": projection.name})
            progress = self._read_progress(session, "lock_progress", projection.name, shadow=shadow)
            assert progress is not None  # noqa: S101 - it was created above
            return progress

    def _check_tables(self, session: EngineSession, projection: Projection, tenant_id: str) -> None:
        names = {tables.get_table_name(projection.name, table.name) for table in projection.tables}
        for other in map(decode_progress, session.run(self._sql["list_progress"])):
            if other.tenant_id != tenant_id:
                msg = (
                    f"this read model belongs to tenant {other.tenant_id!r:.80}, not "
                    f"{tenant_id!r:.80}: select another read model with --target"
                )
                raise Conflict(msg, details={"tenant_id": tenant_id})
            taken = names.intersection(tables.list_declared_tables(other))
            if taken and other.name != projection.name:
                msg = (
                    f"projection {other.name} already has a table {min(taken)}: rename one of them"
                )
                raise Conflict(msg, details={"projection": projection.name})

    # -- states and exceptions, which a fold starts with

    def load_states(
        self, projection: Projection, owners: Sequence[TenantKey], *, shadow: bool = False
    ) -> dict[TenantKey, Any]:
        """Return the stored states of keys; keys without a state are omitted."""
        table = tables.get_state_table(projection)
        qualified = tables.qualify_table(self.engine, projection.name, table.name, shadow=shadow)
        key = next(iter(table.key))
        sql = (
            f"select {tables.build_select_list(self.engine, table)} from {{given}} o cross join "
            f"{qualified} t "
            f"where t.tenant_id = o.tenant_id and t.{tables.quote_identifier(key)} = o.key"
        )
        states: dict[TenantKey, Any] = {}
        with self.engine.autocommit(write=False) as session:
            rows = session.run_with_rows(sql, _KEY_TYPES, _transpose(owners))
            for tenant_id, row, _ in map(make_row_decoder(self.engine, table), rows):
                states[tenant_id, row[key]] = row if projection.state is None else row["state"]
        return states

    def load_exceptions(
        self, name: str, *, shadow: bool = False
    ) -> tuple[frozenset[TenantKey], frozenset[int]]:
        """Return the parked keys and the skipped positions."""
        failures = self.failures(name, shadow=shadow)
        parked = {
            (record.failure.tenant_id, record.failure.key)
            for record in failures
            if record.status == "parked"
        }
        passed = {record.failure.position for record in failures if record.status == "passed"}
        return frozenset(parked), frozenset(passed)

    # -- results of a fold

    def commit(
        self,
        projection: Projection,
        step: ProjectionStep,
        *,
        token: int,
        shadow: bool = False,
        status: ProjectionStatus | None = None,
    ) -> None:
        """Write the rows, states, failures and the cursor of one step, all or nothing.

        Args:
            projection: The projection.
            step: The changes of one batch.
            token: The fencing token of the runner's lease.
            shadow: Write to the shadow of a rebuild.
            status: A new status of the projection.

        Raises:
            LeaseLost: Another runner has claimed the projection.
            ProjectionMoved: The cursor is not at `step.after`, or the projection is paused.

        """
        key = {"name": projection.name, "shadow": int(shadow)}
        with self.engine.transaction(pipelined=True) as session:
            # A claim or a switch waits for this row lock, so the token that is compared here is
            # still valid when the rows become visible.
            progress = self._read_progress(session, "lock_progress", projection.name, shadow=shadow)
            if progress is None or progress.token != token:
                msg = (
                    f"another runner has claimed projection {projection.name}, and this one cannot "
                    "write: see seriatim project status"
                )
                raise LeaseLost(msg, details={"projection": projection.name})
            # A pause or hold takes effect at once, also for a step that was already computed.
            paused = progress.status == "paused" or progress.held_until is not None
            if progress.position != step.after or (paused and not shadow):
                raise ProjectionMoved
            self.write(session, projection, step, shadow=shadow)
            session.execute(
                self._sql["update_cursor"],
                {**key, "position": step.until, "tip": step.last_event_id},
            )
            if status is not None:
                session.execute(self._sql["update_status"], {**key, "status": status})

    def write_shadow_part(self, projection: Projection, step: ProjectionStep, owner: str) -> None:
        """Write the rows and states of one part of a rebuild to its shadow; safe to repeat.

        Args:
            projection: The projection.
            step: The rows and states of the part.
            owner: The owner of the rebuild.

        Raises:
            LeaseLost: The rebuild was given up, so its shadow is gone or has another owner.

        """
        # A task folds its keys from the first event on, so its rows are complete. Merging them with
        # those of an earlier run of the same task would add every sum twice.
        replacing_tables = tuple(
            msgspec.structs.replace(table, merge={}) for table in projection.tables
        )
        replacing = msgspec.structs.replace(projection, tables=replacing_tables)
        with self.engine.transaction() as session:
            values = {"name": projection.name, "owner": owner}
            if not session.run(self._sql["lock_owned_shadow"], values):
                msg = (
                    f"the rebuild of projection {projection.name} has ended meanwhile: "
                    f"run seriatim project rebuild {projection.name} again"
                )
                raise LeaseLost(msg, details={"projection": projection.name})
            self.write(session, replacing, step, shadow=True)

    def write(
        self, session: EngineSession, projection: Projection, step: ProjectionStep, *, shadow: bool
    ) -> None:
        """Write the changes of a step, without its cursor.

        Args:
            session: The transaction.
            projection: The projection.
            step: The changes of one batch.
            shadow: Write to the shadow of a rebuild.

        """
        removed = [owner for owner, change in step.state_rows.items() if change.row is None]
        if removed:
            self._delete_states(session, projection, removed, shadow=shadow)
        rows_by_table = dict(step.rows)
        if state_rows := [change for change in step.state_rows.values() if change.row is not None]:
            rows_by_table[projection.tables[0].name] = state_rows
        for name, rows in rows_by_table.items():
            self._upsert(session, projection, projection.table(name), rows, shadow=shadow)
        states = [
            ReadModelRow(tenant_id, position, {"key": key, "state": state})
            for (tenant_id, key), (position, state) in step.states.items()
        ]
        self._upsert(session, projection, tables.STATE_TABLE, states, shadow=shadow)
        for failure, status in step.failures:
            self._add_failure(session, projection.name, failure, status, shadow=shadow)

    def _upsert(
        self,
        session: EngineSession,
        projection: Projection,
        table: Table,
        rows: Sequence[ReadModelRow],
        *,
        shadow: bool,
    ) -> None:
        if not rows:
            return
        qualified = tables.qualify_table(self.engine, projection.name, table.name, shadow=shadow)
        # All writers use one order of rows, so that they cannot deadlock.
        changes = sorted(rows, key=lambda change: _get_key(table, change))
        columns: list[list[Any]] = [[change.tenant_id for change in changes]]
        columns += [[_get_row(change)[name] for change in changes] for name in table.fields]
        columns.append([change.position for change in changes])
        session.upsert(
            qualified, tables.get_column_kinds(table), columns, tables.build_conflict_clause(table)
        )

    def _delete_states(
        self,
        session: EngineSession,
        projection: Projection,
        owners: Sequence[TenantKey],
        *,
        shadow: bool,
    ) -> None:
        table = tables.get_state_table(projection)
        qualified = tables.qualify_table(self.engine, projection.name, table.name, shadow=shadow)
        key = tables.build_key_list(table)
        session.run_with_rows(
            f"delete from {qualified} where ({key}) in (select tenant_id, key from {{given}} o)",
            _KEY_TYPES,
            _transpose(owners),
        )

    def _add_failure(
        self,
        session: EngineSession,
        name: str,
        failure: Failure,
        status: FailureStatus,
        *,
        shadow: bool,
    ) -> None:
        values = {"name": name, "shadow": int(shadow), "status": status}
        session.run(self._sql["insert_failure"], {**values, **msgspec.structs.asdict(failure)})

    # -- failures

    def failures(
        self,
        name: str,
        *,
        shadow: bool = False,
        tenant_id: str = "",
        after: int = 0,
        limit: int | None = None,
    ) -> list[FailureRecord]:
        """Return the failures of a projection, in order of position.

        Args:
            name: The projection.
            shadow: Those of the shadow of a rebuild.
            tenant_id: Those of one tenant; empty for all.
            after: Those after a position.
            limit: The maximum number; None for all.
        """
        values = {
            "name": name,
            "shadow": int(shadow),
            "tenant_id": tenant_id,
            "after": after,
            "limit": _NO_LIMIT if limit is None else limit,
        }
        with self.engine.transaction(write=False) as session:
            rows = session.run(self._sql["list_failures"], values)
        return [
            FailureRecord(Failure(*row[:6]), row[6], format_us(row[7]), bool(row[8]))
            for row in rows
        ]

    def count_failures(
        self, name: str, *, shadow: bool = False, tenant_id: str = ""
    ) -> FailureCounts:
        """Count the failures of a projection; see `failures`."""
        values = {"name": name, "shadow": int(shadow), "tenant_id": tenant_id}
        with self.engine.transaction(write=False) as session:
            [row] = session.run(self._sql["count_failures"], values)
        return FailureCounts(int(row[0]), int(row[1]))

    def set_failure_status(
        self, name: str, position: int, status: FailureStatus, *, again: bool
    ) -> None:
        """Set the status of a failure, and whether its key will be folded again.

        Args:
            name: The projection.
            position: The position of the failed event.
            status: The new status.
            again: Whether the key will be folded again.

        Raises:
            NotFound: There is no failure at the position.

        """
        values = {"name": name, "position": position, "status": status, "again": int(again)}
        with self.engine.transaction() as session:
            if not session.run(self._sql["update_failure"], values):
                raise no_failure_error(name, position)

    def forget_failure(self, name: str, position: int) -> None:
        """Delete a failure."""
        with self.engine.transaction() as session:
            session.run(self._sql["delete_failure"], {"name": name, "position": position})

    def refold(
        self,
        projection: Projection,
        owner: TenantKey,
        step: ProjectionStep,
        positions: Sequence[int],
        *,
        token: int,
    ) -> bool:
        """Replace the rows and state of one key by newly folded ones; the cursor stays.

        Args:
            projection: The projection.
            owner: The tenant and the key.
            step: The newly folded rows and state.
            positions: The positions of the key's events; rows written at them belong to the key.
            token: The fencing token of the runner's lease.

        Returns:
            False, with nothing changed, if a row is not written again at the same or a better
            position. A row of another key, which it had replaced, may then be missing.

        Raises:
            ProjectionMoved: The cursor has moved, or another runner has claimed the projection.

        """
        with self.engine.transaction() as session:
            progress = self._read_progress(session, "lock_progress", projection.name, shadow=False)
            if progress is None or progress.token != token or progress.position != step.until:
                raise ProjectionMoved
            if projection.state is not None:
                # All tables are checked before the first row is deleted, so that False means that
                # nothing was changed.
                for table in projection.tables:
                    if not self._replaces_rows(session, projection, table, owner, step, positions):
                        return False
                for table in projection.tables:
                    self._delete_rows_at(session, projection, table, owner, positions)
            self._delete_states(session, projection, [owner], shadow=False)
            values = {"name": projection.name, "tenant_id": owner[0], "key": owner[1]}
            session.run(self._sql["delete_failures_of_key"], values)
            session.run(self._sql["clear_refolds_of_key"], values)
            self.write(session, projection, step, shadow=False)
            return True

    def _replaces_rows(
        self,
        session: EngineSession,
        projection: Projection,
        table: Table,
        owner: TenantKey,
        step: ProjectionStep,
        positions: Sequence[int],
    ) -> bool:
        """Return True if every row of a key is written again and would again be the one to keep."""
        qualified = tables.qualify_table(self.engine, projection.name, table.name, shadow=False)
        sql = (
            f"select {tables.build_select_list(self.engine, table)} from {qualified} t "
            "where t.tenant_id = :tenant_id and t.position in (select position from {given} o)"
        )
        new_positions = {
            _get_key(table, change): change.position for change in step.rows.get(table.name, ())
        }
        rows = session.run_with_rows(
            sql, _POSITION_TYPES, [list(positions)], {"tenant_id": owner[0]}
        )
        for tenant_id, row, position in map(make_row_decoder(self.engine, table), rows):
            new_position = new_positions.get((tenant_id, *[row[name] for name in table.key]))
            if new_position is None or (
                new_position > position if table.keep == "first" else new_position < position
            ):
                return False
        return True

    def _delete_rows_at(
        self,
        session: EngineSession,
        projection: Projection,
        table: Table,
        owner: TenantKey,
        positions: Sequence[int],
    ) -> None:
        qualified = tables.qualify_table(self.engine, projection.name, table.name, shadow=False)
        session.run_with_rows(
            f"delete from {qualified} where tenant_id = :tenant_id "
            "and position in (select position from {given} o)",
            _POSITION_TYPES,
            [list(positions)],
            {"tenant_id": owner[0]},
        )

    def set_status(self, name: str, status: ProjectionStatus) -> None:
        """Set the status of a projection."""
        with self.engine.transaction() as session:
            session.run(self._sql["update_status"], {"name": name, "shadow": 0, "status": status})

    # -- leases of runners

    def claim(self, name: str, owner: str, seconds: float, *, shadow: bool = False) -> int | None:
        """Claim the lease of a projection.

        Args:
            name: The projection.
            owner: The name of the runner.
            seconds: The duration of the lease.
            shadow: Claim the shadow of a rebuild.

        Returns:
            The fencing token, which each claim raises; None while another runner holds the lease.

        """
        values = {"name": name, "shadow": int(shadow), "owner": owner, "for_us": _to_us(seconds)}
        with self.engine.transaction() as session:
            rows = session.run(self._sql["claim_lease"], values)
        return rows[0][0] if rows else None

    def renew(self, name: str, token: int, seconds: float, *, shadow: bool = False) -> bool:
        """Extend a lease from now, or end it with 0 seconds.

        Args:
            name: The projection.
            token: The fencing token of the claim.
            seconds: The duration of the lease from now.
            shadow: Renew the lease on the shadow of a rebuild.

        Returns:
            False if another runner has claimed the projection since.

        """
        values = {"name": name, "shadow": int(shadow), "token": token, "for_us": _to_us(seconds)}
        with self.engine.transaction() as session:
            return bool(session.run(self._sql["renew_lease"], values))

    # -- shadows

    @contextmanager
    def hold(self, name: str, token: int) -> Iterator[None]:
        """Pause a projection for the block, at most while the lease on its shadow lasts."""
        self._set_hold(name, token, "paused")
        try:
            yield
        finally:
            self._set_hold(name, token, "ready")

    def _set_hold(self, name: str, token: int, status: ProjectionStatus) -> None:
        values = {"name": name, "token": token, "status": status}
        with self.engine.transaction() as session:
            session.run(self._sql["update_hold"], values)

    def drop(self, projection: Projection, *, shadow: bool) -> None:
        """Drop the tables of a projection and delete its cursor and failures."""
        with self.engine.transaction() as session:
            self._drop(session, projection, shadow=shadow)

    def _drop(self, session: EngineSession, projection: Projection, *, shadow: bool) -> None:
        key = {"name": projection.name, "shadow": int(shadow)}
        for table in self._list_known_tables(session, projection, shadow=shadow):
            session.run(
                f"drop table if exists {self.engine.schema_prefix}{tables.quote_identifier(table)}"
            )
        session.run(self._sql["delete_progress"], key)
        session.run(self._sql["delete_failures"], key)

    def _list_known_tables(
        self, session: EngineSession, projection: Projection, *, shadow: bool
    ) -> Iterable[str]:
        """Return the tables of the projection and of its stored declaration, which may be older."""
        stored = self._read_progress(session, "select_progress", projection.name, shadow=shadow)
        names = [
            tables.get_table_name(projection.name, table.name)
            for table in tables.list_tables(projection)
        ]
        if stored is not None:
            names += tables.list_declared_tables(stored)
            names.append(tables.get_table_name(projection.name, tables.STATE_TABLE.name))
        return [tables.add_shadow_suffix(table, shadow=shadow) for table in dict.fromkeys(names)]

    def switch(self, projection: Projection, *, at_least: int = 0) -> bool:
        """Replace the live tables by the shadow.

        It waits for transactions that read the live tables. Each attempt has a short lock timeout,
        so that other readers do not queue for long.

        Args:
            projection: The projection.
            at_least: The position that the shadow must have reached.

        Returns:
            False if the shadow has not reached `at_least` or the position of the live tables.

        Raises:
            BackendFailure: The lock was not acquired in time.
            Conflict: A customization of the live tables would be lost.

        """
        deadline = time.monotonic() + _SWITCH_TIMEOUT_S
        while True:
            try:
                return self._switch(projection, at_least)
            except BackendFailure as error:
                if (
                    error.details.get("sqlstate") != _LOCK_NOT_AVAILABLE
                    or time.monotonic() > deadline
                ):
                    raise
                time.sleep(_SWITCH_PAUSE_S)

    def _switch(self, projection: Projection, at_least: int) -> bool:
        with self.engine.transaction() as session:
            live = self._read_progress(session, "lock_progress", projection.name, shadow=False)
            shadow = self._read_progress(session, "lock_progress", projection.name, shadow=True)
            if shadow is None or shadow.position < max(at_least, live.position if live else 0):
                return False
            # Conflicts with the lock of every open snapshot, which must not see the tables change.
            self._lock_table(session, "seriatim_failures", "access exclusive", _SWITCH_LOCK_TIMEOUT)
            customizations: dict[str, Sequence[str]] = {}
            if live is not None:
                customizations = self._find_customizations(session, projection)
                # Before the live failures are dropped: operators may have skipped events meanwhile.
                session.run(self._sql["merge_passed_failures"], {"name": projection.name})
                self._drop(session, projection, shadow=False)
            for table in tables.list_tables(projection):
                new = tables.get_table_name(projection.name, table.name)
                old = tables.add_shadow_suffix(new, shadow=True)
                self.engine.replace_table(session, old, new, customizations.get(new, ()))
            values = {
                "name": projection.name,
                "owner": live.owner if live else "",
                "token": live.token + 1 if live else 1,
                "status": "paused" if live and live.status == "paused" else "ready",
            }
            session.run(self._sql["promote_shadow"], values)
            session.run(self._sql["promote_shadow_failures"], {"name": projection.name})
            return True

    def check_replaceable(self, projection: Projection) -> None:
        """Raise `Conflict` if a switch would lose customizations of the live tables."""
        with self.engine.transaction(write=False) as session:
            live = self._read_progress(session, "select_progress", projection.name, shadow=False)
            if live is not None:
                self._find_customizations(session, projection)

    def _find_customizations(
        self, session: EngineSession, projection: Projection
    ) -> dict[str, Sequence[str]]:
        """Return the statements that repeat the customizations of each live table."""
        tables_by_name = {
            tables.get_table_name(projection.name, table.name): table
            for table in tables.list_tables(projection)
        }
        statements_by_table: dict[str, Sequence[str]] = {}
        for name in self._list_known_tables(session, projection, shadow=False):
            table = tables_by_name.get(name)
            columns = {} if table is None else tables.get_column_kinds(table)
            if existing := self.engine.list_columns(session, name):
                self._check_columns(session, projection, name, existing)
                statements_by_table[name] = self.engine.find_customizations(session, name, columns)
        return statements_by_table

    def _check_columns(
        self, session: EngineSession, projection: Projection, table: str, existing: Sequence[str]
    ) -> None:
        """Raise `Conflict` if a live table has a column that its declaration lacks."""
        live = self._read_progress(session, "select_progress", projection.name, shadow=False)
        if live is None:
            return
        declared = tables.list_declared_columns(live, table)
        added = [column for column in existing if declared and column not in declared]
        if added:
            msg = (
                f"cannot replace table {table}, because column {added[0]}, which was added to it, "
                "would be lost: keep such values in a table of your own, and drop the column"
            )
            raise Conflict(msg, details={"table": table, "found": added})

    def _lock_table(
        self, session: EngineSession, table: str, mode: str, timeout: str | None = None
    ) -> None:
        for statement in self.engine.build_lock_statements(table, mode, timeout):
            session.run(statement)

    # -- snapshots

    @contextmanager
    def snapshot(self) -> Iterator[ReadModelSnapshot]:
        """Open a consistent snapshot, whatever is written meanwhile."""
        with self.engine.transaction(write=False) as session:
            # A snapshot older than a switch would see the new tables as empty. This lock is taken
            # before the snapshot and blocks switches until the end.
            self._lock_table(session, "seriatim_failures", "access share")
            yield ReadModelSnapshot(self.engine, session, self._sql["select_progress"])


def no_failure_error(name: str, position: int) -> NotFound:
    """Build the error for a position at which a projection has no failure."""
    msg = (
        f"projection {name} has no failure at position {position}: see seriatim project status "
        f"--failures {name}"
    )
    return NotFound(msg, details={"projection": name, "position": position})


def _transpose(owners: Sequence[TenantKey]) -> list[list[Any]]:
    return [[owner[part] for owner in owners] for part in (0, 1)]


def _get_row(change: ReadModelRow) -> Row:
    assert change.row is not None  # noqa: S101 - removed rows are handled separately
    return change.row


def _get_key(table: Table, change: ReadModelRow) -> tuple[Any, ...]:
    row = _get_row(change)
    return change.tenant_id, *[row[name] for name in table.key]


def _to_us(seconds: float) -> int:
    return int(seconds * 1_000_000)

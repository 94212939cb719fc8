"""A read model: the tables of projections and their cursors, which move in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.core.errors import BackendFailure, Conflict, LeaseLost, NotFound
from seriatim.core.event import LogIdentity
from seriatim.core.fold import Failure, Kept, Owner, Row
from seriatim.core.projection import Projection, Table
from seriatim.core.times import format_us
from seriatim.store.engine import Engine, Session, statements
from seriatim.store.readmodel import tables
from seriatim.store.readmodel.moment import Moment, progress_of, reader
from seriatim.store.readmodel.port import FailureRecord, FailureStatus, Progress, Status, Step

_LOCKED = "55P03"
_SWITCH_S = 60.0
_SWITCH_PAUSE_S = 0.5
_SWITCH_PATIENCE = "2s"
_OWNERS = {"tenant_id": "text", "key": "text"}
_POSITIONS = {"position": "integer"}


class Moved(Exception):  # noqa: N818 - not an error: the work is done, or somebody else's
    """The projection is not where this step begins."""


class ReadModel:
    """Everything that is done to a read model; one transaction for each act."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sql = statements(__package__, engine)
        if engine.ready():
            return
        engine.prepare([self._sql["create_projections"], self._sql["create_failures"]])

    def close(self) -> None:
        """Let go of the database."""
        self.engine.close()

    # -- how far they are

    def progress(self, name: str, *, shadow: bool = False) -> Progress | None:
        """Return how far a projection has come."""
        with self.engine.transaction(write=False) as session:
            return self._progress(session, "progress", name, shadow=shadow)

    def every(self) -> list[Progress]:
        """Return all projections, shadows among them."""
        with self.engine.transaction(write=False) as session:
            return [progress_of(row) for row in session.run(self._sql["all_progress"])]

    def _progress(
        self, session: Session, statement: str, name: str, *, shadow: bool
    ) -> Progress | None:
        found = session.run(self._sql[statement], {"name": name, "shadow": int(shadow)})
        return progress_of(found[0]) if found else None

    def begin(
        self, projection: Projection, tenant_id: str, log: LogIdentity, *, shadow: bool = False
    ) -> Progress:
        """Make a projection's tables and its cursor, if they are not there."""
        named = {"name": projection.name, "shadow": int(shadow)}
        values = {
            **named,
            "tenant_id": tenant_id,
            "declaration": projection.declaration,
            "log_id": log.log_id,
            "epoch": log.epoch,
        }
        with self.engine.transaction() as session:
            known = session.run(self._sql["progress"], named)
            if not known:  # two that begin at once: the second finds what the first made
                self._hold(session, "seriatim_projections", "share row exclusive")
            self._check_place(session, projection, tenant_id)
            if not known and session.run(self._sql["add_progress"], values):
                for table in tables.held(projection):
                    session.run(tables.create(self.engine, projection.name, table, shadow=shadow))
                if shadow:
                    session.run(self._sql["inherit_passed"], {"name": projection.name})
            found = self._progress(session, "locked", projection.name, shadow=shadow)
            assert found is not None  # noqa: S101 - it was made above
            return found

    def _check_place(self, session: Session, projection: Projection, tenant_id: str) -> None:
        names = {tables.name(projection.name, table.name) for table in projection.tables}
        for other in map(progress_of, session.run(self._sql["all_progress"])):
            if other.tenant_id != tenant_id:
                msg = (
                    f"this read model belongs to tenant {other.tenant_id!r:.80}, not "
                    f"{tenant_id!r:.80}: name another place with --target"
                )
                raise Conflict(msg, details={"tenant_id": tenant_id})
            taken = names.intersection(tables.declared(other))
            if taken and other.name != projection.name:
                msg = f"projection {other.name} has a table {min(taken)} already: rename one"
                raise Conflict(msg, details={"projection": projection.name})

    # -- what a fold begins with

    def states(
        self, projection: Projection, owners: Sequence[Owner], *, shadow: bool = False
    ) -> dict[Owner, Any]:
        """Return the states of these keys in their kept form, as far as they have one."""
        table = tables.own(projection)
        where = tables.place(self.engine, projection.name, table.name, shadow=shadow)
        key = next(iter(table.key))
        sql = (
            f"select {tables.select(self.engine, table)} from {{given}} o cross join {where} t "
            f"where t.tenant_id = o.tenant_id and t.{tables.quoted(key)} = o.key"
        )
        found: dict[Owner, Any] = {}
        with self.engine.transaction(write=False) as session:
            rows = session.given(sql, _OWNERS, _by_column(owners))
            for tenant_id, row, _ in map(reader(self.engine, table), rows):
                found[tenant_id, row[key]] = row if projection.state is None else row["state"]
        return found

    def exceptions(
        self, name: str, *, shadow: bool = False
    ) -> tuple[frozenset[Owner], frozenset[int]]:
        """Return the keys that are parked, and the positions that are passed over."""
        kept = self.failures(name, shadow=shadow)
        parked = {
            (one.failure.tenant_id, one.failure.key) for one in kept if one.status == "parked"
        }
        passed = {one.failure.position for one in kept if one.status == "passed"}
        return frozenset(parked), frozenset(passed)

    # -- what a fold ends with

    def commit(
        self,
        projection: Projection,
        step: Step,
        *,
        token: int,
        shadow: bool = False,
        status: Status | None = None,
    ) -> None:
        """Write rows, states, failures and the cursor of one step, or nothing."""
        named = {"name": projection.name, "shadow": int(shadow)}
        with self.engine.transaction() as session:
            held = self._progress(session, "locked", projection.name, shadow=shadow)
            if held is None or held.token != token:
                msg = f"another runner has projection {projection.name}"
                raise LeaseLost(msg, details={"projection": projection.name})
            # A pause or hold counts from the moment it is set, also for a step that had begun.
            still = held.status == "paused" or held.held_until is not None
            if held.position != step.after or (still and not shadow):
                raise Moved
            self.write(session, projection, step, shadow=shadow)
            session.run(self._sql["move"], {**named, "position": step.until, "tip": step.tip})
            if status is not None:
                session.run(self._sql["set_status"], {**named, "status": status})

    def load(self, projection: Projection, step: Step, owner: str) -> None:
        """Write rows and states of a part of a rebuild into its shadow; twice does no harm.

        A task that outlived its rebuild finds the shadow gone, or another owner's.
        """
        final = tuple(msgspec.structs.replace(table, merge={}) for table in projection.tables)
        whole = msgspec.structs.replace(projection, tables=final)
        with self.engine.transaction() as session:
            if not session.run(self._sql["owned"], {"name": projection.name, "owner": owner}):
                msg = f"the rebuild of projection {projection.name} was given up meanwhile"
                raise LeaseLost(msg, details={"projection": projection.name})
            self.write(session, whole, step, shadow=True)

    def write(self, session: Session, projection: Projection, step: Step, *, shadow: bool) -> None:
        """Write all of a step but its cursor."""
        gone = [owner for owner, kept in step.own.items() if kept.row is None]
        if gone:
            self._remove(session, projection, gone, shadow=shadow)
        own = [kept for kept in step.own.values() if kept.row is not None]
        written = {**step.rows, **({projection.tables[0].name: own} if own else {})}
        for name, rows in written.items():
            self._put(session, projection, projection.table(name), rows, shadow=shadow)
        states = [
            Kept(tenant_id, position, {"key": key, "state": state})
            for (tenant_id, key), (position, state) in step.states.items()
        ]
        self._put(session, projection, tables.STATES, states, shadow=shadow)
        for failure, status in step.failures:
            self._note(session, projection.name, failure, status, shadow=shadow)

    def _put(
        self,
        session: Session,
        projection: Projection,
        table: Table,
        rows: Sequence[Kept],
        *,
        shadow: bool,
    ) -> None:
        if not rows:
            return
        where = tables.place(self.engine, projection.name, table.name, shadow=shadow)
        # One order everywhere: two writers of one table never wait for each other in a circle.
        ordered = sorted(rows, key=lambda kept: _place(table, kept))
        columns: list[list[Any]] = [[kept.tenant_id for kept in ordered]]
        columns += [[_row(kept)[name] for kept in ordered] for name in table.fields]
        columns.append([kept.position for kept in ordered])
        session.put(where, tables.kinds(table), columns, tables.on_conflict(table))

    def _remove(
        self, session: Session, projection: Projection, owners: Sequence[Owner], *, shadow: bool
    ) -> None:
        table = tables.own(projection)
        where = tables.place(self.engine, projection.name, table.name, shadow=shadow)
        key = tables.key_of(table)
        session.given(
            f"delete from {where} where ({key}) in (select tenant_id, key from {{given}} o)",
            _OWNERS,
            _by_column(owners),
        )

    def _note(
        self,
        session: Session,
        name: str,
        failure: Failure,
        status: FailureStatus,
        *,
        shadow: bool,
    ) -> None:
        values = {"name": name, "shadow": int(shadow), "status": status}
        session.run(self._sql["add_failure"], {**values, **msgspec.structs.asdict(failure)})

    # -- failures, and what an operator does about them

    def failures(self, name: str, *, shadow: bool = False) -> list[FailureRecord]:
        """Return what a projection could not take."""
        with self.engine.transaction(write=False) as session:
            found = session.run(self._sql["failures"], {"name": name, "shadow": int(shadow)})
        return [
            FailureRecord(Failure(*row[:6]), row[6], format_us(row[7]), bool(row[8]))
            for row in found
        ]

    def mark(self, name: str, position: int, status: FailureStatus, *, again: bool) -> None:
        """Say what is to become of a failure, and whether its key is to be folded anew."""
        values = {"name": name, "position": position, "status": status, "again": int(again)}
        with self.engine.transaction() as session:
            if not session.run(self._sql["set_failure"], values):
                msg = f"projection {name} has no failure at position {position}"
                raise NotFound(msg, details={"projection": name, "position": position})

    def forget_failure(self, name: str, position: int) -> None:
        """Take a failure off the list."""
        with self.engine.transaction() as session:
            session.run(self._sql["forget_failure"], {"name": name, "position": position})

    def refold(
        self,
        projection: Projection,
        owner: Owner,
        step: Step,
        positions: Sequence[int],
        *,
        token: int,
    ) -> bool:
        """Replace what one key has by what it has when folded anew; the cursor stays.

        `positions` are those of the key's events: rows that were written at one of them are its
        own. Returns False, with nothing changed, when one of them is not written again as early
        (or as late) as before: then a row of another key, which it had displaced, may be due.
        """
        with self.engine.transaction() as session:
            held = self._progress(session, "locked", projection.name, shadow=False)
            if held is None or held.token != token or held.position != step.until:
                raise Moved
            if projection.state is not None:
                for table in projection.tables:
                    if not self._replaces(session, projection, table, owner, step, positions):
                        return False
                for table in projection.tables:
                    self._remove_rows(session, projection, table, owner, positions)
            self._remove(session, projection, [owner], shadow=False)
            values = {"name": projection.name, "tenant_id": owner[0], "key": owner[1]}
            session.run(self._sql["forget_failures_of"], values)
            session.run(self._sql["settle_failures_of"], values)
            self.write(session, projection, step, shadow=False)
            return True

    def _replaces(  # noqa: PLR0913 - a table's rows before and after
        self,
        session: Session,
        projection: Projection,
        table: Table,
        owner: Owner,
        step: Step,
        positions: Sequence[int],
    ) -> bool:
        """Tell whether every row of a key is written again, and wins its place again."""
        where = tables.place(self.engine, projection.name, table.name, shadow=False)
        sql = (
            f"select {tables.select(self.engine, table)} from {where} t "
            "where t.tenant_id = :tenant_id and t.position in (select position from {given} o)"
        )
        made = {_place(table, kept): kept.position for kept in step.rows.get(table.name, ())}
        rows = session.given(sql, _POSITIONS, [list(positions)], {"tenant_id": owner[0]})
        for tenant_id, row, position in map(reader(self.engine, table), rows):
            again = made.get((tenant_id, *[row[name] for name in table.key]))
            if again is None or (again > position if table.keep == "first" else again < position):
                return False
        return True

    def _remove_rows(
        self,
        session: Session,
        projection: Projection,
        table: Table,
        owner: Owner,
        positions: Sequence[int],
    ) -> None:
        where = tables.place(self.engine, projection.name, table.name, shadow=False)
        session.given(
            f"delete from {where} where tenant_id = :tenant_id "
            "and position in (select position from {given} o)",
            _POSITIONS,
            [list(positions)],
            {"tenant_id": owner[0]},
        )

    def set_status(self, name: str, status: Status) -> None:
        """Pause, resume, or clear a projection."""
        with self.engine.transaction() as session:
            session.run(self._sql["set_status"], {"name": name, "shadow": 0, "status": status})

    # -- one runner

    def claim(self, name: str, owner: str, seconds: float, *, shadow: bool = False) -> int | None:
        """Take the right to run a projection, if nobody has it; the token rises every time."""
        values = {"name": name, "shadow": int(shadow), "owner": owner, "for_us": _us(seconds)}
        with self.engine.transaction() as session:
            found = session.run(self._sql["claim"], values)
        return found[0][0] if found else None

    def renew(self, name: str, token: int, seconds: float, *, shadow: bool = False) -> bool:
        """Keep that right for longer, or give it up with 0 seconds."""
        values = {"name": name, "shadow": int(shadow), "token": token, "for_us": _us(seconds)}
        with self.engine.transaction() as session:
            return bool(session.run(self._sql["renew"], values))

    # -- shadows

    @contextmanager
    def hold(self, name: str, token: int) -> Iterator[None]:
        """Hold a projection still for a block, for as long as the lease on its shadow lasts."""
        self._set_hold(name, token, "paused")
        try:
            yield
        finally:
            self._set_hold(name, token, "ready")

    def _set_hold(self, name: str, token: int, status: Status) -> None:
        values = {"name": name, "token": token, "status": status}
        with self.engine.transaction() as session:
            session.run(self._sql["hold"], values)

    def drop(self, projection: Projection, *, shadow: bool) -> None:
        """Take a projection's tables and its cursor away."""
        with self.engine.transaction() as session:
            self._drop(session, projection, shadow=shadow)

    def _drop(self, session: Session, projection: Projection, *, shadow: bool) -> None:
        named = {"name": projection.name, "shadow": int(shadow)}
        for table in self._known_tables(session, projection, shadow=shadow):
            session.run(f"drop table if exists {self.engine.at}{tables.quoted(table)}")
        session.run(self._sql["forget"], named)
        session.run(self._sql["forget_failures"], named)

    def _known_tables(
        self, session: Session, projection: Projection, *, shadow: bool
    ) -> Iterable[str]:
        """Name the tables as the stored declaration has them, which may be an older one."""
        known = self._progress(session, "progress", projection.name, shadow=shadow)
        declared = [tables.name(projection.name, one.name) for one in tables.held(projection)]
        if known is not None:
            declared += tables.declared(known)
            declared.append(tables.name(projection.name, tables.STATES.name))
        return [tables.suffixed(one, shadow=shadow) for one in dict.fromkeys(declared)]

    def switch(self, projection: Projection, *, at_least: int = 0) -> bool:
        """Put the shadow in the place of the live tables, unless these are further on.

        Whoever reads the live tables in a transaction of their own is waited for, and meanwhile
        let go first again and again: nobody queues behind a switch for long.
        """
        until = time.monotonic() + _SWITCH_S
        while True:
            try:
                return self._switch(projection, at_least)
            except BackendFailure as error:
                if error.details.get("sqlstate") != _LOCKED or time.monotonic() > until:
                    raise
                time.sleep(_SWITCH_PAUSE_S)

    def _switch(self, projection: Projection, at_least: int) -> bool:
        with self.engine.transaction() as session:
            live = self._progress(session, "locked", projection.name, shadow=False)
            shadow = self._progress(session, "locked", projection.name, shadow=True)
            if shadow is None or shadow.position < max(at_least, live.position if live else 0):
                return False
            self._hold(session, "seriatim_failures", "access exclusive", _SWITCH_PATIENCE)
            added: dict[str, Sequence[str]] = {}
            if live is not None:
                added = self._additions(session, projection)
                session.run(self._sql["inherit_late"], {"name": projection.name})
                self._drop(session, projection, shadow=False)
            for table in tables.held(projection):
                new = tables.name(projection.name, table.name)
                old = tables.suffixed(new, shadow=True)
                self.engine.rename(session, old, new, added.get(new, ()))
            values = {
                "name": projection.name,
                "owner": live.owner if live else "",
                "token": live.token + 1 if live else 1,
                "status": "paused" if live and live.status == "paused" else "ready",
            }
            session.run(self._sql["enthrone"], values)
            session.run(self._sql["enthrone_failures"], {"name": projection.name})
            return True

    def check_replaceable(self, projection: Projection) -> None:
        """Raise `Conflict` when a switch would lose what users added to the live tables."""
        with self.engine.transaction(write=False) as session:
            if self._progress(session, "progress", projection.name, shadow=False) is not None:
                self._additions(session, projection)

    def _additions(self, session: Session, projection: Projection) -> dict[str, Sequence[str]]:
        """Return what users added to the live tables, by table, for those in their place."""
        named = {tables.name(projection.name, one.name): one for one in tables.held(projection)}
        found: dict[str, Sequence[str]] = {}
        for name in self._known_tables(session, projection, shadow=False):
            columns = tables.kinds(named[name]) if name in named else {}
            if present := self.engine.column_names(session, name):
                self._check_columns(session, projection, name, present)
                found[name] = self.engine.additions(session, name, columns)
        return found

    def _check_columns(
        self, session: Session, projection: Projection, table: str, present: Sequence[str]
    ) -> None:
        """Raise `Conflict` when a live table has a column that its declaration does not have."""
        live = self._progress(session, "progress", projection.name, shadow=False)
        if live is None:
            return
        declared = tables.declared_columns(live, table)
        added = [column for column in present if declared and column not in declared]
        if added:
            msg = (
                f"table {table} cannot be replaced, for it would lose column {added[0]}, which "
                "was added to it: keep such values in a table of your own, and drop the column"
            )
            raise Conflict(msg, details={"table": table, "found": added})

    def _hold(self, session: Session, table: str, mode: str, patience: str | None = None) -> None:
        for statement in self.engine.holding(table, mode, patience):
            session.run(statement)

    # -- reading it

    @contextmanager
    def moment(self) -> Iterator[Moment]:
        """See everything as it is at one moment, whatever is written meanwhile."""
        with self.engine.transaction(write=False) as session:
            # New tables show nothing to a snapshot that is older than their rows: this lock is
            # taken before the snapshot, and holds off switches until the end.
            self._hold(session, "seriatim_failures", "access share")
            yield Moment(self.engine, session, self._sql["progress"])


def _by_column(owners: Sequence[Owner]) -> list[list[Any]]:
    return [[owner[part] for owner in owners] for part in (0, 1)]


def _row(kept: Kept) -> Row:
    assert kept.row is not None  # noqa: S101 - removals go their own way
    return kept.row


def _place(table: Table, kept: Kept) -> tuple[Any, ...]:
    row = _row(kept)
    return kept.tenant_id, *[row[name] for name in table.key]


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)

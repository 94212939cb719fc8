"""Run a handler on its registry, with a clock that tests advance and failures that they inject."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.handler import Delivery, Handler
from seriatim.core.kinds import Declaration
from seriatim.core.times import parse_us
from seriatim.delivery.claims import Claim
from seriatim.delivery.entries import Entry, EntryFilter
from seriatim.delivery.handler_loop import Counts, HandlerLoop
from seriatim.delivery.log_origin import LogOrigin
from seriatim.delivery.registry import Registry
from seriatim.delivery.registry_database import REGISTRY_PURPOSE
from seriatim.factory import open_log
from seriatim.log.catalogue import Catalogue
from seriatim.store.sqlite.engine import SqliteEngine, SqliteSession
from seriatim.testing.history import HistoryEvent, append_history

_START_US = 1_704_067_200_000_000  # 2024-01-01, so that the times of a test are always the same
_SECOND_US = 1_000_000
_ENTRIES_MAX = 10_000

FaultKind = Literal["error", "crash", "lease", "outage"]


class HandledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of an event.

    Attributes:
        event_id: The id of the event.
        event_type: Its type.
        position: Its position.
        status: The status in the registry: `done`, `failed` (it will be retried), `dead`,
            `blocked`, `claimed`, `stale`, `skipped` or `unknown`; `passed` if the filter of the
            handler excludes it, and `new` if it was not handled yet.
        attempts: How often it was claimed.
        calls: How often the function of the handler was called and returned.
        error: The error of the last attempt, or empty.
    """

    event_id: str
    event_type: str
    position: int
    status: str
    attempts: int
    calls: int
    error: str


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that happens at one attempt of matching events."""

    kind: FaultKind
    attempt: int
    event_type: str | None
    error: Exception | None = None

    def matches(self, event_type: str, attempt: int) -> bool:
        """Return whether the fault happens at this attempt of an event."""
        return self.attempt == attempt and self.event_type in (None, event_type)


class ProcessCrash(BaseException):
    """The simulated end of the process: nothing after it reaches the registry."""


class SimulatedDatabase:
    """The state of a database in a test: its clock, and whether it can be reached."""

    def __init__(self) -> None:
        self.now_us = _START_US
        self.reachable = True
        self.crashed = False

    def check(self) -> None:
        """Raise if the process has crashed, or the database cannot be reached."""
        if self.crashed:
            raise ProcessCrash
        if not self.reachable:
            raise BackendFailure("the database of the registry was made unreachable by the test")


class SimulatedEngine(SqliteEngine):
    """A SQLite engine whose clock is that of a test, and which a test makes unreachable."""

    now_sql = "seriatim_now_us()"

    def __init__(self, path: str, database: SimulatedDatabase) -> None:
        self.path = path
        self.database = database
        super().__init__(path, REGISTRY_PURPOSE)

    def _open(self, mode: str = "rw") -> Any:
        connection = super()._open(mode)
        connection.create_function("seriatim_now_us", 0, lambda: self.database.now_us)
        return connection

    def open_another(self) -> SimulatedEngine:
        """Return an engine with another connection to the same file."""
        self.database.check()
        return SimulatedEngine(self.path, self.database)

    @contextmanager
    def transaction(
        self, *, write: bool = True, pipelined: bool = False
    ) -> Iterator[SqliteSession]:
        """Run the block in a transaction, unless the database cannot be reached."""
        self.database.check()
        with super().transaction(write=write, pipelined=pipelined) as session:
            yield session


class FaultyRegistry(Registry):
    """A registry in which another consumer takes over chosen claims."""

    def __init__(self, engine: SimulatedEngine, runner: HandlerRunner) -> None:
        settings = runner.settings
        super().__init__(engine, settings, LogOrigin(runner.log.store))
        self._runner = runner

    def claim_all(
        self,
        handler: Handler,
        deliveries: Sequence[Delivery],
        passing: Sequence[Delivery] = (),
    ) -> list[Claim]:
        """Claim events; then let the leases expire that the test wants to be lost."""
        claims = super().claim_all(handler, deliveries, passing)
        lost = [
            claim.delivery
            for claim in claims
            if claim.claimed
            and self._runner.take_fault("lease", claim.delivery.event_type, claim.attempt)
        ]
        if lost:
            self._runner.advance(self.settings.lease_s)
            other = self.clone()
            other.claim_all(handler, lost)
            other.close()
        return claims


class HandlerRunner:
    """Runs a handler over events as a consumer does, with time and failures under control.

    The handler loop and the registry are the real ones, on a temporary SQLite file. Only the clock
    of that database is simulated: retries become due and leases expire when the test advances it.

    Args:
        handler: The handler.
        catalogue: The catalogue of events that are instances of classes.
        declarations: What the log declares first, such as a `StreamKind`.
        settings: Lease and other settings of the registry. An outage is raised and not waited for:
            the policy `pause` would wait for the test itself, and becomes `fail_fast`.

    Attributes:
        log: The log in memory to which `handle` appends new events.
        settings: The settings of the registry.
        crashes: How often the simulated process has crashed.

    Example:
        from seriatim.testing import HandlerRunner

        sent = []

        @seriatim.handler("mails", effect="keyed", events=["order.placed"])
        def mails(event, context):
            sent.append(context.key)

        with HandlerRunner(mails) as runner:
            runner.fail(attempt=1)
            runner.handle([NewEvent("order.placed", {"total": 12})])
            assert sent == []
            runner.advance(60)
            runner.handle()
            assert [event.status for event in runner.report()] == ["done"]
    """

    def __init__(
        self,
        handler: Handler,
        *,
        catalogue: Catalogue | None = None,
        declarations: Sequence[Declaration] = (),
        settings: RegistrySettings | None = None,
    ) -> None:
        self.log = open_log("memory:")
        self.log.declare(*declarations)
        self.settings = settings or RegistrySettings()
        if self.settings.on_outage == "pause":
            self.settings = msgspec.structs.replace(self.settings, on_outage="fail_fast")
        self.crashes = 0
        self._catalogue = catalogue
        self._declared = handler
        self._handler = msgspec.structs.replace(handler, run=self._run)
        self._folder = tempfile.mkdtemp(prefix="seriatim-handler-")
        self._database = SimulatedDatabase()
        self._faults: list[InjectedFault] = []
        self._calls: dict[str, int] = {}
        self._records: dict[str, EventRecord] = {}
        # Events that a crash or an outage kept from being settled or deferred: a consumer whose
        # cursor has not moved receives them again.
        self._undelivered: list[EventRecord] = []
        self.registry = self._open_registry()

    def _open_registry(self) -> Registry:
        path = str(Path(self._folder) / "registry.db")
        registry = FaultyRegistry(SimulatedEngine(path, self._database), self)
        registry.declare(self._handler)
        return registry

    # -- run

    def handle(self, events: Iterable[HistoryEvent] = ()) -> Counts:
        """Handle the events that are due, and then new ones.

        Events that an injected crash or outage interrupted are delivered again first.

        Args:
            events: New events, which are appended to `log`; or records of it, which are delivered
                as they are, for example a second time.

        Returns:
            The number of events by outcome.

        Raises:
            BackendFailure: The database of the registry was made unreachable.
            Conflict: The handler has stopped, or is paused.

        Example:
            runner.handle([NewEvent("order.placed", {"total": 12})])
        """
        batch = self._undelivered + self._to_records(events)
        self._undelivered = batch
        counts = Counts()
        try:
            keys = {record.event_id for record in batch}
            due = self.registry.due(self._handler)
            counts += self._deliver([one for one in due if one.event_id not in keys])
            counts += self._deliver(self.registry.deliveries(batch))
        except ProcessCrash:
            self._restart()
        else:
            self._undelivered = []
        return counts

    def settle(self, *, rounds: int = 1_000) -> Counts:
        """Handle due events, and advance the clock to the next retry, until none is left.

        Args:
            rounds: After how many retries to give up.

        Returns:
            The number of events by outcome, with those of each retry.

        Raises:
            AssertionError: Retries do not end.

        Example:
            runner.settle()
        """
        counts = Counts()
        for _ in range(rounds):
            current = self.handle()
            counts += current
            if current.done or current.stale or current.dead or self._undelivered:
                pass  # other events may be next in their streams
            elif due_us := self._list_due_times():
                self._database.now_us = max(self._database.now_us, min(due_us))
            else:
                return counts
        msg = f"handler {self._declared.name} was not settled after {rounds} rounds"
        raise AssertionError(msg)

    def _list_due_times(self) -> list[int]:
        """Return when retries are due, and when leases end."""
        return [parse_us(entry.due_at) or 0 for entry in self._entries("failed", "claimed")]

    def _to_records(self, events: Iterable[HistoryEvent]) -> list[EventRecord]:
        items = list(events)
        recorded = [item for item in items if isinstance(item, EventRecord)]
        if recorded and len(recorded) < len(items):
            msg = "events must be either all new or all records"
            raise InvalidArgument(msg, details={"argument": "events"})
        records = recorded or append_history(self.log, items, self._catalogue)
        self._records |= {record.event_id: record for record in records}
        return records

    def _deliver(self, deliveries: Sequence[Delivery]) -> Counts:
        lookup = LogOrigin(self.log.store).ranges_before_start
        loop = HandlerLoop(self.registry, self._handler, start_lookup=lookup)
        return loop.handle(deliveries) if deliveries else Counts()

    def _run(self, event: Any, context: Any) -> Any:
        """Call the function of the handler, with the faults of this attempt around it."""
        event_type = getattr(event, "event_type", "")
        fault = self.take_fault("error", event_type, context.attempt)
        if fault is not None and fault.error is not None:
            raise fault.error
        result = self._declared.run(event, context)
        if inspect.iscoroutine(result):

            async def finish() -> None:
                await result
                self._finish_call(event, context.attempt)

            return finish()
        self._finish_call(event, context.attempt)
        return result

    def _finish_call(self, event: Any, attempt: int) -> None:
        """Count a call that returned; crash or cut the database off before it is marked."""
        event_id, event_type = event.event_id, event.event_type
        self._calls[event_id] = self._calls.get(event_id, 0) + 1
        if self.take_fault("outage", event_type, attempt) is not None:
            self._database.reachable = False
        if self.take_fault("crash", event_type, attempt) is not None:
            self._database.crashed = True
            raise ProcessCrash

    def _restart(self) -> None:
        """Begin a new process on the same database."""
        self.crashes += 1
        self.registry.close()
        self._database.crashed = False
        self.registry = self._open_registry()

    # -- time and failures

    def advance(self, seconds: float) -> None:
        """Advance the clock of the registry.

        Args:
            seconds: How far; retries are due after their backoff, leases end after `lease_s`.

        Example:
            runner.advance(60)
        """
        self._database.now_us += int(seconds * _SECOND_US)

    def fail(
        self,
        *,
        attempt: int = 1,
        event_type: str | None = None,
        error: Exception | None = None,
    ) -> None:
        """Let an attempt fail before the function of the handler is called.

        Args:
            attempt: The number of the attempt.
            event_type: Only attempts of this event type; None for all.
            error: The error; by default a `RuntimeError`.

        Example:
            runner.fail(attempt=1, error=TimeoutError("no answer"))
        """
        raised = error or RuntimeError("a failure injected by the test")
        self._inject("error", attempt, event_type, raised)

    def crash(self, *, attempt: int = 1, event_type: str | None = None) -> None:
        """Let the process end after the effect of an attempt, before its claim is completed.

        Args:
            attempt: The number of the attempt.
            event_type: Only attempts of this event type; None for all.

        Example:
            runner.crash(attempt=1)
        """
        self._inject("crash", attempt, event_type)

    def lose_lease(self, *, attempt: int = 1, event_type: str | None = None) -> None:
        """Let the lease of an attempt end, and another consumer claim the event, before its effect.

        The other consumer does nothing: its claim ends after another lease.

        Args:
            attempt: The number of the attempt.
            event_type: Only attempts of this event type; None for all.

        Example:
            runner.lose_lease(attempt=1)
        """
        self._inject("lease", attempt, event_type)

    def cut_off(self, *, attempt: int = 1, event_type: str | None = None) -> None:
        """Make the database unreachable after the effect of an attempt, until `reconnect`.

        Args:
            attempt: The number of the attempt.
            event_type: Only attempts of this event type; None for all.

        Example:
            runner.cut_off(attempt=1)
        """
        self._inject("outage", attempt, event_type)

    def disconnect(self) -> None:
        """Make the database of the registry unreachable now, until `reconnect`.

        Example:
            runner.disconnect()
        """
        self._database.reachable = False

    def reconnect(self) -> None:
        """Make the database of the registry reachable again.

        Example:
            runner.reconnect()
        """
        self._database.reachable = True

    def _inject(
        self,
        kind: FaultKind,
        attempt: int,
        event_type: str | None,
        error: Exception | None = None,
    ) -> None:
        self._faults.append(
            InjectedFault(kind=kind, attempt=attempt, event_type=event_type, error=error)
        )

    def take_fault(self, kind: FaultKind, event_type: str, attempt: int) -> InjectedFault | None:
        """Return the fault of a kind at an attempt, or None."""
        return next(
            (
                fault
                for fault in self._faults
                if fault.kind == kind and fault.matches(event_type, attempt)
            ),
            None,
        )

    # -- results

    def report(self) -> list[HandledEvent]:
        """Return what has become of each event, in the order of the log.

        Example:
            for event in runner.report():
                print(event.event_type, event.status, event.attempts, event.error)
        """
        entries = {entry.event_id: entry for entry in self._entries()}
        return [
            self._describe(record, entries.get(record.event_id))
            for record in sorted(self._records.values(), key=lambda record: record.position)
        ]

    @property
    def dead_letters(self) -> list[HandledEvent]:
        """The events that became dead letters."""
        return [event for event in self.report() if event.status == "dead"]

    def _describe(self, record: EventRecord, entry: Entry | None) -> HandledEvent:
        if entry is not None:
            status = entry.status
        elif self._declared.accepts(record.event_type, record.stream_type):
            status = "new"
        else:
            status = "passed"
        return HandledEvent(
            event_id=record.event_id,
            event_type=record.event_type,
            position=record.position,
            status=status,
            attempts=0 if entry is None else entry.attempts,
            calls=self._calls.get(record.event_id, 0),
            error="" if entry is None else entry.error,
        )

    def _entries(self, *statuses: str) -> list[Entry]:
        entry_filter = EntryFilter(handler=self._declared.name, status=statuses or None)
        return self.registry.entries(entry_filter, _ENTRIES_MAX)

    def query(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement in the database in which transactional effects are written.

        Args:
            sql: The statement, such as `create table mails (event_id text)`.
            values: The values of its `:name` parameters.

        Returns:
            The rows that it returns.

        Example:
            runner.query("create table mails (event_id text)")
            assert runner.query("select count(*) from mails") == [(0,)]
        """
        with self.registry.engine.transaction() as session:
            return session.run(sql, values)

    def close(self) -> None:
        """Close the log and the registry, and delete the temporary file.

        Example:
            runner.close()
        """
        self.registry.close()
        self.log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Return the runner, to be closed at the end of a `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the runner."""
        self.close()

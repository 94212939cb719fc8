"""From a caller's events to a future receipt: check under the current rules, submit, wait."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from seriatim.config import Settings
from seriatim.core.decide import StaleRules
from seriatim.core.doors import Door
from seriatim.core.errors import BackendFailure, InvalidEvent, SeriatimError, TimedOut
from seriatim.core.event import DEFAULT_TENANT, AppendResult, NewEvent
from seriatim.core.guard import Guard
from seriatim.core.ids import uuid7
from seriatim.core.kinds import Rules
from seriatim.core.prepare import Desk, prepare
from seriatim.core.request import (
    Command,
    Prepared,
    PreparedCommand,
    Request,
    check_conditions,
    prepare_command,
)
from seriatim.core.schema import compile_schema
from seriatim.core.tenants import check_tenant
from seriatim.log.lane import Lane
from seriatim.log.traced import append_attributes, with_trace
from seriatim.store.committer import Committer, give_up
from seriatim.store.port import Deferred, Store
from seriatim.telemetry import tracing
from seriatim.telemetry.bus import Telemetry, append_metadata, logger, reuse_metadata

RULE_RELOADS = 20
_DESKS_MAX = 4096


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """One append as the caller asked for it, kept so that it can be checked again."""

    tenant_id: str
    door: Door
    events: Iterable[NewEvent | Mapping[str, Any]]
    condition: Any = None
    idempotency_key: str | None = None
    command: Command | None = None
    on_id_mismatch: Literal["error", "warn"] | None = None  # None: as the log is set


class IdMaker:
    """Makes UUIDv7s that rise within this process, and so land at the end of their index."""

    def __init__(self) -> None:
        self._last = self._counter = 0
        self.after_fork()

    def __call__(self) -> str:
        """Return a new id."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            if now > self._last:
                self._last, self._counter = now, self._random.getrandbits(73)
            else:
                self._counter += 1
            return uuid7(self._last, self._counter)

    def after_fork(self) -> None:
        """Draw anew in a child process, which would count on from its parent's number."""
        self._lock = threading.Lock()
        self._random = random.Random()  # noqa: S311 - ids need not be secret; it seeds itself
        self._last = 0


class Appender:
    """The way of every append of one log, whatever door and tenant it comes from."""

    def __init__(
        self, store: Store, settings: Settings, guard: Guard, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._settings = settings
        self._guard = guard
        self._telemetry = telemetry
        self.new_id = IdMaker()
        self.committer = Committer(
            store.append,
            limits=settings.limits,
            writers=settings.writers or store.best_writers,
        )
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Lane] = (
            weakref.WeakKeyDictionary()
        )
        self.reload_rules()

    def lane(self) -> Lane:
        """Return the way of the running event loop's appends."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            lane = Lane(loop, self._store, self.committer, self._settings.limits)
            self._lanes[loop] = lane
        return lane

    def after_fork(self) -> None:
        """Begin anew in a child process."""
        self._lanes = weakref.WeakKeyDictionary()
        self.committer.after_fork()
        self.new_id.after_fork()

    def close(self, timeout: float) -> None:
        """Finish what was accepted, bounded by the timeout."""
        for lane in list(self._lanes.values()):
            lane.close(timeout)
        self.committer.close(timeout)

    def reload_rules(self) -> None:
        """Read the declarations anew, after this or another process changed them."""
        self._desk = self._make_desk(self._store.rules())
        self._desks: dict[tuple[str, str], Desk] = {}

    @property
    def rules(self) -> Rules:
        """The declarations as this process knows them."""
        return self._desk.rules

    def _make_desk(self, rules: Rules) -> Desk:
        return Desk(
            tenant_id=DEFAULT_TENANT,
            new_id=self.new_id,
            rules=rules,
            guard=self._guard,
            limits=self._settings.limits,
            validators={
                key: compile_schema(entry.schema)
                for key, entry in rules.types.items()
                if entry.schema is not None
            },
        )

    def _desk_for(self, draft: Draft) -> Desk:
        """Return the desk of a tenant's door, made once for many appends."""
        key = draft.tenant_id, draft.door.name
        desk = self._desks.get(key)
        if desk is None:
            if len(self._desks) >= _DESKS_MAX:
                self._desks = {}
            check_tenant(draft.tenant_id)
            desk = msgspec.structs.replace(self._desk, tenant_id=draft.tenant_id, door=draft.door)
            self._desks[key] = desk
        return desk

    def request(self, draft: Draft, carried: Mapping[str, str] | None = None) -> Request:
        """Check a draft under the current rules; what is carried tells its events their trace."""
        desk = self._desk_for(draft)
        conditions = (
            () if draft.condition is None else check_conditions(draft.condition, desk.limits)
        )
        command = self.prepare_command(draft.tenant_id, draft.command)
        events, size = prepare(desk, draft.events, draft.idempotency_key)
        if self._settings.numbered_by == "caller":
            _check_numbered(events)
        if carried:
            events = with_trace(events, carried, desk.guard, desk.limits)
        request = Request(
            draft.tenant_id,
            events,
            conditions,
            command,
            draft.on_id_mismatch or self._settings.on_id_mismatch,
            size,
            desk.rules.version,
            door=draft.door.name,
        )
        return self._store.packed(request, desk.rules)

    def prepare_command(self, tenant_id: str, command: Command | None) -> PreparedCommand | None:
        """Check a command and compute what it is stored under."""
        return prepare_command(tenant_id, command, self._settings.limits, self._guard)

    def append(self, draft: Draft, timeout: float | None) -> AppendResult:
        """Append and wait for the receipt."""
        until = time.monotonic() + (timeout or self._settings.timeout_s)
        watch = Watch(self._telemetry, draft.tenant_id)
        with watch:
            for _ in range(RULE_RELOADS):
                watch.request = self.request(draft, watch.carried)
                try:
                    return watch.done(self._commit(watch.request, until))
                except StaleRules:
                    self.reload_rules()
            raise rules_kept_changing()

    def _commit(self, request: Request, until: float) -> AppendResult:
        """Commit at once when nobody else does, else with the others."""
        seconds = time_left(until, time.monotonic())
        try:
            outcome = self.committer.alone(lambda: self._store.at_once(request, seconds))
        except Deferred as deferred:
            [request] = deferred.requests
            outcome = None
        if outcome is None:
            ticket = self.committer.submit(request)
            try:
                return ticket.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise give_up(ticket) from None
        if isinstance(outcome, AppendResult):
            return outcome
        raise outcome


def time_left(until: float, now: float) -> float:
    """Return what looking up has left of an append's time."""
    if now >= until:
        raise looked_too_long()
    return until - now


def looked_too_long() -> TimedOut:
    """Make the error for an append whose time was over before it could be sent."""
    msg = "the append's time was over before what it depends on was looked up; nothing was stored"
    return TimedOut(msg)


def rules_kept_changing() -> BackendFailure:
    """Make the error for a log whose declarations or contexts change too fast at every try."""
    msg = "the log's declarations or the append's contexts kept changing; nothing was stored"
    return BackendFailure(msg)


class Watch:
    """Times and traces one append, in its caller's own context, and tells how it ended."""

    def __init__(self, telemetry: Telemetry, tenant_id: str) -> None:
        self._telemetry = telemetry
        self._tenant_id = tenant_id
        self._started = time.perf_counter()
        self._span: tracing.Span | None = None
        self.request: Request | None = None
        self.carried: Mapping[str, str] | None = None

    def __enter__(self) -> None:
        """Begin."""
        if tracing.active():
            self._span = tracing.span("seriatim.append", "producer")
            self._span.__enter__()
            self.carried = tracing.inject()

    def done(self, result: AppendResult) -> AppendResult:
        """Report a receipt, and pass it on."""
        request = self.request
        if result.id_mismatch:
            logger.warning("an event id was reused with other %s", ", ".join(result.id_mismatch))
        if self._span is not None:
            told = append_attributes(request, self._tenant_id)
            told |= {"seriatim.replayed": result.replayed, "seriatim.count": result.count}
            self._span.set(told | {"seriatim.first_position": result.first_position})
        if self._telemetry.active:
            took = time.perf_counter() - self._started
            metadata = append_metadata(request, self._tenant_id, replayed=result.replayed)
            counts = {"duration_s": took, "count": result.count}
            self._telemetry.emit("store.append.stop", counts, metadata)
            if result.replayed and result.records:
                reused = reuse_metadata(result.records[0])
                self._telemetry.emit("store.idempotency.reuse", {"count": result.count}, reused)
        return result

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Report an error, which goes on to the caller."""
        if self._span is not None:
            if error is not None:
                self._span.set(append_attributes(self.request, self._tenant_id))
            self._span.__exit__(kind, error, trace)
        if isinstance(error, SeriatimError) and self._telemetry.active:
            took = time.perf_counter() - self._started
            metadata = append_metadata(self.request, self._tenant_id, error_code=error.code)
            self._telemetry.emit("store.append.exception", {"duration_s": took}, metadata)


def _check_numbered(events: Sequence[Prepared]) -> None:
    for index, event in enumerate(events):
        if event.stream_type is not None and event.given_seq is None:
            msg = "stream_seq is the caller's to give: this log is opened so that it numbers none"
            raise InvalidEvent(msg, details={"field": "stream_seq", "index": index})

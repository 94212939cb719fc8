"""The append path of one log: validate under the current declarations, commit, return a receipt."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from seriatim.config import Settings
from seriatim.core.decide import StaleRules
from seriatim.core.errors import BackendFailure, InvalidEvent, SeriatimError, TimedOut
from seriatim.core.event import DEFAULT_TENANT, AppendResult, NewEvent
from seriatim.core.guard import Guard
from seriatim.core.ids import uuid7
from seriatim.core.kinds import Rules
from seriatim.core.limits import Limits
from seriatim.core.prepare import Scan, ValidationContext, prepare, prepare_each
from seriatim.core.profile_rules import ProfileRules
from seriatim.core.request import (
    AppendRequest,
    Command,
    Condition,
    PreparedCommand,
    PreparedEvent,
    check_conditions,
    prepare_command,
)
from seriatim.core.schema import compile_schema
from seriatim.core.tenants import check_tenant
from seriatim.log.span_attributes import add_trace_headers, append_attributes
from seriatim.store.port import Store
from seriatim.store.submission import Submission
from seriatim.telemetry import tracer
from seriatim.telemetry.event_bus import (
    Telemetry,
    logger,
    make_append_metadata,
    make_reuse_metadata,
)

RULE_RELOADS_MAX = 20
_CONTEXTS_MAX = 4096  # pairs of tenant and profile; a log may have any number of tenants


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An append as its caller passed it, kept so that it can be validated again.

    It is validated again when the log's declarations change before it is committed.
    """

    tenant_id: str
    profile_rules: ProfileRules
    events: Iterable[NewEvent | Mapping[str, Any]]
    condition: Any = None
    idempotency_key: str | None = None
    command: Command | None = None
    on_id_mismatch: Literal["error", "warn"] | None = None  # None: the log's setting


class IdGenerator:
    """Generate UUIDv7 ids that increase within this process.

    Increasing ids are inserted at the end of their index, which keeps its pages hot.
    """

    def __init__(self) -> None:
        self._last = self._counter = 0
        self.after_fork()

    def __call__(self) -> str:
        """Return a new id."""
        now = time.time_ns() // 1_000_000
        # Within a millisecond, and when the clock is set back, the random part counts up instead.
        with self._lock:
            if now > self._last:
                self._last, self._counter = now, self._random.getrandbits(73)
            else:
                self._counter += 1
            return uuid7(self._last, self._counter)

    def after_fork(self) -> None:
        """Draw a new random part in a child process, which would repeat its parent's ids."""
        # Another thread of the parent may hold the old lock, and no thread would ever release it.
        self._lock = threading.Lock()
        self._random = random.Random()  # noqa: S311 - ids are not secret
        self._last = 0  # draw a new random part even within the millisecond of the fork


PreparedAppend = tuple[tuple[PreparedEvent, ...], int]  # the events and their size in bytes


class Validator:
    """Validate drafts of every tenant and profile under one version of the declarations.

    It needs no store, so it can work in another process.
    """

    def __init__(
        self, rules: Rules, guard: Guard, limits: Limits, new_id: Callable[[], str]
    ) -> None:
        """Compile the schemas of the declarations, once and not for each event."""
        self.rules = rules
        self._context = ValidationContext(
            tenant_id=DEFAULT_TENANT,
            new_id=new_id,
            rules=rules,
            guard=guard,
            limits=limits,
            validators={
                key: compile_schema(entry.schema)
                for key, entry in rules.types.items()
                if entry.schema is not None
            },
        )
        self._contexts: dict[tuple[str, str], ValidationContext] = {}

    def find_context(self, tenant_id: str, profile_rules: ProfileRules) -> ValidationContext:
        """Return the validation context of a tenant and profile, cached for later appends."""
        key = tenant_id, profile_rules.name
        context = self._contexts.get(key)
        if context is None:
            if len(self._contexts) >= _CONTEXTS_MAX:
                self._contexts = {}  # a context is cheap to make again
            check_tenant(tenant_id)
            context = msgspec.structs.replace(
                self._context, tenant_id=tenant_id, profile_rules=profile_rules
            )
            self._contexts[key] = context
        return context

    def prepare_each(self, drafts: Sequence[Draft]) -> list[PreparedAppend]:
        """Validate the events of drafts together, at less cost than one by one.

        Raises:
            SeriatimError: One of them is invalid; `prepare` finds which.
        """
        contexts = [self.find_context(draft.tenant_id, draft.profile_rules) for draft in drafts]
        return prepare_each(
            (context, draft.events) for context, draft in zip(contexts, drafts, strict=True)
        )


class Appender:
    """Validate and commit the appends of one log, for every profile and tenant."""

    def __init__(
        self, store: Store, settings: Settings, guard: Guard, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._settings = settings
        self.guard = guard
        self._telemetry = telemetry
        self.new_id = IdGenerator()
        self.submission = Submission(
            store,
            limits=settings.limits,
            writers=settings.writers,
            timeout_s=settings.timeout_s,
        )
        self.reload_rules()

    def after_fork(self) -> None:
        """Replace threads, queues and id state in a forked child process."""
        self.submission.after_fork()
        self.new_id.after_fork()

    def close(self, timeout: float) -> None:
        """Stop accepting appends and wait, at most `timeout` seconds, for the accepted ones."""
        self.submission.close(timeout)

    def reload_rules(self) -> None:
        """Read the declarations again, after this or another process changed them."""
        # A thread may still use the validator of the old declarations after this. The store refuses
        # the requests made with it as stale, and the declarations are read again.
        self._validator = Validator(
            self._store.rules(), self.guard, self._settings.limits, self.new_id
        )

    @property
    def rules(self) -> Rules:
        """The declarations, as this process last read them."""
        return self._validator.rules

    def prepare_request(
        self,
        draft: Draft,
        trace_headers: Mapping[str, str] | None = None,
        scan: Callable[[list[Scan]], None] | None = None,
    ) -> AppendRequest:
        """Validate a draft under the current declarations and return the request to commit.

        Args:
            draft: The append.
            trace_headers: Headers to store in the metadata of events that have none.
            scan: Takes what the guards must scan before the append is stored; see `prepare`.

        Raises:
            SeriatimError: The append is invalid; the profile's rules choose the error.
        """
        context = self._validator.find_context(draft.tenant_id, draft.profile_rules)
        conditions = (
            () if draft.condition is None else check_conditions(draft.condition, context.limits)
        )
        command = None
        if draft.command is not None:
            command = self.prepare_command(draft.tenant_id, draft.command)
        events, size = prepare(context, draft.events, draft.idempotency_key, scan)
        if trace_headers:
            # After validation and hashing: metadata is neither hashed nor compared.
            events = add_trace_headers(events, trace_headers, context.guard, context.limits)
        return self._make_request(draft, context.rules, events, size, conditions, command)

    def prepare_requests(self, drafts: Sequence[Draft]) -> list[AppendRequest]:
        """Validate drafts without conditions, commands and keys of whole appends, at less cost.

        Raises:
            SeriatimError: One of them is invalid; `prepare_request` finds which.
        """
        validator = self._validator
        return self.make_requests(drafts, validator.rules, validator.prepare_each(drafts))

    def make_requests(
        self, drafts: Sequence[Draft], rules: Rules, prepared: Sequence[PreparedAppend]
    ) -> list[AppendRequest]:
        """Return the requests of drafts that `Validator.prepare_each` has validated.

        Args:
            drafts: The drafts; their events are not read.
            rules: The declarations under which they were validated.
            prepared: The events and the size of each draft.

        """
        return [
            self._make_request(draft, rules, events, size)
            for draft, (events, size) in zip(drafts, prepared, strict=True)
        ]

    def _make_request(
        self,
        draft: Draft,
        rules: Rules,
        events: tuple[PreparedEvent, ...],
        size: int,
        conditions: tuple[Condition, ...] = (),
        command: PreparedCommand | None = None,
    ) -> AppendRequest:
        if self._settings.numbered_by == "caller":
            _check_numbered(events)
        request = AppendRequest(
            draft.tenant_id,
            events,
            conditions,
            command,
            draft.on_id_mismatch or self._settings.on_id_mismatch,
            size,
            rules.version,
            profile=draft.profile_rules.name,
        )
        return self._store.prepare_request(request, rules)

    def prepare_command(self, tenant_id: str, command: Command | None) -> PreparedCommand | None:
        """Validate a command and compute the keys that it is stored under."""
        return prepare_command(tenant_id, command, self._settings.limits, self.guard)

    def append(self, draft: Draft, timeout: float | None) -> AppendResult:
        """Append and wait for the receipt.

        Args:
            draft: The append.
            timeout: Seconds; None uses the setting `timeout_s`.

        Returns:
            The receipt.

        Raises:
            SeriatimError: The append is invalid, refused by a condition, timed out or failed.
        """
        deadline = time.monotonic() + (timeout or self._settings.timeout_s)
        telemetry = AppendTelemetry(self._telemetry, draft.tenant_id)
        with telemetry:
            # More than one reload: other processes may declare again before this append commits.
            for _ in range(RULE_RELOADS_MAX):
                telemetry.request = self.prepare_request(draft, telemetry.trace_headers)
                remaining = remaining_time(deadline, time.monotonic())
                try:
                    return telemetry.complete(self.submission.append(telemetry.request, remaining))
                except StaleRules:
                    self.reload_rules()
            raise rules_changing_error()

    def append_in(self, connection: Any, draft: Draft) -> AppendResult:
        """Append a draft in the transaction of a caller's connection; see `append`."""
        telemetry = AppendTelemetry(self._telemetry, draft.tenant_id)
        with telemetry:
            for _ in range(RULE_RELOADS_MAX):
                telemetry.request = self.prepare_request(draft, telemetry.trace_headers)
                try:
                    return telemetry.complete(self._store.append_in(connection, telemetry.request))
                except StaleRules:
                    self.reload_rules()
            raise rules_changing_error()


def remaining_time(deadline: float, now: float) -> float:
    """Return the seconds until an append's deadline; raises `TimedOut` if it has passed."""
    if now >= deadline:
        raise preparation_timeout()
    return deadline - now


def preparation_timeout() -> TimedOut:
    """Return the error for an append that timed out before it was sent."""
    msg = "append timed out while evaluating its conditions; nothing was stored"
    return TimedOut(msg)


def rules_changing_error() -> BackendFailure:
    """Return the error for an append whose declarations or contexts changed at every attempt."""
    msg = (
        "the log's declarations or the append's contexts changed at every attempt; "
        "nothing was stored, try again"
    )
    return BackendFailure(msg)


class AppendTelemetry:
    """Measure and trace one append, in the context of its caller."""

    def __init__(self, telemetry: Telemetry, tenant_id: str) -> None:
        self._telemetry = telemetry
        self._tenant_id = tenant_id
        self._started = time.perf_counter()
        self._span: tracer.Span | None = None
        self.request: AppendRequest | None = None
        self.trace_headers: Mapping[str, str] | None = None

    def __enter__(self) -> None:
        """Start the span, if tracing is active."""
        if tracer.is_active():
            self._span = tracer.span("seriatim.append", "producer")
            self._span.__enter__()
            self.trace_headers = tracer.inject()

    def complete(self, result: AppendResult) -> AppendResult:
        """Report a receipt to log, span and telemetry, and return it."""
        request = self.request
        if result.id_mismatch:
            logger.warning(
                "an event id was reused with different %s", ", ".join(result.id_mismatch)
            )
        if self._span is not None:
            attributes = append_attributes(request, self._tenant_id)
            attributes |= {"seriatim.replayed": result.replayed, "seriatim.count": result.count}
            self._span.set(attributes | {"seriatim.first_position": result.first_position})
        if self._telemetry.active:
            elapsed = time.perf_counter() - self._started
            metadata = make_append_metadata(request, self._tenant_id, replayed=result.replayed)
            counts = {"duration_s": elapsed, "count": result.count}
            self._telemetry.emit("store.append.stop", counts, metadata)
            if result.replayed and result.records:
                reused = make_reuse_metadata(result.records[0])
                self._telemetry.emit("store.idempotency.reuse", {"count": result.count}, reused)
        return result

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the span and report an error, which propagates to the caller."""
        if self._span is not None:
            if error is not None:
                self._span.set(append_attributes(self.request, self._tenant_id))
            self._span.__exit__(kind, error, trace)
        if isinstance(error, SeriatimError) and self._telemetry.active:
            elapsed = time.perf_counter() - self._started
            metadata = make_append_metadata(self.request, self._tenant_id, error_code=error.code)
            self._telemetry.emit("store.append.exception", {"duration_s": elapsed}, metadata)


def _check_numbered(events: Sequence[PreparedEvent]) -> None:
    for index, event in enumerate(events):
        if event.stream_type is not None and event.requested_seq is None:
            msg = "stream_seq is missing: with numbered_by=caller every event of a stream needs one"
            raise InvalidEvent(msg, details={"field": "stream_seq", "index": index})

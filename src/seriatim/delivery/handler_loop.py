"""The handler loop: claim events, run their effects in order, complete claims, defer the rest."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Self

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import BackendFailure, Conflict, InvalidArgument, LeaseLost, SeriatimError
from seriatim.core.event import EventRecord
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claim_context import (
    EffectFailed,
    HandlerContext,
    keep_claims,
    not_settled_error,
    open_effect_scope,
    record_failure,
)
from seriatim.delivery.claims import Claim, EventKey, PassedRange, StreamKey, Verdict
from seriatim.delivery.entries import DeadLetter, DeadLetterTarget

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

# Returns the sequence numbers before the handler's start, for blocked streams that are new.
StartLookup = Callable[[Handler, Sequence[Claim]], list[PassedRange]]

# Runs the coroutine that an async handler returned, and returns its result.
RunCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]

_CHUNK = 500


class UnsettledEvent(msgspec.Struct, frozen=True):
    """An event whose verdict is not final; `error` is set if its attempt just failed."""

    delivery: Delivery
    verdict: Verdict
    due_us: int = 0
    error: Exception | None = None


class Counts(msgspec.Struct):
    """The number of events by outcome.

    Attributes:
        done: Their effect was performed now.
        duplicate: Their effect was performed earlier.
        stale: A later event of the stream was handled (`latest_wins`), or the stream is past them.
        passed: The handler's filter excludes them.
        failed: Their attempt failed, and they will be retried.
        dead: They became dead letters.
        kept: They were deferred.
        diverted: They were sent to the dead-letter target because the registry is unreachable.

    """

    done: int = 0
    duplicate: int = 0
    stale: int = 0
    passed: int = 0
    failed: int = 0
    dead: int = 0
    kept: int = 0
    diverted: int = 0

    def __iadd__(self, other: Counts) -> Self:
        """Add other counts to these."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class _StopRequested(Exception):  # noqa: N818 - not an error
    """Ends a transaction of effects because the loop was stopped."""


class HandlerLoop:
    """One consumer of a handler: after `handle`, each event is settled or deferred.

    In strict mode, pass every event of a stream, including those that the handler does not
    select: the loop records the latter in the registry, so that later events do not wait for them.

    Attributes:
        handler: The handler.
        unsettled: The events of the last call of `handle` whose verdict is not final.

    """

    def __init__(
        self,
        registry: Registry,
        handler: Handler,
        *,
        start_lookup: StartLookup | None = None,
        dead_letters: DeadLetterTarget | None = None,
        chunk: int = _CHUNK,
        run_coroutine: RunCoroutine | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a consumer.

        Args:
            registry: The registry.
            handler: A declared handler.
            start_lookup: Looks up the sequence numbers before the handler's start.
            dead_letters: Where dead letters are sent besides the registry.
            chunk: How many events are claimed at once.
            run_coroutine: Runs the coroutines of an async handler; by default in a loop of its own.
            stopped: Ends a chunk early when it returns true: the remaining claims are released, and
                their events are deferred.

        """
        self._registry = registry
        self._stopped = stopped
        self.handler = handler
        self._dead_letters = dead_letters
        self._start_lookup = start_lookup if handler.start else None
        # Unsafe effects are claimed one at a time: a crash leaves one unknown, not a whole chunk.
        self._chunk = 1 if handler.at_most_once else chunk
        self._run_effect_coroutine = run_coroutine or self._run_in_own_loop
        self._runner: asyncio.Runner | None = None
        self.unsettled: list[UnsettledEvent] = []
        # Claims held by this loop that are not completed yet.
        self._open_claims: dict[EventKey, Claim] = {}

    def handle(self, deliveries: Iterable[Delivery]) -> Counts:
        """Handle events in the given order.

        Returns:
            The number of events by outcome.

        Raises:
            Conflict: The handler is paused or stopped.
            LogIdentityChanged: The events come from another log than earlier ones.
            BackendFailure: The registry is unreachable and its policy is not to wait.

        """
        counts = Counts()
        self.unsettled = []
        try:
            self.check_running()
        except BackendFailure:
            # With the policy `dlq`, events are diverted below instead.
            if self._registry.outage.policy != "dlq":
                raise
        try:
            for chunk in _split_chunks(deliveries, self._chunk):
                counts += self._handle_or_divert(chunk)
        finally:
            if self._runner is not None:
                self._runner.close()
                self._runner = None
        return counts

    def _handle_or_divert(self, chunk: Sequence[Delivery]) -> Counts:
        try:
            return self._handle_chunk(chunk)
        except BackendFailure as error:
            if self._registry.outage.policy != "dlq" or not error.retryable:
                raise
            return self._divert(chunk, error)

    def _handle_chunk(self, chunk: Sequence[Delivery]) -> Counts:
        """Handle the selected events, record the excluded ones, dead-letter the invalid ones."""
        selected: list[Delivery] = []
        passing: list[Delivery] = []
        invalid: list[Delivery] = []
        seen: set[EventKey] = set()
        for delivery in chunk:
            # A batch may repeat an event; its second claim would only wait for the first.
            if delivery.key in seen:
                continue
            seen.add(delivery.key)
            if delivery.flaw:
                invalid.append(delivery)
            elif self.handler.accepts(delivery.event_type, _get_stream_type(delivery)):
                selected.append(delivery)
            else:
                passing.append(delivery)
        counts = Counts(passed=len(passing), duplicate=len(chunk) - len(seen))
        counts += self._claim_and_run(selected, passing)
        # After the claims: most excluded events then follow settled ones, and need no row.
        self._registry.pass_over(self.handler, passing)
        if invalid:
            self._send_dead_letters([(delivery, delivery.flaw, 0) for delivery in invalid])
            self._registry.reject_invalid(self.handler, invalid)
            counts.dead += len(invalid)
        return counts

    def _divert(self, chunk: Sequence[Delivery], error: BackendFailure) -> Counts:
        """Send events to the dead-letter target while the registry is unreachable, or raise."""
        selected = [
            delivery
            for delivery in chunk
            if delivery.flaw
            or self.handler.accepts(delivery.event_type, _get_stream_type(delivery))
        ]
        self._send_dead_letters(
            [(delivery, delivery.flaw or error.message, 0) for delivery in selected]
        )
        return Counts(diverted=len(selected), passed=len(chunk) - len(selected))

    def _send_dead_letters(self, failures: Iterable[tuple[Delivery, str, int]]) -> None:
        """Send dead letters to the target outside the registry, if there is one."""
        if self._dead_letters is not None:
            self._dead_letters.send(
                [
                    DeadLetter(
                        handler=self.handler.name, delivery=delivery, error=error, attempts=attempts
                    )
                    for delivery, error, attempts in failures
                ]
            )

    def _claim_and_run(
        self, selected: Sequence[Delivery], passing: Sequence[Delivery] = ()
    ) -> Counts:
        claims = self._claim_chunk(selected, passing)
        # In stream order, whatever the order of delivery.
        claimed = sorted(
            (claim for claim in claims if claim.claimed),
            key=lambda claim: claim.delivery.stream_seq or 0,
        )
        counts = self._defer_refused(claim for claim in claims if not claim.claimed)
        if len(claimed) > 1 and any(claim.attempt > 1 for claim in claimed):
            # One of these events may have killed an earlier worker. Handle each alone, so that a
            # further crash counts as an attempt of that event only.
            self._registry.release(self.handler, claimed)
            for claim in claimed:
                if self._stopped():
                    counts += self._note_released([claim])
                else:
                    counts += self._claim_and_run([claim.delivery])
        elif claimed:
            counts += self._run_or_release(claimed)
        return counts

    def _run_or_release(self, claimed: Sequence[Claim]) -> Counts:
        """Run effects; after an error, release the open claims at once, not by their lease."""
        self._open_claims = {claim.delivery.key: claim for claim in claimed}
        try:
            return self._run_effects(claimed)
        except BaseException:
            # An unsafe effect may have happened: its claim stays, and an operator decides.
            if self._open_claims and not self.handler.at_most_once:
                with (
                    suppress(SeriatimError),
                    closing(self._registry.clone(on_outage="fail_fast")) as registry,
                ):
                    registry.release(self.handler, list(self._open_claims.values()))
            raise

    def _forget_claims(self, claims: Iterable[Claim]) -> None:
        """Note that claims are completed or released."""
        for claim in claims:
            self._open_claims.pop(claim.delivery.key, None)

    def _claim_chunk(
        self, selected: Sequence[Delivery], passing: Sequence[Delivery]
    ) -> list[Claim]:
        """Claim events; if new streams are blocked by events before the start, claim again."""
        claims = self._registry.claim_all(self.handler, selected, passing)
        blocked_at_start = [
            claim
            for claim in claims
            if claim.verdict == "blocked" and claim.settled_seq == claim.delivery.first_seq - 1
        ]
        if not blocked_at_start or self._start_lookup is None:
            return claims
        ranges = self._start_lookup(self.handler, blocked_at_start)
        if not self._registry.pass_ranges(self.handler, ranges):
            return claims
        blocked = [claim.delivery for claim in claims if claim.verdict == "blocked"]
        retried = {
            claim.delivery.key: claim
            for claim in self._registry.claim_all(self.handler, blocked, passing)
        }
        return [retried.get(claim.delivery.key, claim) for claim in claims]

    def _defer_refused(self, refused: Iterable[Claim]) -> Counts:
        """Count events that are settled, and defer the others."""
        counts = Counts()
        deferred: list[Delivery] = []
        stale: list[Delivery] = []
        for claim in refused:
            if claim.verdict == "duplicate_done":
                counts.duplicate += 1
            elif claim.verdict == "stale":
                counts.stale += 1
                stale.append(claim.delivery)
            else:
                counts.kept += 1
                deferred.append(claim.delivery)
                if not claim.final:
                    event = UnsettledEvent(claim.delivery, claim.verdict, claim.due_us)
                    self.unsettled.append(event)
        self._registry.mark_stale(self.handler, stale)
        self._registry.defer(self.handler, deferred)
        return counts

    def _run_effects(self, claimed: Sequence[Claim]) -> Counts:
        try:
            if self.handler.effect == "transactional":
                return self._registry.outage.run(lambda: self._run_in_one_transaction(claimed))
            return self._run_one_by_one(claimed)
        except LeaseLost:
            if self.handler.effect == "transactional" and len(claimed) > 1:
                # The transaction was rolled back, and some of the claims may still be held.
                return self._run_in_own_transactions(claimed)
            # The new owner may not have the events: store them for it.
            self._registry.defer(self.handler, [claim.delivery for claim in claimed])
            self._forget_claims(claimed)
            self.unsettled += [UnsettledEvent(claim.delivery, "in_progress") for claim in claimed]
            return Counts(kept=len(claimed))

    def _run_in_one_transaction(self, claimed: Sequence[Claim]) -> Counts:
        """Run transactional effects in one transaction; if one fails, each in its own."""
        try:
            with open_effect_scope(self._registry, self.handler, claimed) as scope:
                for claim in claimed:
                    if self._stopped():
                        raise _StopRequested  # noqa: TRY301 - it rolls the transaction back
                    scope.check()
                    self._run_handler(claim, HandlerContext(claim, scope.connection, scope.check))
        except _StopRequested:
            return self._release(claimed)
        except EffectFailed as failed:
            if len(claimed) == 1:
                return self._record_failures([(claimed[0], failed.error)])
            return self._run_in_own_transactions(claimed)
        self._forget_claims(claimed)
        return Counts(done=len(claimed))

    def _run_in_own_transactions(self, claimed: Sequence[Claim]) -> Counts:
        """Run each effect in its own transaction; release a stream's events after a failure."""
        counts = Counts()
        stopped_streams: set[StreamKey | None] = set()
        for claim in claimed:
            if self._stopped() or claim.delivery.ordered_stream in stopped_streams:
                counts += self._release([claim])
                continue
            result = self._run_effects([claim])
            if not result.done:
                stopped_streams |= self._find_stopped_stream(claim)
            counts += result
        return counts

    def _run_one_by_one(self, claimed: Sequence[Claim]) -> Counts:
        """Run keyed or unsafe effects one after the other, and complete their claims together."""
        done: list[Claim] = []
        released: list[Claim] = []
        failed: list[tuple[Claim, Exception]] = []
        stopped_streams: set[StreamKey | None] = set()
        try:
            with keep_claims(self._registry, self.handler, claimed) as keeper:
                for claim in claimed:
                    if self._stopped() or claim.delivery.ordered_stream in stopped_streams:
                        released.append(claim)
                        continue
                    keeper.check()
                    try:
                        self._run_handler(claim, HandlerContext(claim, check=keeper.check))
                        done.append(claim)
                    except EffectFailed as failure:
                        failed.append((claim, failure.error))
                        stopped_streams |= self._find_stopped_stream(claim)
        finally:
            # Also after an error or an interrupt: these effects were performed.
            if done:
                self._registry.mark_done(self.handler, done)
                self._forget_claims(done)
        counts = Counts(done=len(done))
        counts += self._release(released)
        counts += self._record_failures(failed)
        return counts

    def _run_handler(self, claim: Claim, context: HandlerContext) -> None:
        try:
            result = self.handler.run(_decode_event(claim.delivery), context)
            if inspect.iscoroutine(result):
                self._run_effect_coroutine(result)
        except LeaseLost:
            raise
        except Exception as error:
            raise EffectFailed(error) from error

    def _run_in_own_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        # One event loop for all events of a call of `handle`, which closes it.
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(coroutine)

    def _find_stopped_stream(self, claim: Claim) -> set[StreamKey | None]:
        """Return the stream that must not continue after a failure: in strict mode, its own."""
        stream_key = claim.delivery.ordered_stream
        return {stream_key} if stream_key and self.handler.mode == "strict" else set()

    def _release(self, claims: Sequence[Claim]) -> Counts:
        """Release claims whose effects were not attempted."""
        if claims:
            try:
                self._registry.release(self.handler, claims)
            except LeaseLost:
                # The new owner may not have the events: store them for it.
                self._registry.defer(self.handler, [claim.delivery for claim in claims])
            self._forget_claims(claims)
        return self._note_released(claims)

    def _note_released(self, claims: Sequence[Claim]) -> Counts:
        """Count released claims, whose events the registry has stored."""
        self.unsettled += [UnsettledEvent(claim.delivery, "blocked") for claim in claims]
        return Counts(kept=len(claims))

    def _record_failures(self, failed: Sequence[tuple[Claim, Exception]]) -> Counts:
        """Record failed attempts; raise `Conflict` if that stops the handler."""
        counts = Counts()
        for claim, error in failed:
            # Send before the event is marked dead: no dead letter may be missing in the target.
            if self.handler.retry.gives_up(claim.attempt, error):
                self._send_dead_letters([(claim.delivery, summarize_error(error), claim.attempt)])
            if record_failure(self._registry, self.handler, claim, error):
                counts.dead += 1
            else:
                counts.failed += 1
                self.unsettled.append(UnsettledEvent(claim.delivery, "waiting", error=error))
            self._forget_claims([claim])
        if counts.dead and self.handler.on_poison == "stop":
            self.check_running()
        return counts

    def check_running(self) -> None:
        """Raise `Conflict` if the handler is stopped or paused."""
        reason = self._registry.inactive_reason(self.handler)
        if reason is not None:
            raise handler_stopped_error(self.handler, reason)


def handler_stopped_error(handler: Handler, reason: str) -> Conflict:
    """Build the error for a handler that is stopped or paused."""
    msg = (
        f"handler {handler.name} is {reason}; use seriatim registry retry, skip or resume to "
        "continue"
    )
    return Conflict(msg, details={"handler": handler.name})


def _decode_event(delivery: Delivery) -> Any:
    """Return the event to pass to a handler: a record, or the JSON value of another source."""
    if not isinstance(delivery.event, msgspec.Raw):
        return delivery.event
    try:
        return msgspec.json.decode(delivery.event, type=EventRecord)
    except msgspec.ValidationError:
        return msgspec.json.decode(delivery.event)


def _get_stream_type(delivery: Delivery) -> str | None:
    return None if delivery.stream is None else delivery.stream[0]


def _split_chunks(deliveries: Iterable[Delivery], size: int) -> Iterator[list[Delivery]]:
    remaining = iter(deliveries)
    while chunk := list(islice(remaining, size)):
        yield chunk


_DUE_LIMIT = 1000
# Short at first, as another consumer often settles an event within milliseconds; at most 1 s, as
# the caller waits.
_BACKOFF = Backoff(first_s=0.02, cap_s=1.0)


def settle(
    registry: Registry,
    handler: Handler,
    deliveries: Sequence[Delivery],
    *,
    wait_s: float = 0.0,
    run_coroutine: RunCoroutine | None = None,
    cancelled: threading.Event | None = None,
) -> Counts:
    """Handle events, and repeat those that are not settled until `wait_s` has elapsed.

    Args:
        registry: The registry.
        handler: The handler; it is declared if necessary.
        deliveries: The events, each with its body.
        wait_s: How long to wait for a backoff, an earlier event or another consumer.
        run_coroutine: Runs the coroutine that an async handler returns.
        cancelled: Ends the waiting when set.

    Returns:
        The number of events by outcome.

    Raises:
        EventNotSettled: The verdict of an event is not final.
        InvalidArgument: `wait_s` is out of range, or a delivery has no event.

    """
    _check_arguments(deliveries, wait_s)
    registry.declare_once(handler)
    start_lookup = None if registry.origin is None else registry.origin.ranges_before_start
    loop = HandlerLoop(registry, handler, start_lookup=start_lookup, run_coroutine=run_coroutine)
    stop = cancelled or threading.Event()
    deadline = time.monotonic() + wait_s
    unsettled = list(deliveries)
    counts = Counts()
    for attempt in count(1):
        _handle_due(registry, loop, unsettled)
        counts += loop.handle(unsettled)
        if not loop.unsettled:
            counts.kept = 0  # deferred in an earlier round, settled by now
            return counts
        remaining = deadline - time.monotonic()
        if remaining <= 0 or stop.wait(min(_BACKOFF.delay_s(attempt), remaining)):
            first = loop.unsettled[0]
            error = not_settled_error(handler, first.delivery, first.verdict)
            error.details["unsettled"] = len(loop.unsettled)
            raise error from first.error
        unsettled = [event.delivery for event in loop.unsettled]
    raise AssertionError  # the attempts never end


def _handle_due(registry: Registry, loop: HandlerLoop, deliveries: Sequence[Delivery]) -> None:
    """Handle deferred events that are due, except those that the caller passed itself."""
    if not registry.has_deferred(loop.handler):
        return
    # Events deferred before a restore may no longer be in the log: they must have no effect.
    registry.check_origin(loop.handler)
    passed_keys = {delivery.key for delivery in deliveries}
    due = [
        delivery
        for delivery in registry.due(loop.handler, _DUE_LIMIT)
        if delivery.key not in passed_keys
    ]
    if due:
        loop.handle(due)


def _check_arguments(deliveries: Sequence[Delivery], wait_s: float) -> None:
    if not 0 <= wait_s < threading.TIMEOUT_MAX:
        msg = f"wait_s must be a number of seconds from 0 on, not {wait_s!r:.40}"
        raise InvalidArgument(msg, details={"argument": "wait_s"})
    for delivery in deliveries:
        if delivery.event is None and not delivery.flaw:
            msg = (
                f"the delivery of event {delivery.event_id} holds no event to handle: pass "
                "Delivery(event=…), a record or any value that JSON can represent"
            )
            raise InvalidArgument(msg, details={"argument": "events"})

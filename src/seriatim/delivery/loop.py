"""The handler loop: claim, have the effects in order, end the claims, keep what must wait."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import msgspec

from seriatim.core.errors import BackendFailure, Conflict, LeaseLost, SeriatimError
from seriatim.core.event import EventRecord
from seriatim.core.handling import Delivery, Handler
from seriatim.core.reasons import reason_of
from seriatim.delivery.claims import Claim, Key, Line, Passed, Verdict
from seriatim.delivery.holding import Beating, Context, EffectFailed, effecting, fail
from seriatim.delivery.letters import Letter, Letters

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

# Of streams that are blocked and were never seen: which numbers lie before the handler's start.
Starts = Callable[[Handler, Sequence[Claim]], list[Passed]]

# Runs what an async handler returned, to its end.
Await = Callable[[Coroutine[Any, Any, Any]], Any]

_CHUNK = 500


class Unsettled(msgspec.Struct, frozen=True):
    """An event whose verdict is not final, and the error of its last attempt if it just failed."""

    delivery: Delivery
    verdict: Verdict
    due_us: int = 0
    error: Exception | None = None


class Tally(msgspec.Struct):
    """What became of events, counted."""

    done: int = 0
    duplicate: int = 0
    stale: int = 0
    passed: int = 0
    failed: int = 0
    dead: int = 0
    kept: int = 0
    diverted: int = 0

    def __iadd__(self, other: Tally) -> Self:
        """Add another count."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class Loop:
    """One consumer of a handler: what it is given is settled, or kept, when it returns.

    In strict mode it is to be given every event of a stream, also those that the handler does not
    want: it tells the registry what is passed over. What lies before the handler's start it asks
    `starts` for.
    """

    def __init__(  # noqa: PLR0913 - what is handled, and by which means
        self,
        registry: Registry,
        handler: Handler,
        *,
        starts: Starts | None = None,
        letters: Letters | None = None,
        chunk: int = _CHUNK,
        await_: Await | None = None,
    ) -> None:
        self._registry = registry
        self.handler = handler
        self._letters = letters
        self._starts = starts if handler.start else None
        # What cannot be made once is claimed one by one: a crash leaves one unknown, not many.
        self._chunk = 1 if handler.at_most_once else chunk
        self._await = await_ or self._in_runner
        self._runner: asyncio.Runner | None = None
        self.unsettled: list[Unsettled] = []  # of what was handled last
        self._open: dict[Key, Claim] = {}  # claims of this loop whose end is not recorded yet

    def handle(self, deliveries: Iterable[Delivery]) -> Tally:
        """Handle events in the order in which they come."""
        tally = Tally()
        self.unsettled = []
        try:
            self.check()
        except BackendFailure:
            if self._registry.outage.policy != "dlq":
                raise
        try:
            for chunk in _chunks(deliveries, self._chunk):
                tally += self._guarded(chunk)
        finally:
            if self._runner is not None:
                self._runner.close()
                self._runner = None
        return tally

    def _guarded(self, chunk: Sequence[Delivery]) -> Tally:
        try:
            return self._take(chunk)
        except BackendFailure as error:
            if self._registry.outage.policy != "dlq" or not error.retryable:
                raise
            return self._divert(chunk, error)

    def _take(self, chunk: Sequence[Delivery]) -> Tally:
        wanted: list[Delivery] = []
        passing: list[Delivery] = []
        strange: list[Delivery] = []
        seen: set[Key] = set()
        for one in chunk:
            if one.key in seen:
                continue
            seen.add(one.key)
            if one.flaw:
                strange.append(one)
            elif self.handler.wants(one.event_type, _kind(one)):
                wanted.append(one)
            else:
                passing.append(one)
        tally = Tally(passed=len(passing), duplicate=len(chunk) - len(seen))
        tally += self._handle(wanted, passing)
        self._registry.pass_over(self.handler, passing)
        if strange:
            self._send([(one, one.flaw, 0) for one in strange])
            self._registry.refuse(self.handler, strange)
            tally.dead += len(strange)
        return tally

    def _divert(self, chunk: Sequence[Delivery], error: BackendFailure) -> Tally:
        """Put events aside that the registry cannot be asked about; sending them may fail too."""
        wanted = [
            one for one in chunk if one.flaw or self.handler.wants(one.event_type, _kind(one))
        ]
        self._send([(one, one.flaw or error.message, 0) for one in wanted])
        return Tally(diverted=len(wanted), passed=len(chunk) - len(wanted))

    def _send(self, dead: Iterable[tuple[Delivery, str, int]]) -> None:
        """Deliver dead letters to where they go besides the registry, if anywhere."""
        if self._letters is not None:
            self._letters.send(
                [
                    Letter(handler=self.handler.name, delivery=one, error=error, attempts=attempts)
                    for one, error, attempts in dead
                ]
            )

    def _handle(self, wanted: Sequence[Delivery], passing: Sequence[Delivery] = ()) -> Tally:
        claims = self._claims(wanted, passing)
        # In the order of their streams, whatever the order of their delivery.
        won = sorted(
            (claim for claim in claims if claim.claimed),
            key=lambda claim: claim.delivery.stream_seq or 0,
        )
        tally = self._settle(claim for claim in claims if not claim.claimed)
        if len(won) > 1 and any(claim.attempt > 1 for claim in won):
            # One of them may be what ended its worker: from now on each counts for itself.
            self._registry.release(self.handler, won)
            for claim in won:
                tally += self._handle([claim.delivery])
        elif won:
            tally += self._ended(won)
        return tally

    def _ended(self, won: Sequence[Claim]) -> Tally:
        """Have the effects; if that ends by an error, leave no claim to its lease."""
        self._open = {claim.delivery.key: claim for claim in won}
        try:
            return self._effects(won)
        except BaseException:
            # An unsafe effect may have happened: only its own end, or an operator, says so.
            if self._open and not self.handler.at_most_once:
                with (
                    suppress(SeriatimError),
                    closing(self._registry.another(on_outage="fail_fast")) as registry,
                ):
                    registry.release(self.handler, list(self._open.values()))
            raise

    def _close(self, claims: Iterable[Claim]) -> None:
        """Note that claims have ended."""
        for claim in claims:
            self._open.pop(claim.delivery.key, None)

    def _claims(self, wanted: Sequence[Delivery], passing: Sequence[Delivery]) -> list[Claim]:
        claims = self._registry.claim_all(self.handler, wanted, passing)
        new = [
            claim
            for claim in claims
            if claim.verdict == "blocked" and claim.settled_seq == claim.delivery.first_seq - 1
        ]
        if not new or self._starts is None:
            return claims
        passed = self._starts(self.handler, new)
        if not self._registry.pass_ranges(self.handler, passed):
            return claims
        blocked = [claim.delivery for claim in claims if claim.verdict == "blocked"]
        answers = {
            claim.delivery.key: claim
            for claim in self._registry.claim_all(self.handler, blocked, passing)
        }
        return [answers.get(claim.delivery.key, claim) for claim in claims]

    def _settle(self, refused: Iterable[Claim]) -> Tally:
        """Count what needs nothing more, and keep the rest."""
        tally = Tally()
        kept: list[Delivery] = []
        outdated: list[Delivery] = []
        for claim in refused:
            if claim.verdict == "duplicate_done":
                tally.duplicate += 1
            elif claim.verdict == "stale":
                tally.stale += 1
                outdated.append(claim.delivery)
            else:
                tally.kept += 1
                kept.append(claim.delivery)
                if not claim.final:
                    found = Unsettled(claim.delivery, claim.verdict, claim.due_us)
                    self.unsettled.append(found)
        self._registry.outdated(self.handler, outdated)
        self._registry.keep(self.handler, kept)
        return tally

    def _effects(self, won: Sequence[Claim]) -> Tally:
        try:
            if self.handler.effect == "transactional":
                return self._registry.outage.through(lambda: self._together(won))
            return self._one_by_one(won)
        except LeaseLost:
            if self.handler.effect == "transactional" and len(won) > 1:
                return self._apart(won)  # all of it was rolled back: some may still be ours
            # Somebody else has them, or some of them; whoever that is may need the events.
            self._registry.keep(self.handler, [claim.delivery for claim in won])
            self._close(won)
            self.unsettled += [Unsettled(claim.delivery, "in_progress") for claim in won]
            return Tally(kept=len(won))

    def _together(self, won: Sequence[Claim]) -> Tally:
        """Have many effects in one transaction, and if one fails, each in its own."""
        try:
            with effecting(self._registry, self.handler, won) as moment:
                for claim in won:
                    moment.check()
                    self._run(claim, Context(claim, moment.connection, moment.check))
        except EffectFailed as failed:
            if len(won) == 1:
                return self._fail([(won[0], failed.error)])
            return self._apart(won)
        self._close(won)
        return Tally(done=len(won))

    def _apart(self, won: Sequence[Claim]) -> Tally:
        """Have each effect in a transaction of its own; a stream ends at its first failure."""
        tally = Tally()
        stuck: set[Line | None] = set()
        for claim in won:
            if claim.delivery.line in stuck:
                tally += self._give_back([claim])
                continue
            one = self._effects([claim])
            if not one.done:
                stuck |= self._stuck_by(claim)
            tally += one
        return tally

    def _one_by_one(self, won: Sequence[Claim]) -> Tally:
        """Have each effect by itself, and mark them done together."""
        done: list[Claim] = []
        back: list[Claim] = []
        failed: list[tuple[Claim, Exception]] = []
        stuck: set[Line | None] = set()
        try:
            with Beating(self._registry, self.handler, won) as beating:
                for claim in won:
                    if claim.delivery.line in stuck:
                        back.append(claim)
                        continue
                    beating.check()
                    try:
                        self._run(claim, Context(claim, check=beating.check))
                        done.append(claim)
                    except EffectFailed as one:
                        failed.append((claim, one.error))
                        stuck |= self._stuck_by(claim)
        finally:
            if done:
                self._registry.mark_done(self.handler, done)
                self._close(done)
        tally = Tally(done=len(done))
        tally += self._give_back(back)
        tally += self._fail(failed)
        return tally

    def _run(self, claim: Claim, context: Context) -> None:
        try:
            found = self.handler.run(_event(claim.delivery), context)
            if inspect.iscoroutine(found):
                self._await(found)
        except LeaseLost:
            raise
        except Exception as error:
            raise EffectFailed(error) from error

    def _in_runner(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(coroutine)

    def _stuck_by(self, claim: Claim) -> set[Line | None]:
        """Return the stream that may not go on after a failure, if it is to be in order."""
        line = claim.delivery.line
        return {line} if line and self.handler.mode == "strict" else set()

    def _give_back(self, claims: Sequence[Claim]) -> Tally:
        if claims:
            with suppress(LeaseLost):  # then they are somebody else's already
                self._registry.release(self.handler, claims)
            self._close(claims)
            self.unsettled += [Unsettled(claim.delivery, "blocked") for claim in claims]
        return Tally(kept=len(claims))

    def _fail(self, failed: Sequence[tuple[Claim, Exception]]) -> Tally:
        tally = Tally()
        for claim, error in failed:
            if self.handler.retry.gives_up(claim.attempt, error):
                self._send([(claim.delivery, reason_of(error), claim.attempt)])
            if fail(self._registry, self.handler, claim, error):
                tally.dead += 1
            else:
                tally.failed += 1
                self.unsettled.append(Unsettled(claim.delivery, "waiting", error=error))
            self._close([claim])
        if tally.dead and self.handler.on_poison == "stop":
            self.check()
        return tally

    def check(self) -> None:
        """Raise if the handler was stopped or paused."""
        reason = self._registry.held_up(self.handler)
        if reason is not None:
            raise stopped(self.handler, reason)


def stopped(handler: Handler, reason: str) -> Conflict:
    """Make the error for a handler that may not run."""
    msg = f"handler {handler.name} is {reason}; seriatim registry retry, skip or resume helps"
    return Conflict(msg, details={"handler": handler.name})


def _event(delivery: Delivery) -> Any:
    """Return the event as its source gave it: a record, or what a record is not."""
    if not isinstance(delivery.event, msgspec.Raw):
        return delivery.event
    try:
        return msgspec.json.decode(delivery.event, type=EventRecord)
    except msgspec.ValidationError:
        return msgspec.json.decode(delivery.event)


def _kind(delivery: Delivery) -> str | None:
    return None if delivery.stream is None else delivery.stream[0]


def _chunks(deliveries: Iterable[Delivery], size: int) -> Iterator[list[Delivery]]:
    left = iter(deliveries)
    while chunk := list(islice(left, size)):
        yield chunk

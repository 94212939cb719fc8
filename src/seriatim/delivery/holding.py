"""A claim held while its effect is had: kept alive by heartbeats, ended with the block."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from seriatim.core.errors import BackendFailure, Conflict, EventNotSettled, LeaseLost
from seriatim.core.handling import Delivery, Handler
from seriatim.core.reasons import reason_of
from seriatim.delivery.claims import Claim, Verdict
from seriatim.store.engine import Session

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

logger = logging.getLogger("seriatim")


class Beating:
    """Heartbeats for claims, from a thread and a connection of their own, while a block runs."""

    def __init__(self, registry: Registry, handler: Handler, claims: Sequence[Claim]) -> None:
        self._registry = registry
        self._handler = handler
        self._claims = claims
        self._lost: LeaseLost | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="seriatim-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, whatever came of it."""
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise if a claim was lost: what is not done yet must not be done any more."""
        if self._lost is not None:
            raise self._lost

    def _beat(self) -> None:
        own: Registry | None = None
        try:
            while not self._ended.wait(self._registry.settings.heartbeat_s):
                try:
                    own = own or self._registry.another(on_outage="fail_fast")
                    own.heartbeat(self._handler, self._claims)
                except BackendFailure as error:
                    # At worst the lease runs out, and whoever takes the claim has a higher token.
                    logger.warning("a heartbeat failed: %s", error.message)
        except LeaseLost as error:
            self._lost = error
        finally:
            if own is not None:
                own.close()


class Context:
    """What a handler is given beside the event."""

    def __init__(
        self,
        claim: Claim,
        connection: Any = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.attempt = claim.attempt
        self.token = claim.token
        self.key = stable_key(claim.delivery)
        self._connection = connection
        self._check = check

    @property
    def connection(self) -> Any:
        """The database connection in whose transaction a `transactional` effect is written."""
        if self._connection is None:
            msg = "only a transactional handler is given a connection: declare its effect so"
            raise AttributeError(msg)
        return self._connection

    def check(self) -> None:
        """Raise `lease_lost` if the claim is somebody else's meanwhile: for long effects."""
        if self._check is not None:
            self._check()


def stable_key(delivery: Delivery) -> str:
    """Return the key that is the same at every attempt, and no other event has in any tenant."""
    return f"{quote(delivery.tenant_id, safe='')}/{delivery.event_id}"


class Held:
    """`with registry.claim(handler, event) as claim:` the effect is had if `claim` is true.

    The end of the block marks it done, an exception marks it failed and goes on its way. Without a
    claim the verdict is final, unless the caller asked for the other ones too.
    """

    def __init__(
        self,
        registry: Registry,
        handler: Handler,
        delivery: Delivery,
        *,
        unsettled: Literal["raise", "return"] = "raise",
    ) -> None:
        self._registry = registry
        self._raises = unsettled == "raise"
        self._handler = handler
        self._delivery = delivery
        self._stack = ExitStack()
        self._claim: Claim | None = None
        self.context: Context | None = None

    @property
    def verdict(self) -> Verdict:
        """What the registry said."""
        return "in_progress" if self._claim is None else self._claim.verdict

    @property
    def connection(self) -> Any:
        """The connection of a transactional effect."""
        return None if self.context is None else self.context.connection

    @property
    def key(self) -> str:
        """The idempotency key for the target of a keyed effect."""
        return stable_key(self._delivery)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return 0 if self._claim is None else self._claim.attempt

    def check(self) -> None:
        """Raise `lease_lost` if the claim is somebody else's meanwhile."""
        if self.context is not None:
            self.context.check()

    def __bool__(self) -> bool:
        """Tell whether the effect is to be had now."""
        return self._claim is not None and self._claim.claimed

    def __enter__(self) -> Self:
        """Ask for the claim."""
        [claim] = self._registry.claim_all(self._handler, [self._delivery])
        self._claim = claim
        if claim.claimed:
            entered = self._stack.enter_context(effecting(self._registry, self._handler, [claim]))
            self.context = Context(claim, entered.connection, entered.check)
        elif self._raises and not claim.final:
            raise not_settled(self._handler, self._delivery, claim.verdict)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the claim."""
        if self._claim is None or not self._claim.claimed:
            return
        try:
            self._stack.__exit__(kind, error, trace)
        except EffectFailed as failed:
            fail(self._registry, self._handler, self._claim, failed.error)
            raise failed.error from failed.error.__cause__
        if isinstance(error, Exception) and not isinstance(error, LeaseLost):
            fail(self._registry, self._handler, self._claim, error)
        elif error is not None and not isinstance(error, Exception):
            self._interrupted(self._claim)

    def _interrupted(self, claim: Claim) -> None:
        """Free the event for the next consumer, unless its effect may not be repeated."""
        if not self._handler.at_most_once:
            with suppress(LeaseLost):  # then it is somebody else's already
                self._registry.release(self._handler, [claim])


_WHY = {
    "waiting": "its last attempt failed, and it backs off",
    "blocked": (
        "an earlier event of its stream is not settled, or the handler is paused (seriatim "
        "registry status, seriatim dlq list)"
    ),
    "in_progress": "another consumer is handling it",
}


def not_settled(handler: Handler, delivery: Delivery, verdict: Verdict) -> EventNotSettled:
    """Make the error for an event that must be delivered again."""
    msg = (
        f"event {delivery.event_id} is not settled for handler {handler.name}: "
        f"{_WHY.get(verdict, verdict)}; keep the cursor or offset and deliver it again"
    )
    details = {
        "handler": handler.name,
        "tenant_id": delivery.tenant_id,
        "event_id": delivery.event_id,
        "verdict": verdict,
    }
    return EventNotSettled(msg, details=details)


class Effecting:
    """The moment in which effects are had: a connection if they are transactional, and a check."""

    def __init__(self, beating: Beating, connection: Any = None) -> None:
        self.connection = connection
        self.check = beating.check


@contextmanager
def effecting(registry: Registry, handler: Handler, claims: Sequence[Claim]) -> Iterator[Effecting]:
    """Let effects be had, and mark their claims done; transactional ones in one transaction."""
    if handler.effect != "transactional":
        with Beating(registry, handler, claims) as beating:
            yield Effecting(beating)
        registry.mark_done(handler, claims)
        return
    with Beating(registry, handler, claims) as beating:
        used: Session | None = None
        try:
            with registry.engine.transaction() as session:
                used = session
                try:
                    with session.lent():
                        yield Effecting(beating, session.connection)
                except Exception as error:
                    if outage := session.outage(error):
                        raise outage from outage.__cause__
                    if refusal := session.refusal(error):
                        why = Conflict(refusal, details={"handler": handler.name})
                        raise EffectFailed(why) from error
                    raise _Users(error) from error
                if defect := session.defect():
                    raise EffectFailed(Conflict(defect, details={"handler": handler.name}))
                registry.mark_done_in(session, handler, claims)
        except _Users as raised:
            raise raised.error from raised.error.__cause__
        except BackendFailure as failure:
            # COMMIT is where deferred constraints speak: that is the effect's failure.
            cause = failure.__cause__
            if used is None or not isinstance(cause, Exception) or used.outage(cause):
                raise
            raise EffectFailed(cause) from cause


class EffectFailed(Exception):  # noqa: N818 - wraps the error of one effect
    """An effect failed by itself, or the database refused to commit it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _Users(EffectFailed):
    """Carries the error of a user's code past the engine, which would take it for its own."""


def fail(registry: Registry, handler: Handler, claim: Claim, error: Exception) -> bool:
    """Mark a claim failed as the handler's policy says; True when it is a dead letter now."""
    dead = handler.retry.gives_up(claim.attempt, error)
    chance = random.random()  # noqa: S311 - no secret, a jitter
    pause = None if dead else handler.retry.pause_s(claim.attempt, chance)
    registry.mark_failed(handler, claim, reason_of(error), pause_s=pause)
    return dead

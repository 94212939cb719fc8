"""A claim that is held while its effect runs: renewed by heartbeats, completed with the block."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import BackendFailure, Conflict, EventNotSettled, LeaseLost
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claims import Claim, Verdict
from seriatim.store.engine import EngineSession
from seriatim.store.lease_keeper import LeaseKeeper

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

logger = logging.getLogger("seriatim")


def keep_claims(registry: Registry, handler: Handler, claims: Sequence[Claim]) -> LeaseKeeper:
    """Return a keeper that renews claims by heartbeats while their effects run."""
    clones: list[Registry] = []

    def renew() -> bool:
        if not clones:
            # A separate connection, as the effect may hold the registry's in a transaction.
            clones.append(registry.clone(on_outage="fail_fast"))
        clones[0].heartbeat(handler, claims)  # raises LeaseLost
        return True

    def warn(error: Exception) -> None:
        # If the lease expires, the next owner has a higher token and fences this one.
        logger.warning("renewing a claim failed: %s", summarize_error(error))

    def close() -> None:
        for clone in clones:
            clone.close()

    return LeaseKeeper(
        renew,
        registry.settings.heartbeat_s,
        name=f"a claim of handler {handler.name}",
        on_error=warn,
        on_end=close,
    )


class HandlerContext:
    """The second argument of a handler.

    Attributes:
        attempt: Which attempt this is, from 1.
        token: The fencing token of the claim.
        key: The idempotency key of the effect, the same in every attempt.

    """

    def __init__(
        self,
        claim: Claim,
        connection: Any = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.attempt = claim.attempt
        self.token = claim.token
        self.key = effect_key(claim.delivery)
        self._connection = connection
        self._check = check

    @property
    def connection(self) -> Any:
        """The database connection in whose transaction a `transactional` effect is written.

        Raises:
            AttributeError: The handler is not transactional.

        """
        if self._connection is None:
            msg = (
                "only a transactional handler has a connection: declare it with "
                'effect="transactional"'
            )
            raise AttributeError(msg)
        return self._connection

    def check(self) -> None:
        """Raise `LeaseLost` if another consumer holds the claim now; call it in long effects."""
        if self._check is not None:
            self._check()


def effect_key(delivery: Delivery) -> str:
    """Return the idempotency key of an event's effect: the same in every attempt, unique."""
    # Tenant ids are escaped, so that no other pair of tenant and event has the same key.
    return f"{quote(delivery.tenant_id, safe='')}/{delivery.event_id}"


class ClaimContext:
    """The context manager that `Registry.claim` returns; it is true if the event was claimed.

    Leaving the block completes the claim. An exception marks the attempt as failed and propagates.
    If the event was not claimed, `verdict` is final, unless the caller passed
    `unsettled="return"`.

    Example:
        with registry.claim(handler, event) as claim:
            if claim:
                send_receipt(event, idempotency_key=claim.key)

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
        self.context: HandlerContext | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the registry."""
        return "in_progress" if self._claim is None else self._claim.verdict

    @property
    def connection(self) -> Any:
        """The connection of a transactional effect, None if the event was not claimed."""
        return None if self.context is None else self.context.connection

    @property
    def key(self) -> str:
        """The idempotency key for the target of a keyed effect."""
        return effect_key(self._delivery)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; 0 before the block is entered."""
        return 0 if self._claim is None else self._claim.attempt

    def check(self) -> None:
        """Raise `LeaseLost` if another consumer holds the claim now."""
        if self.context is not None:
            self.context.check()

    def __bool__(self) -> bool:
        """Return whether the caller must perform the effect."""
        return self._claim is not None and self._claim.claimed

    def __enter__(self) -> Self:
        """Claim the event; raise `EventNotSettled` if its verdict is not final."""
        [claim] = self._registry.claim_all(self._handler, [self._delivery])
        self._claim = claim
        if claim.claimed:
            scope = self._stack.enter_context(
                open_effect_scope(self._registry, self._handler, [claim])
            )
            self.context = HandlerContext(claim, scope.connection, scope.check)
        elif self._raises and not claim.final:
            raise not_settled_error(self._handler, self._delivery, claim.verdict)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the claim, or record the failure of the attempt."""
        if self._claim is None or not self._claim.claimed:
            return
        try:
            self._stack.__exit__(error_type, error, trace)
        except EffectFailed as failed:
            record_failure(self._registry, self._handler, self._claim, failed.error)
            raise failed.error from failed.error.__cause__
        if isinstance(error, Exception) and not isinstance(error, LeaseLost):
            record_failure(self._registry, self._handler, self._claim, error)
        elif error is not None and not isinstance(error, Exception):
            self._release_interrupted(self._claim)

    def _release_interrupted(self, claim: Claim) -> None:
        """Release the claim after an interrupt, unless its effect must not be repeated."""
        if not self._handler.at_most_once:
            with suppress(LeaseLost):  # another consumer holds it already
                self._registry.release(self._handler, [claim])


_VERDICT_REASONS = {
    "waiting": "its last attempt failed and the backoff has not elapsed",
    "blocked": (
        "an earlier event of its stream is not settled, or the handler is paused or stopped (see "
        "seriatim registry status and seriatim dlq list)"
    ),
    "in_progress": "another consumer is processing it",
}


def not_settled_error(handler: Handler, delivery: Delivery, verdict: Verdict) -> EventNotSettled:
    """Build the error for an event that must be delivered again."""
    msg = (
        f"event {delivery.event_id} is not settled for handler {handler.name}: "
        f"{_VERDICT_REASONS.get(verdict, verdict)}; do not advance the cursor or offset, and "
        "deliver it again"
    )
    details = {
        "handler": handler.name,
        "tenant_id": delivery.tenant_id,
        "event_id": delivery.event_id,
        "verdict": verdict,
    }
    return EventNotSettled(msg, details=details)


class EffectScope:
    """The scope in which effects run: `check`, and for transactional effects a connection."""

    def __init__(self, keeper: LeaseKeeper, connection: Any = None) -> None:
        self.connection = connection
        self.check = keeper.check


@contextmanager
def open_effect_scope(
    registry: Registry, handler: Handler, claims: Sequence[Claim]
) -> Iterator[EffectScope]:
    """Renew claims while their effects run, then mark them done.

    Transactional effects and their completion are committed in one transaction.

    Raises:
        EffectFailed: The effect ended the transaction or broke it, or the database refused to
            commit it.
        LeaseLost: Another consumer holds one of the claims; nothing of a transactional effect was
            committed.
        BackendFailure: The database is unavailable.

    """
    if handler.effect != "transactional":
        with keep_claims(registry, handler, claims) as keeper:
            yield EffectScope(keeper)
        registry.mark_done(handler, claims)
        return
    # Around the transaction, so that heartbeats go on while it commits.
    with keep_claims(registry, handler, claims) as keeper:
        effect_session: EngineSession | None = None
        try:
            with registry.engine.transaction() as session:
                effect_session = session
                try:
                    # A commit by the effect would separate it from the completion of its claim.
                    with session.forbid_commit():
                        yield EffectScope(keeper, session.connection)
                except Exception as error:
                    # An outage is not a failure of the effect: the outage policy applies to it.
                    if outage := session.find_outage(error):
                        raise outage from outage.__cause__
                    if refusal := session.explain_refusal(error):
                        conflict = Conflict(refusal, details={"handler": handler.name})
                        raise EffectFailed(conflict) from error
                    raise _UserCodeFailed(error) from error
                # The effect may have caught an error of its statement, after which Postgres commits
                # nothing; `mark_done_in` would then fail with an error about the registry.
                if defect := session.find_defect():
                    raise EffectFailed(Conflict(defect, details={"handler": handler.name}))
                registry.mark_done_in(session, handler, claims)
        except _UserCodeFailed as raised:
            raise raised.error from raised.error.__cause__
        except BackendFailure as failure:
            # Deferred constraints are checked at COMMIT: such an error is the effect's failure.
            cause = failure.__cause__
            if (
                effect_session is None
                or not isinstance(cause, Exception)
                or effect_session.find_outage(cause)
            ):
                raise
            raise EffectFailed(cause) from cause


class EffectFailed(Exception):  # noqa: N818 - wraps the error of one effect
    """Wraps the error of an effect that failed, or that the database refused to commit."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _UserCodeFailed(EffectFailed):
    """Carries an error of user code past the engine, which would translate it as its own."""


def record_failure(registry: Registry, handler: Handler, claim: Claim, error: Exception) -> bool:
    """Record a failed attempt according to the handler's retry policy.

    Returns:
        Whether the event is a dead letter now.

    """
    dead = handler.retry.gives_up(claim.attempt, error)
    chance = random.random()  # noqa: S311 - jitter, not a secret
    pause = None if dead else handler.retry.pause_s(claim.attempt, chance)
    registry.mark_failed(handler, claim, summarize_error(error), pause_s=pause)
    return dead

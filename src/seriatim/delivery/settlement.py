"""Handle events until the verdict of each is final: the implementation of `Registry.handle`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from seriatim.core.backoff import Backoff
from seriatim.core.errors import InvalidArgument
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claim_context import not_settled_error
from seriatim.delivery.handler_loop import Counts, HandlerLoop, RunCoroutine

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

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
    starts = None if registry.origin is None else registry.origin.ranges_before_start
    loop = HandlerLoop(registry, handler, start_lookup=starts, run_coroutine=run_coroutine)
    stop = cancelled or threading.Event()
    deadline = time.monotonic() + wait_s
    left = list(deliveries)
    counts = Counts()
    for attempt in count(1):
        _handle_due(registry, loop, left)
        counts += loop.handle(left)
        if not loop.unsettled:
            counts.kept = 0  # deferred in an earlier round, settled by now
            return counts
        remaining = deadline - time.monotonic()
        if remaining <= 0 or stop.wait(min(_BACKOFF.delay_s(attempt), remaining)):
            first = loop.unsettled[0]
            error = not_settled_error(handler, first.delivery, first.verdict)
            error.details["unsettled"] = len(loop.unsettled)
            raise error from first.error
        left = [one.delivery for one in loop.unsettled]
    raise AssertionError  # the attempts never end


def _handle_due(registry: Registry, loop: HandlerLoop, given: Sequence[Delivery]) -> None:
    """Handle deferred events that are due, except those that the caller passed itself."""
    if not registry.has_deferred(loop.handler):
        return
    # Events deferred before a restore may no longer be in the log: they must have no effect.
    registry.check_origin(loop.handler)
    given_keys = {one.key for one in given}
    due = [one for one in registry.due(loop.handler, _DUE_LIMIT) if one.key not in given_keys]
    if due:
        loop.handle(due)


def _check_arguments(deliveries: Sequence[Delivery], wait_s: float) -> None:
    if not 0 <= wait_s < threading.TIMEOUT_MAX:
        msg = f"wait_s must be a number of seconds from 0 on, not {wait_s!r:.40}"
        raise InvalidArgument(msg, details={"argument": "wait_s"})
    for one in deliveries:
        if one.event is None and not one.flaw:
            msg = (
                f"the delivery of event {one.event_id} holds no event to handle: pass "
                "Delivery(event=…), a record or any value that JSON can represent"
            )
            raise InvalidArgument(msg, details={"argument": "events"})

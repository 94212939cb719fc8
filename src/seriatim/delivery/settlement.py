"""Handling events until the verdict of each is final: what a consumer of one's own calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seriatim.core.errors import InvalidArgument
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.holding import not_settled
from seriatim.delivery.loop import Await, Loop, Tally

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

_DUE = 1000
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


def settle(  # noqa: PLR0913 - what is handled, and for how long
    registry: Registry,
    handler: Handler,
    deliveries: Sequence[Delivery],
    *,
    wait_s: float = 0.0,
    await_: Await | None = None,
    ended: threading.Event | None = None,
) -> Tally:
    """Handle events; raise `EventNotSettled` if one is not settled after `wait_s` seconds."""
    _check(deliveries, wait_s)
    registry.declare_once(handler)
    starts = None if registry.origin is None else registry.origin.starts
    loop = Loop(registry, handler, starts=starts, await_=await_)
    stop = ended or threading.Event()
    until = time.monotonic() + wait_s
    pause = _FIRST_PAUSE_S
    left = list(deliveries)
    tally = Tally()
    while True:
        _handle_due(registry, loop, left)
        tally += loop.handle(left)
        if not loop.unsettled:
            tally.kept = 0  # whatever had to wait is settled now
            return tally
        remaining = until - time.monotonic()
        if remaining <= 0 or stop.wait(min(pause, remaining)):
            first = loop.unsettled[0]
            error = not_settled(handler, first.delivery, first.verdict)
            error.details["unsettled"] = len(loop.unsettled)
            raise error from first.error
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        left = [one.delivery for one in loop.unsettled]


def _handle_due(registry: Registry, loop: Loop, given: Sequence[Delivery]) -> None:
    """Handle kept events whose time has come; a given one is handled as it was given."""
    if not registry.keeps(loop.handler):
        return
    registry.check_origin(loop.handler)  # kept events of a lost future must not have an effect
    known = {one.key for one in given}
    due = [one for one in registry.due(loop.handler, _DUE) if one.key not in known]
    if due:
        loop.handle(due)


def _check(deliveries: Sequence[Delivery], wait_s: float) -> None:
    if not 0 <= wait_s < threading.TIMEOUT_MAX:
        msg = "wait_s is a number of seconds, from 0"
        raise InvalidArgument(msg, details={"argument": "wait_s"})
    for one in deliveries:
        if one.event is None and not one.flaw:
            msg = (
                f"the delivery of {one.event_id} holds no event to handle: Delivery(event=…), a "
                "record or anything that JSON can hold"
            )
            raise InvalidArgument(msg, details={"argument": "events"})

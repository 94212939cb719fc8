"""Run a handler on the local engine, and die by SIGKILL at a point of the n-th event or chunk."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

import seriatim
from seriatim.config.delivery import RegistrySettings
from seriatim.core.handler import Handler
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.delivery.registry import Registry
from seriatim.factory import registry_url
from tests.pipeline.delivery.effects import make_posting_handler, make_transactional_handler

# Those of seed 003, and the two after which only the cursor or the transaction is missing.
POINTS = (
    "before claim",
    "after claim",
    "after effect",
    "before commit",
    "after mark",
    "before cursor",
)
HASTY = RegistrySettings(lease_s=1.0, heartbeat_s=0.3)


def die_at(act: Callable[..., Any], nth: int, *, after: bool) -> Callable[..., Any]:
    """Return a function whose n-th call kills this process, before or after it acts."""
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = act(*arguments, **options)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return counted


def make_handler(effect: str, target: str) -> Handler:
    """Return the handler: it writes a row, or posts to a server."""
    if effect == "transactional":
        return make_transactional_handler()
    return make_posting_handler(target, effect=effect)


def doom(declared: Handler, point: str, nth: int) -> Handler:
    """Arm the crash, and return the handler with it."""
    registry, loop = vars(Registry), vars(HandlerLoop)
    if point == "after effect":
        return msgspec.structs.replace(declared, run=die_at(declared.run, nth, after=True))
    owner: Any = Registry
    name, after = {
        "before claim": ("claim_all", False),
        "after claim": ("claim_all", True),
        "before commit": ("mark_done_in", True),
        "after mark": ("mark_done", True),
        "before cursor": ("move_cursor", False),
    }[point]
    if declared.effect == "transactional" and point == "after mark":
        owner, name = HandlerLoop, "_run_in_one_transaction"
    setattr(owner, name, die_at((registry | loop)[name], nth, after=after))
    return declared


def main(url: str, effect: str, target: str, way: str, point: str, nth: int) -> None:
    """Catch up or follow until the crash; at the point `none`, follow until SIGTERM."""
    declared = make_handler(effect, target)
    if point != "none":
        declared = doom(declared, point, nth)
    with seriatim.open(url) as log:
        handlers = log.handlers_at(registry_url(url), HASTY)
        if way == "run":
            handlers.run(declared, batch_events=4)
            sys.exit("the run ended before its crash point")
        signals: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
        with handlers.follow(declared, batch_events=4) as follower:
            print("ready", flush=True)  # noqa: T201 - read by the test
            deadline = time.monotonic() + 120
            while not signals and time.monotonic() < deadline:
                time.sleep(0.02)
        with suppress(OSError):
            print(follower.health()[0].status)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))

"""Consumers that are created before a fork and run in the children."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import seriatim
from seriatim import NewEvent
from seriatim.core.handler import handler
from seriatim.factory import open_registry
from tests.faults.consumers import make_events

LEASE_S = 60.0


def fork_subscription(arguments: dict[str, Any]) -> list[Any]:
    """Create a subscription, fork twice, and return the positions that each child handled."""
    with seriatim.open(arguments["url"]) as log:
        for number in range(arguments["appends"]):
            log.append([NewEvent("placed", {"n": number})])
        made = log.subscribe("shared", lease_s=LEASE_S, poll_s=0.05, idle_timeout=1.0)

        def child(_: int) -> list[int]:
            handled: list[int] = []

            def handle(batch: Any) -> None:
                if not handled:
                    time.sleep(1.0)  # while the other child tries to claim the lease
                handled.extend(record.position for record in batch)

            made.run(handle)
            return handled

        return _children(child)


def fork_mid_iteration(arguments: dict[str, Any]) -> list[Any]:
    """Fork while a batch is handled; return the child's result and the parent's positions."""
    with seriatim.open(arguments["url"]) as log:
        for number in range(arguments["appends"]):
            log.append([NewEvent("placed", {"n": number})])
        batches = iter(log.subscribe("shared", lease_s=LEASE_S, poll_s=0.05, idle_timeout=1.0))
        first = next(batches)

        def child(_: int) -> str:
            try:
                return f"continued at {next(batches)[0].position}"
            except seriatim.SeriatimError as error:
                return error.code

        results = _children(child, 1)
        rest = [record.position for batch in batches for record in batch]
        return [*results, [first[0].position, *rest]]


def fork_registry(arguments: dict[str, Any]) -> list[Any]:
    """Open a registry, fork twice, and return the owner and the claims of each child."""
    registry = open_registry(arguments["url"])
    mailer = handler("mailer", effect="keyed")(lambda _, __: None)
    registry.declare(mailer)
    owner = registry.owner

    def child(_: int) -> list[Any]:
        claims = registry.claim_all(mailer, make_events(arguments["events"])[::2])
        claimed = [claim.delivery.event_id for claim in claims if claim.verdict == "claimed"]
        return [registry.owner, claimed]

    return [owner, *_children(child)]


def _children(act: Callable[[int], Any], count: int = 2) -> list[Any]:
    """Run a function in `count` forked children concurrently, and return their results."""
    pipes = []
    for number in range(count):
        reading, writing = os.pipe()
        if os.fork() == 0:
            code = 0
            try:
                os.write(writing, json.dumps(act(number)).encode())
            except BaseException as error:  # noqa: BLE001 - a child must never run on
                os.write(writing, json.dumps(repr(error)).encode())
                code = 1
            os._exit(code)
        os.close(writing)
        pipes.append(reading)
    found = []
    for reading in pipes:
        with os.fdopen(reading, "rb") as pipe:
            found.append(json.loads(pipe.read()))
    return found


if __name__ == "__main__":
    run = {
        "subscription": fork_subscription,
        "mid_iteration": fork_mid_iteration,
        "registry": fork_registry,
    }
    sys.stdout.write(json.dumps(run[sys.argv[1]](json.loads(sys.argv[2]))))

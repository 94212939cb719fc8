"""Event consumers in separate processes, for races and outages of the registry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from seriatim.config.delivery import RegistrySettings
from seriatim.core.handler import Delivery, Handler, RetryPolicy, handler
from seriatim.delivery.claim_context import HandlerContext
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.factory import open_registry

STREAMS = 100


def make_ledger_handler(place: str) -> Handler:
    """Return a handler whose effect is a row in the database of the registry."""
    mark = "?" if place.startswith("sqlite") else "%s"

    def write(event: Any, context: HandlerContext) -> None:
        context.connection.execute(f"insert into effects values ({mark})", (event["n"],))

    policy = RetryPolicy(attempts=5, base_s=0.05, cap_s=0.2)
    return handler("ledger", effect="transactional", retry=policy)(write)


def make_events(count: int) -> list[Delivery]:
    """Return events, half of them in streams."""
    return [
        Delivery(
            event_id=f"e-{number}",
            position=number + 1,
            stream=("s", str(number % STREAMS)) if number % 2 else None,
            stream_seq=number // STREAMS + 1 if number % 2 else None,
            event={"n": number},
        )
        for number in range(count)
    ]


def consume(place: str, count: int, seed: int, share: float) -> int:
    """Handle a random share of the events in chunks of random order; return their number."""
    registry = open_registry(place, RegistrySettings(lease_s=30, heartbeat_s=5))
    loop = HandlerLoop(registry, make_ledger_handler(place), chunk=100)
    done = loop.handle(_mixed(count, random.Random(seed), share)).done
    registry.close()
    return done


def _mixed(count: int, chance: random.Random, share: float) -> Iterator[Delivery]:
    every = make_events(count)
    chunks = [every[start : start + 100] for start in range(0, count, 100)]
    chosen = chance.sample(chunks, max(1, round(len(chunks) * share)))
    for chunk in chosen:
        yield from chunk

"""The registry for asyncio: the same claims, awaited; only their statements take a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.claims import Claim
from seriatim.delivery.holding import Held

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry


class AsyncHeld:
    """`async with registry.aio.claim(handler, event) as claim:` as its plain form does."""

    def __init__(self, held: Held) -> None:
        self._held = held

    async def __aenter__(self) -> Held:
        """Ask for the claim."""
        return await asyncio.to_thread(self._held.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the claim."""
        await asyncio.to_thread(self._held.__exit__, kind, error, trace)


class AsyncRegistry:
    """The acts of consumers, awaited."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def claim(self, handler: Handler, event: EventRecord | Delivery) -> AsyncHeld:
        """Claim one event for the length of an `async with` block."""
        if handler.effect == "transactional":
            msg = "a transactional effect is written by a thread's own connection: claim it there"
            raise InvalidArgument(msg, details={"handler": handler.name})
        return AsyncHeld(self._registry.claim(handler, event))

    async def claim_all(self, handler: Handler, deliveries: Sequence[Delivery]) -> list[Claim]:
        """Claim many events at once."""
        return await asyncio.to_thread(self._registry.claim_all, handler, deliveries)

    async def mark_done(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """End claims whose effect was had."""
        await asyncio.to_thread(self._registry.mark_done, handler, claims)

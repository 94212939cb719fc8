"""The registry for asyncio: the same claims, awaited; only their statements take a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.claims import Claim
from seriatim.delivery.holding import Held
from seriatim.delivery.loop import Tally
from seriatim.delivery.settlement import settle

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


class _Cancelled(BaseException):
    """The caller of an effect was cancelled: neither a success nor a failure of the event."""


class Bridge:
    """Runs coroutines on an event loop for a thread that waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: concurrent.futures.Future[Any] | None = None
        self.ended = threading.Event()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine returns, called from the thread."""
        if self.ended.is_set():
            coroutine.close()
            raise _Cancelled
        self._running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if self.ended.is_set():  # cancelled between the two
            self._running.cancel()
        try:
            return self._running.result()
        except concurrent.futures.CancelledError:
            raise _Cancelled from None

    def cancel(self) -> None:
        """End the coroutine that runs and refuse more, called from the event loop."""
        self.ended.set()
        if self._running is not None:
            self._running.cancel()


class AsyncRegistry:
    """The acts of consumers, awaited."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def handle(
        self,
        handler: Handler,
        events: EventRecord | Delivery | Iterable[EventRecord | Delivery],
        *,
        wait_s: float = 0.0,
    ) -> Tally:
        """Handle one event or a batch as `Registry.handle` does.

        An async handler runs on this event loop, others and statements in a thread. When the call
        is cancelled, the running effect is cancelled too, and its claim is free again unless the
        effect is unsafe.
        """
        registry = self._registry
        bridge = Bridge(asyncio.get_running_loop())
        # A transactional effect is written by the thread's own connection: it runs there.
        await_ = None if handler.effect == "transactional" else bridge.run
        work = asyncio.ensure_future(
            asyncio.to_thread(
                lambda: settle(
                    registry,
                    handler,
                    registry.deliveries(events),
                    wait_s=wait_s,
                    await_=await_,
                    ended=bridge.ended,
                )
            )
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            bridge.cancel()
            with suppress(BaseException):
                await work
            raise

    def claim(
        self,
        handler: Handler,
        event: EventRecord | Delivery,
        *,
        unsettled: Literal["raise", "return"] = "raise",
    ) -> AsyncHeld:
        """Claim one event for the length of an `async with` block."""
        if handler.effect == "transactional":
            msg = "a transactional effect is written by a thread's own connection: claim it there"
            raise InvalidArgument(msg, details={"handler": handler.name})
        return AsyncHeld(self._registry.claim(handler, event, unsettled=unsettled))

    async def claim_all(self, handler: Handler, deliveries: Sequence[Delivery]) -> list[Claim]:
        """Claim many events at once."""
        return await asyncio.to_thread(self._registry.claim_all, handler, deliveries)

    async def mark_done(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """End claims whose effect was had."""
        await asyncio.to_thread(self._registry.mark_done, handler, claims)

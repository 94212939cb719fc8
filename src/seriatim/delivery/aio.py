"""The registry for asyncio: the same operations, awaited; their statements run in threads."""

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
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claim_context import ClaimContext
from seriatim.delivery.claims import Claim
from seriatim.delivery.handler_loop import Counts, settle

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry


class AsyncClaimContext:
    """The async form of `ClaimContext`, for `async with registry.aio.claim(…)`."""

    def __init__(self, context: ClaimContext) -> None:
        self._context = context

    async def __aenter__(self) -> ClaimContext:
        """Claim the event in a thread."""
        return await asyncio.to_thread(self._context.__enter__)

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the claim in a thread."""
        await asyncio.to_thread(self._context.__exit__, error_type, error, trace)


_LOOP_CHECK_S = 1.0  # how often a thread checks whether the loop it waits for still exists


class CallCancelled(BaseException):
    """The caller was cancelled: neither a success nor a failure of the event."""


class EventLoopBridge:
    """Runs coroutines on an event loop for a thread that blocks on their results."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: concurrent.futures.Future[Any] | None = None
        self.cancelled = threading.Event()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result; called from the thread.

        Raises:
            CallCancelled: `cancel` was called, or the event loop has ended.

        """
        if self.cancelled.is_set() or self._loop.is_closed():
            coroutine.close()
            raise CallCancelled
        self._running = running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        # `cancel` may have been called before `_running` was set: it would have missed this one.
        if self.cancelled.is_set():
            running.cancel()
        # A loop that is closed runs no callback, and would leave this thread waiting for ever.
        while not concurrent.futures.wait([running], _LOOP_CHECK_S).done:
            if self._loop.is_closed():
                raise CallCancelled
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            if self.cancelled.is_set() or self._loop.is_closed():
                raise CallCancelled from None
            # By the effect itself, so it must count as a failed attempt.
            msg = "the effect was cancelled"
            raise RuntimeError(msg) from None

    def cancel(self) -> None:
        """Cancel the running coroutine and refuse further ones; called from the event loop."""
        self.cancelled.set()
        if self._running is not None:
            self._running.cancel()


class AsyncRegistry:
    """The operations of consumers on a registry, awaited."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def handle(
        self,
        handler: Handler,
        events: EventRecord | Delivery | Iterable[EventRecord | Delivery],
        *,
        wait_s: float = 0.0,
    ) -> Counts:
        """Handle one event or a batch; see `Registry.handle`.

        An async handler runs on this event loop, other handlers and statements run in a thread.
        If the call is cancelled, the running effect is cancelled too, and its claim is released
        unless the effect is unsafe.

        Raises:
            EventNotSettled: The verdict of an event is not final, as in `Registry.handle`.
            Conflict: The handler is paused or stopped.
            LogIdentityChanged: The events come from another log than earlier ones.

        Example:
            await registry.aio.handle(receipts, batch)

        """
        registry = self._registry
        bridge = EventLoopBridge(asyncio.get_running_loop())
        # A transactional effect writes through the thread's own connection, so it runs there.
        run_coroutine = None if handler.effect == "transactional" else bridge.run
        task = asyncio.ensure_future(
            asyncio.to_thread(
                lambda: settle(
                    registry,
                    handler,
                    registry.deliveries(events),
                    wait_s=wait_s,
                    run_coroutine=run_coroutine,
                    cancelled=bridge.cancelled,
                )
            )
        )
        try:
            # Shielded: the thread must end its claims before the cancellation is passed on.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            bridge.cancel()
            with suppress(BaseException):
                await task
            raise

    def claim(
        self,
        handler: Handler,
        event: EventRecord | Delivery,
        *,
        unsettled: Literal["raise", "return"] = "raise",
    ) -> AsyncClaimContext:
        """Claim one event for an `async with` block; see `Registry.claim`.

        Raises:
            InvalidArgument: The handler is transactional.

        """
        if handler.effect == "transactional":
            msg = (
                f"handler {handler.name} is transactional, and its effect is written through a "
                "thread's own connection: use registry.claim in a thread, or aio.handle"
            )
            raise InvalidArgument(msg, details={"handler": handler.name})
        return AsyncClaimContext(self._registry.claim(handler, event, unsettled=unsettled))

    async def claim_all(self, handler: Handler, deliveries: Sequence[Delivery]) -> list[Claim]:
        """Claim several events at once; see `Registry.claim_all`."""
        return await asyncio.to_thread(self._registry.claim_all, handler, deliveries)

    async def mark_done(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Complete claims whose effect was performed."""
        await asyncio.to_thread(self._registry.mark_done, handler, claims)

"""The handlers of a log for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from seriatim.core.errors import Conflict
from seriatim.core.handler import Handler
from seriatim.delivery.aio import CallCancelled, EventLoopBridge
from seriatim.delivery.handler_loop import Counts, RunCoroutine
from seriatim.delivery.handler_runner import HandlerMetrics
from seriatim.delivery.handlers import Handlers
from seriatim.delivery.local_handler import BATCH_EVENTS
from seriatim.delivery.registry import Registry
from seriatim.runs.follower import AsyncFollower, FollowedRun, Follower, run_in_own_thread
from seriatim.runs.job_loop import ProgressCallback


class AsyncHandlers:
    """`Handlers` for asyncio: async handlers run on the event loop, everything else in threads.

    Transactional handlers write through the connection of their thread, so they run in that thread,
    also if they are async.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    async def run(
        self,
        handler: Handler,
        *,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        on_progress: ProgressCallback | None = None,
        until: Callable[[], bool] | None = None,
    ) -> Counts:
        """Handle the events up to the head of the log; see `Handlers.run`.

        Cancelling the call cancels the running effect of an async handler, waits for that of
        another, and releases all claims.

        Raises:
            Conflict: The handler is paused or stopped, or is declared differently.
            LogIdentityChanged: The log was restored or replaced.
            BackendFailure: The log failed, or the registry with another policy than `pause`.

        Example:
            @handler("receipts", effect="keyed", events=["order.placed"])
            async def receipts(event, context):
                await asyncio.sleep(0)  # send the receipt

            await log.aio.append([NewEvent("order.placed", {"total": 12})])
            print((await log.aio.handlers.run(receipts)).done)
        """
        bridge = EventLoopBridge(asyncio.get_running_loop())
        ends = until or (lambda: False)
        task = run_in_own_thread(
            self._handlers.run_once,
            handler,
            batch_events,
            redeclare,
            on_progress,
            lambda: bridge.cancelled.is_set() or ends(),
            _choose_runner(handler, bridge.run),
        )
        try:
            # Shielded: the thread must end its claims before the cancellation is passed on.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            bridge.cancel()
            with suppress(BaseException):
                await task
            raise

    def follow(
        self,
        *handlers: Handler,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        metrics: HandlerMetrics | None = None,
    ) -> AsyncFollower:
        """Handle events as they are appended while the program runs; see `Handlers.follow`.

        Returns:
            The running follower; leave its `async with` block, or await `stop`, to end it.

        Raises:
            Conflict: A handler is declared differently.
            InvalidArgument: The settings of the registry contradict a handler.

        Example:
            @handler("receipts", effect="keyed", events=["order.placed"])
            async def receipts(event, context):
                await asyncio.sleep(0)  # send the receipt

            async with log.aio.handlers.follow(receipts) as follower:
                await log.aio.append([NewEvent("order.placed", {"total": 12})])
                print([run.status for run in follower.health()])
        """
        loop = asyncio.get_running_loop()
        runs = self._handlers.make_runs(
            handlers,
            batch_events,
            metrics,
            redeclare=redeclare,
            run_coroutines=lambda handler: _choose_runner(handler, EventLoopBridge(loop).run),
        )
        return AsyncFollower(Follower([_end_with_loop(run, loop) for run in runs], metrics))

    async def open_registry(self) -> Registry:
        """Open the registry; see `Handlers.open_registry`.

        Example:
            registry = await log.aio.handlers.open_registry()
            print(await log.aio.call(registry.counts))
            registry.close()
        """
        return await asyncio.to_thread(self._handlers.open_registry)


def _end_with_loop(followed: FollowedRun, loop: asyncio.AbstractEventLoop) -> FollowedRun:
    """Return a run that fails once its event loop has ended, instead of calling effects on it."""
    msg = f"the event loop of handler {followed.name} has ended: stop the follower before it"
    ended_error = Conflict(msg, details={"handler": followed.name})

    def run(ends: Callable[[], bool], report: ProgressCallback) -> None:
        if loop.is_closed():
            raise ended_error
        try:
            followed.run(ends, report)
        except CallCancelled:
            raise ended_error from None

    return msgspec.structs.replace(followed, run=run)


def _choose_runner(handler: Handler, run: RunCoroutine) -> RunCoroutine | None:
    """Return what runs the coroutines of a handler; None for an event loop in its thread."""
    # A transactional effect writes through the thread's own connection, so it runs there.
    return None if handler.effect == "transactional" else run

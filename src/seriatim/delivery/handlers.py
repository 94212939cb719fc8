"""The handlers of a log: run them in this process, each effect once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import msgspec

from seriatim.config.delivery import RegistrySettings, load_registry_settings
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.handler import Handler
from seriatim.delivery.entries import DeadLetterTarget
from seriatim.delivery.handler_loop import Counts, RunCoroutine
from seriatim.delivery.handler_runner import HandlerMetrics, check_outage_options, run_handler
from seriatim.delivery.local_handler import BATCH_EVENTS, LocalHandler
from seriatim.delivery.registry import Registry
from seriatim.log.arguments import check_count
from seriatim.log.base import BaseLog
from seriatim.runs.follower import FollowedRun, Follower
from seriatim.runs.job_loop import ProgressCallback

# Opens a registry with a connection of its own.
RegistryOpener = Callable[[RegistrySettings], Registry]
# Returns what runs the coroutines of an async handler; None for an event loop of the run.
CoroutineRunners = Callable[[Handler], RunCoroutine | None]


class Handlers:
    """The handlers of a log with one registry: run them here, once or until stopped.

    Several processes and both engines may run a handler at once: they share its work by the claims
    of the registry, and a handler may be moved to `seriatim.spark.Worker` and back at any time.
    """

    def __init__(
        self,
        log: BaseLog,
        open_registry: RegistryOpener,
        settings: RegistrySettings | None = None,
        dead_letters: DeadLetterTarget | None = None,
    ) -> None:
        self._log = log
        self._open_registry = open_registry
        self._settings = settings
        self._dead_letters = dead_letters

    @property
    def _current_settings(self) -> RegistrySettings:
        return self._settings or load_registry_settings()

    def run(
        self,
        handler: Handler,
        *,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        on_progress: ProgressCallback | None = None,
        until: Callable[[], bool] | None = None,
    ) -> Counts:
        """Handle the events up to the head of the log, and deferred ones that are due.

        Args:
            handler: The handler; it is declared if necessary.
            batch_events: How many positions a batch covers at most. The cursor is stored after
                each.
            redeclare: Whether to replace a different declaration of the handler.
            on_progress: Called with a `RunReport` after each batch.
            until: Ends the run when it returns true, between two effects.

        Returns:
            The number of events by outcome.

        Raises:
            Conflict: The handler is paused or stopped, or is declared differently.
            LogIdentityChanged: The log was restored or replaced.
            BackendFailure: The log failed, or the registry with another policy than `pause`.

        Example:
            @handler("receipts", effect="keyed", events=["order.placed"])
            def receipts(event, context):
                send_receipt(event, idempotency_key=context.key)

            log.append([NewEvent("order.placed", {"total": 12})])
            print(log.handlers.run(receipts).done)
        """
        self._check_options(handler)
        _check_not_on_event_loop(handler)
        return self.run_once(handler, batch_events, redeclare, on_progress, until)

    def follow(
        self,
        *handlers: Handler,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        metrics: HandlerMetrics | None = None,
    ) -> Follower:
        """Handle events as they are appended, each handler in a thread of this process.

        A handler that stops at a failure does not stop the others, and continues when an operator
        has resolved the failure.

        Args:
            handlers: The handlers; they are declared if necessary.
            batch_events: How many positions a batch covers at most.
            redeclare: Whether to replace different declarations of the handlers.
            metrics: Where positions, outcomes and the registry are reported, a
                `seriatim.telemetry.JobMetrics`.

        Returns:
            The running follower; leave its `with` block, or call `stop`, to end it.

        Raises:
            Conflict: A handler is declared differently.
            InvalidArgument: The settings of the registry contradict a handler.

        Example:
            @handler("receipts", effect="keyed", events=["order.placed"])
            def receipts(event, context):
                send_receipt(event, idempotency_key=context.key)

            with log.handlers.follow(receipts) as follower:
                log.append([NewEvent("order.placed", {"total": 12})])
                print([run.status for run in follower.health()])
        """
        runs = self.make_runs(handlers, batch_events, metrics, redeclare=redeclare)
        return Follower(runs, metrics)

    def open_registry(self) -> Registry:
        """Open the registry with a connection of its own, to list, retry and skip failed events.

        Example:
            with closing(log.handlers.open_registry()) as registry:
                for entry in registry.entries(EntryFilter(status="dead")):
                    print(entry.handler, entry.event_id, entry.error)
        """
        return self._open_registry(self._current_settings)

    # -- for `AsyncHandlers`

    def run_once(
        self,
        handler: Handler,
        batch_events: int,
        redeclare: bool,
        on_progress: ProgressCallback | None,
        until: Callable[[], bool] | None,
        run_coroutine: RunCoroutine | None = None,
    ) -> Counts:
        """Run a handler up to the head; see `run`."""
        check_count("batch_events", batch_events)
        self._check_options(handler)
        with (
            closing(self.open_registry()) as registry,
            closing(
                self._make_job(
                    handler,
                    registry,
                    batch_events,
                    redeclare=redeclare,
                    run_coroutine=run_coroutine,
                    on_progress=on_progress,
                )
            ) as job,
        ):
            return run_handler(job, until=until)

    def make_runs(
        self,
        handlers: Sequence[Handler],
        batch_events: int,
        metrics: HandlerMetrics | None,
        *,
        redeclare: bool,
        run_coroutines: CoroutineRunners = lambda _: None,
    ) -> list[FollowedRun]:
        """Declare handlers, and return the runs of a follower; see `follow`."""
        check_count("batch_events", batch_events)
        self._declare(handlers, redeclare=redeclare)
        return [
            self._make_run(handler, batch_events, metrics, run_coroutines(handler))
            for handler in handlers
        ]

    def _make_run(
        self,
        handler: Handler,
        batch_events: int,
        metrics: HandlerMetrics | None,
        run_coroutine: RunCoroutine | None,
    ) -> FollowedRun:
        # One registry for all attempts: a disabled one has its cursors in memory.
        opened: list[Registry] = []
        counts = Counts()

        def run(ends: Callable[[], bool], report: ProgressCallback) -> None:
            if not opened:
                opened.append(self.open_registry())
            with closing(
                self._make_job(
                    handler,
                    opened[0],
                    batch_events,
                    run_coroutine=run_coroutine,
                    on_progress=report,
                    metrics=metrics,
                )
            ) as job:
                job.counts = counts
                run_handler(job, live=True, until=ends)

        def close() -> None:
            for registry in opened:
                registry.close()

        return FollowedRun(handler.name, "handler", run, close)

    def _make_job(
        self,
        handler: Handler,
        registry: Registry,
        batch_events: int,
        *,
        redeclare: bool = False,
        run_coroutine: RunCoroutine | None = None,
        on_progress: ProgressCallback | None = None,
        metrics: HandlerMetrics | None = None,
    ) -> LocalHandler:
        return LocalHandler(
            handler,
            self._log.store,
            registry,
            tenant_id=self._log.tenant_id,
            batch_events=batch_events,
            redeclare=redeclare,
            dead_letters=self._dead_letters,
            run_coroutine=run_coroutine,
            on_progress=on_progress,
            metrics=metrics,
        )

    def _declare(self, handlers: Sequence[Handler], *, redeclare: bool) -> None:
        """Declare handlers, so that the caller's mistake is raised here and not in a thread."""
        for handler in handlers:
            self._check_options(handler)
        settings = msgspec.structs.replace(self._current_settings, on_outage="fail_fast")
        # An outage is left to the threads, which wait for its end.
        with suppress(BackendFailure), closing(self._open_registry(settings)) as registry:
            for handler in handlers:
                registry.declare(handler, replace=redeclare)

    def _check_options(self, handler: Any) -> None:
        if not isinstance(handler, Handler):
            msg = f"{handler!r:.80} is not a handler: decorate it with @seriatim.handler"
            raise InvalidArgument(msg, details={"argument": "handler"})
        check_outage_options(
            handler,
            self._current_settings,
            has_dead_letter_target=self._dead_letters is not None,
        )


def _check_not_on_event_loop(handler: Handler) -> None:
    """Raise `InvalidArgument` for an async handler that is run by code on an event loop."""
    if not inspect.iscoroutinefunction(handler.run):
        return
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        msg = (
            f"handler {handler.name} is asynchronous and cannot run inside another event loop: "
            "await log.aio.handlers.run(…)"
        )
        raise InvalidArgument(msg, details={"handler": handler.name})

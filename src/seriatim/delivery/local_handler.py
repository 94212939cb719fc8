"""The local engine of handlers: read the log, claim and run effects in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import EventRecord
from seriatim.core.handler import Delivery, Handler
from seriatim.core.patterns import WILDCARD
from seriatim.delivery.entries import DeadLetterTarget
from seriatim.delivery.handler_loop import Counts, HandlerLoop, RunCoroutine
from seriatim.delivery.handler_runner import (
    BatchOutcome,
    HandlerJob,
    HandlerMetrics,
    Stopped,
    check_outage_options,
)
from seriatim.delivery.handler_spans import trace_handler
from seriatim.delivery.log_origin import LogOrigin
from seriatim.delivery.log_source import LogRange, LogSource
from seriatim.delivery.registry import Registry
from seriatim.runs.job_loop import ProgressCallback
from seriatim.store.common import read_pages
from seriatim.store.port import ReadSpec, Store

# Between two batches a run stores its cursor, and looks for due events and for a pause.
BATCH_EVENTS = 5_000
_PAGE_EVENTS = 500  # as many as are claimed at once
_PAGE_BYTES = 16 * 1024 * 1024


class LocalHandler(HandlerJob[LogRange]):
    """A handler whose effects run in this process, without Spark."""

    def __init__(
        self,
        handler: Handler,
        store: Store,
        registry: Registry,
        *,
        tenant_id: str | None,
        batch_events: int = BATCH_EVENTS,
        redeclare: bool = False,
        dead_letters: DeadLetterTarget | None = None,
        run_coroutine: RunCoroutine | None = None,
        on_progress: ProgressCallback | None = None,
        metrics: HandlerMetrics | None = None,
    ) -> None:
        """Create a job, and declare the handler.

        Args:
            handler: The declaration.
            store: The store of the log.
            registry: The registry, for this job only.
            tenant_id: The tenant whose events are handled; None for all.
            batch_events: How many positions a batch covers at most.
            redeclare: Whether to replace a different declaration of the handler.
            dead_letters: Where dead letters are sent besides the registry.
            run_coroutine: Runs the coroutines of an async handler; by default in an event loop of
                the run.
            on_progress: Called with a `RunReport` after each batch.
            metrics: Where to report outcomes and the state of the registry.

        Raises:
            InvalidArgument: The settings of the registry contradict the handler.
            Conflict: The handler is declared differently.

        """
        check_outage_options(
            handler, registry.settings, has_dead_letter_target=dead_letters is not None
        )
        super().__init__(handler, registry, on_progress=on_progress, metrics=metrics)
        registry.declare(handler, replace=redeclare)
        self._store = store
        self._tenant_id = tenant_id
        self._origin = LogOrigin(store)
        self._log_source = LogSource(store, tenant_id, batch_events)
        self.source = self._log_source.name
        self._dead_letters = dead_letters
        self._own_runner: asyncio.Runner | None = None
        self._run_coroutine = run_coroutine
        self._last_read: tuple[int, str | None] = (0, None)

    def close(self) -> None:
        """Close the event loop of an async handler, if the job has made one."""
        if self._own_runner is not None:
            self._own_runner.close()

    @property
    def position(self) -> int:
        """The position that was reached."""
        return self._log_source.position

    # -- batches

    def next_batch(self, cursor: str | None) -> LogRange | None:
        """Return the next range of the log."""
        return self._log_source.next_range(self.handler, cursor)

    def handle_batch(self, batch: LogRange, stopped: Stopped) -> BatchOutcome:
        """Handle the events of a range; when stopped, those that were read."""
        self._last_read = (batch.after, None)
        counts = self._handle(self._read_deliveries(batch, stopped), stopped)
        # Everything that was read is final or deferred in the registry by now.
        position, event_id = self._last_read
        self._log_source.position = position
        return BatchOutcome(
            counts=counts,
            cursor=self._log_source.make_cursor(batch.log, position, event_id),
            events=position - batch.after,
            lag=batch.head - position,
        )

    def handle_due(self, due: list[Delivery], stopped: Stopped) -> Counts:
        """Handle deferred events in the given order."""
        return self._handle(_until_stopped(due, stopped), stopped)

    def find_due(self) -> list[Delivery]:
        """Return the deferred events that are due; without any, this is one cheap query."""
        return super().find_due() if self.registry.has_deferred(self.handler) else []

    def wait_for_events(self, timeout_s: float) -> bool:
        """Wait for the log to grow."""
        self._store.wait(self.position, timeout_s)
        return self._store.head() > self.position

    def _handle(self, deliveries: Iterable[Delivery], stopped: Stopped) -> Counts:
        loop = HandlerLoop(
            self.registry,
            trace_handler(self.handler),
            start_lookup=self._origin.ranges_before_start,
            dead_letters=self._dead_letters,
            run_coroutine=self._run_coroutine or self._get_own_runner().run,
            stopped=stopped,
        )
        return loop.handle(deliveries)

    def _get_own_runner(self) -> asyncio.Runner:
        """Return the runner of coroutines: one for all batches, as clients belong to its loop."""
        if self._own_runner is None:
            self._own_runner = asyncio.Runner()
        return self._own_runner

    # -- reading

    def _read_deliveries(self, batch: LogRange, stopped: Stopped) -> Iterator[Delivery]:
        for page in self._read_pages(batch.after, batch.until):
            self._check_identity(batch)
            for record in page:
                if stopped():
                    return
                yield self._origin.to_delivery(record, batch.log)
                self._last_read = (record.position, record.event_id)
        if not stopped():
            event_id = self._last_read[1] if self._last_read[0] == batch.until else None
            self._last_read = (batch.until, event_id)

    def _read_pages(self, after: int, until: int) -> Iterator[list[EventRecord]]:
        # In strict mode the loop needs every event, to know which numbers are passed over.
        reads_all = self.handler.mode == "strict" or WILDCARD in self.handler.events
        spec = ReadSpec(
            tenant_id=self._tenant_id,
            limit=_PAGE_EVENTS,
            after=after,
            types=None if reads_all else self.handler.events,
            max_bytes=_PAGE_BYTES,
        )
        return read_pages(self._store, spec, until)

    def _check_identity(self, batch: LogRange) -> None:
        """Raise `LogIdentityChanged` if the log was restored since the batch began."""
        if self._store.identity() != batch.log:
            msg = (
                f"the log was restored or replaced while handler {self.handler.name} read it after "
                f"position {self._last_read[0]}"
            )
            raise LogIdentityChanged(msg, details={"handler": self.handler.name})


def _until_stopped(deliveries: Iterable[Delivery], stopped: Stopped) -> Iterator[Delivery]:
    for delivery in deliveries:
        if stopped():
            return
        yield delivery

"""The run of a handler on any engine: due deferred events, then a batch of new ones, repeated."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import msgspec

from seriatim.config.delivery import RegistrySettings
from seriatim.core.backoff import Backoff
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.handler_loop import Counts, handler_stopped_error
from seriatim.delivery.registry import Registry
from seriatim.runs.follower import FollowerMetrics
from seriatim.runs.job_loop import JobLoop, ProgressCallback, ProgressReporter
from seriatim.telemetry import tracer

_INTERVAL_S = 2.0
_DUE_LIMIT = 10_000
# How often an idle run looks for due events and for actions of operators.
_POLL_S = 0.5
_WAIT_S = 0.2  # how long a wait for new events may take before it checks for a stop
# Half a second, as most failures are short: a broker that elects a leader, a lost connection.
_BACKOFF = Backoff(first_s=0.5, cap_s=30.0)

Stopped = Callable[[], bool]


class NewEvents(Protocol):
    """A batch of new events; `events` is their number."""

    @property
    def events(self) -> int:
        """The number of events."""
        ...


B = TypeVar("B", bound=NewEvents)


class HandlerMetrics(FollowerMetrics, Protocol):
    """Where a run reports outcomes and the registry: `seriatim.telemetry.JobMetrics`."""

    def set_outcomes(self, job: str, counts: Mapping[str, int]) -> None:
        """Set the number of events by outcome."""
        ...

    def set_registry(self, handler: str, counts: Mapping[str, int], *, unavailable: bool) -> None:
        """Set the unfinished events of a handler by status, or that the registry is unavailable."""
        ...


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a batch of new events.

    Attributes:
        counts: The number of events by outcome.
        cursor: The cursor to store: the verdicts of all events before it are final or deferred.
        events: The number of events that were handled.
        lag: The number of events after the cursor.

    """

    counts: Counts
    cursor: str
    events: int
    lag: int


class HandlerJob(ABC, Generic[B]):
    """A handler, its registry and a source of events; each engine is a subclass.

    Attributes:
        handler: The handler.
        registry: The registry.
        source: The name of the cursor in the registry.
        counts: The number of events by outcome, of all runs of this job.
        on_progress: Called with a `RunReport` after each batch.
        metrics: Where to report outcomes and the state of the registry.

    """

    source: str

    def __init__(
        self,
        handler: Handler,
        registry: Registry,
        *,
        on_progress: ProgressCallback | None = None,
        metrics: HandlerMetrics | None = None,
    ) -> None:
        self.handler = handler
        self.registry = registry
        self.on_progress = on_progress
        self.metrics = metrics
        self.counts = Counts()
        self.handled_events = 0

    @abstractmethod
    def next_batch(self, cursor: str | None) -> B | None:
        """Return the batch after a cursor, or None if there are no further events yet.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.

        """

    @abstractmethod
    def handle_batch(self, batch: B, stopped: Stopped) -> BatchOutcome:
        """Handle new events; may end early when `stopped` returns true."""

    @abstractmethod
    def handle_due(self, due: list[Delivery], stopped: Stopped) -> Counts:
        """Handle deferred events, those of a stream in the given order."""

    def find_due(self) -> list[Delivery]:
        """Return the deferred events that are due."""
        return self.registry.due(self.handler, _DUE_LIMIT)

    @property
    def position(self) -> int:
        """The position that was reached: in the log, or a number of handled events."""
        return self.handled_events

    def wait_for_events(self, timeout_s: float) -> bool:
        """Wait for new events, at most some seconds; return whether there are any."""
        time.sleep(timeout_s)
        return False


def run_handler(
    job: HandlerJob[B], *, live: bool = False, until: Callable[[], bool] | None = None
) -> Counts:
    """Handle all events up to the end of the source, or with `live` continue from there.

    Args:
        job: The handler on an engine.
        live: Whether to follow the source. Retryable failures are then retried with backoff.
        until: Ends the run when it returns true.

    Returns:
        The number of events by outcome.

    Raises:
        Conflict: The handler is stopped, or paused and the run is not live.
        LogIdentityChanged: The log was restored or replaced.
        BackendFailure: The source or the registry failed.

    """
    stopped = until or (lambda: False)
    runner = _Runner(job, live=live, until=stopped)
    with (
        job.registry.outage.bounded(stopped, runner.report_outage),
        _report_registry_state(job.registry, job.handler.name, job.metrics),
    ):
        runner.run()
    return job.counts


class _Runner(Generic[B]):
    """Runs rounds; several runners of a handler may work at once, in any processes.

    They share the work by the claims of the registry: an event that another runner has claimed is
    deferred, and handled here if that one fails or its lease expires.
    """

    def __init__(self, job: HandlerJob[B], *, live: bool, until: Stopped) -> None:
        self._job = job
        self._name = job.handler.name
        self._progress = ProgressReporter(self._name, job.on_progress)
        self._loop = JobLoop(
            f"handler {self._name}", self._progress, backoff=_BACKOFF, live=live, until=until
        )
        self._started = False

    def run(self) -> None:
        """Run rounds until there is nothing left to do, or live until stopped."""
        self._loop.run(self._run_step)

    def report_outage(self) -> None:
        """Report that the run waits for the registry."""
        self._progress.report_wait("waiting for the registry")

    def _run_step(self) -> bool:
        """Run a round, and wait if there was nothing to do; return whether the run is complete."""
        # The state is read before every round, so that a pause takes effect between two batches.
        if self._is_paused():
            self._loop.pause(_POLL_S)
            return False
        idle = self._run_round()
        self._loop.reset_backoff()
        if idle and self._loop.live:
            self._report(0)
            self._wait()
        return idle and not self._loop.live

    def _is_paused(self) -> bool:
        """Return whether a live run must wait; raise `Conflict` if the handler has stopped."""
        reason = self._job.registry.inactive_reason(self._job.handler)
        if reason is None:
            return False
        if self._loop.live and reason.startswith("paused"):
            self._progress.report_wait(reason)
            return True
        raise handler_stopped_error(self._job.handler, reason)

    def _run_round(self) -> bool:
        """Handle due deferred events and one batch of new ones; return whether there were none."""
        job = self._job
        # The source first, as it stops at a restored log: deferred events may no longer be in it.
        batch = job.next_batch(job.registry.cursor(job.handler, job.source))
        if not self._started:
            self._progress.start(job.position)
            self._started = True
        due = job.find_due()
        if due:
            self._count(job.handle_due(due, lambda: self._loop.stopped))
        if batch is None:
            return not due
        if self._loop.stopped:
            return True
        attributes: tracer.Attributes = {
            "seriatim.handler": self._name,
            "seriatim.count": batch.events,
        }
        with tracer.span("seriatim.work", "consumer", attributes):
            outcome = job.handle_batch(batch, lambda: self._loop.stopped)
        self._count(outcome.counts)
        # Last: after a crash before this line the batch is repeated, and its events are duplicates.
        job.registry.move_cursor(job.handler, job.source, outcome.cursor)
        job.handled_events += outcome.events
        self._report(outcome.lag)
        return False

    def _count(self, counts: Counts) -> None:
        self._job.counts += counts
        if self._job.metrics is not None:
            self._job.metrics.set_outcomes(self._name, msgspec.structs.asdict(self._job.counts))

    def _report(self, lag: int) -> None:
        position = self._job.position
        self._progress.advance("work", position, position + lag)

    def _wait(self) -> None:
        """Wait until there are new events, or due ones may have to be looked for."""
        deadline = time.monotonic() + _POLL_S
        while (remaining := deadline - time.monotonic()) > 0 and not self._loop.stopped:
            if self._job.wait_for_events(min(_WAIT_S, remaining)):
                return


@contextmanager
def _report_registry_state(
    registry: Registry, handler: str, metrics: HandlerMetrics | None
) -> Iterator[None]:
    """Report the state of the registry to metrics while a block runs.

    This happens in a thread, so that an outage is reported while effects wait for the registry.
    """
    if metrics is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_report_state,
        args=(registry, handler, metrics, ended),
        name="seriatim-monitor",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report_state(
    registry: Registry, handler: str, metrics: HandlerMetrics, ended: threading.Event
) -> None:
    clone: Registry | None = None
    while True:
        try:
            # A separate connection, as the thread of the run uses the other one.
            clone = clone or registry.clone(on_outage="fail_fast")
            counts = {
                state.status: state.count for state in clone.counts() if state.handler == handler
            }
            metrics.set_registry(handler, counts, unavailable=False)
        except BackendFailure:
            metrics.set_registry(handler, {}, unavailable=True)
        if ended.wait(_INTERVAL_S):
            break
    if clone is not None:
        clone.close()


def check_outage_options(
    handler: Handler, settings: RegistrySettings, *, has_dead_letter_target: bool
) -> None:
    """Raise `InvalidArgument` if the settings contradict the handler, or lack a target."""
    if not settings.enabled and handler.effect == "transactional":
        msg = (
            f"enabled: the transactional handler {handler.name} writes in the registry's "
            "transaction, so the registry must be enabled"
        )
        raise InvalidArgument(msg, details={"argument": "enabled"})
    if settings.on_outage == "dlq" and not has_dead_letter_target:
        msg = (
            "on_outage: dlq needs a dead-letter topic, outside the registry's database: name one "
            "(--dead-letters)"
        )
        raise InvalidArgument(msg, details={"argument": "on_outage"})

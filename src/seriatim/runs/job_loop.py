"""The loop of a long-running job: run steps until stopped, and back off after failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.errors import SeriatimError


class RunReport(msgspec.Struct, frozen=True):
    """The progress of a run, passed to the progress callback.

    Attributes:
        name: The name of the projection or handler, or "publisher".
        activity: What the run is doing, such as "run", "rebuild" or "retrying in 4 s".
        position: The position reached.
        head: The head of the log; 0 while the run waits.
        events_per_s: The rate since the start.
        waits: Whether the run waits; it has no position then.

    """

    name: str
    activity: str
    position: int
    head: int
    events_per_s: float
    waits: bool = False

    @property
    def lag(self) -> int:
        """The number of events between the position and the head."""
        return max(0, self.head - self.position)

    @property
    def eta_s(self) -> float | None:
        """The remaining seconds at the current rate, or None if the rate is 0."""
        return self.lag / self.events_per_s if self.events_per_s else None


ProgressCallback = Callable[[RunReport], None]


class ProgressReporter:
    """Computes the rate of a run, and passes its reports to a callback.

    Args:
        name: The name of the projection or handler, or "publisher".
        callback: Receives the reports; None discards them.

    """

    def __init__(self, name: str, callback: ProgressCallback | None) -> None:
        self._name = name
        self._callback = callback or (lambda _: None)
        self.start(0)

    def start(self, position: int) -> None:
        """Measure the rate from now and from a position on."""
        self._started_at, self._start = time.monotonic(), position

    def advance(self, activity: str, position: int, head: int) -> RunReport:
        """Report the position that a run has reached, and return the report."""
        elapsed = max(time.monotonic() - self._started_at, 1e-6)  # the clock may not have moved
        rate = (position - self._start) / elapsed
        report = RunReport(self._name, activity, position, head, rate)
        self._callback(report)
        return report

    def report_wait(self, reason: str) -> None:
        """Report that a run waits, with its reason as the activity."""
        self._callback(RunReport(self._name, reason, 0, 0, 0.0, waits=True))


logger = logging.getLogger("seriatim")

_STOP_CHECK_S = 0.2  # how often a pause checks whether the job is stopped


class JobLoop:
    """Runs the steps of a projection, publisher or worker.

    A live job survives failures: it repeats a step that failed with a retryable error, after a
    delay that grows until `reset_backoff` is called.

    Args:
        subject: The job as the subject of a log message, such as "the publisher".
        progress: Receives a report before each delay.
        backoff: The delays after failures.
        live: Whether the job follows the log, instead of ending at its head.
        until: Stops the job when it returns true.

    """

    def __init__(
        self,
        subject: str,
        progress: ProgressReporter,
        *,
        backoff: Backoff,
        live: bool,
        until: Callable[[], bool],
    ) -> None:
        self.live = live
        self._subject = subject
        self._progress = progress
        self._backoff = backoff
        self._until = until
        self._failures = 0

    @property
    def stopped(self) -> bool:
        """Whether the job must end."""
        return self._until()

    def run(self, step: Callable[[], bool]) -> None:
        """Call a step until it returns True, because the job is complete, or the job is stopped.

        Raises:
            SeriatimError: A step failed, and the job is not live or the error is not retryable.

        """
        while not self.stopped:
            try:
                if step():
                    return
            except SeriatimError as error:
                if not self.live or not error.retryable:
                    raise
                self._back_off(error)

    def reset_backoff(self) -> None:
        """Note that the job has advanced: the next failure is the first one again."""
        self._failures = 0

    def pause(self, seconds: float) -> None:
        """Wait for a number of seconds, but at most 0.2 s after the job is stopped."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0 and not self.stopped:
            time.sleep(min(_STOP_CHECK_S, remaining))

    def _back_off(self, error: SeriatimError) -> None:
        self._failures += 1
        delay = self._backoff.delay_s(self._failures)
        logger.warning("%s retries in %.1f s: %s", self._subject, delay, error.message)
        self._progress.report_wait(f"retrying in {delay:.0f} s ({error.code})")
        self.pause(delay)

"""The loop of a long-running job: run steps until stopped, and back off after failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from seriatim.core.backoff import Backoff
from seriatim.core.errors import SeriatimError
from seriatim.pipeline.run_report import ProgressReporter

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
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and not self.stopped:
            time.sleep(min(_STOP_CHECK_S, left))

    def _back_off(self, error: SeriatimError) -> None:
        self._failures += 1
        delay = self._backoff.delay_s(self._failures)
        logger.warning("%s retries in %.1f s: %s", self._subject, delay, error.message)
        self._progress.waiting(f"retrying in {delay:.0f} s ({error.code})")
        self.pause(delay)

"""Reports of long runs: how far a projection, publisher or worker is, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec


class RunReport(msgspec.Struct, frozen=True):
    """The progress of a run, passed to the progress callback.

    Attributes:
        name: The name of the projection or handler, or "publisher".
        activity: What the run is doing, such as "run", "rebuild" or "retrying in 4 s".
        position: The position reached.
        head: The head of the log; 0 while the run waits.
        events_per_s: The rate since the start.

    """

    name: str
    activity: str
    position: int
    head: int
    events_per_s: float

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

    def waiting(self, reason: str) -> None:
        """Report that a run waits, with its reason as the activity."""
        self._callback(RunReport(self._name, reason, 0, 0, 0.0))

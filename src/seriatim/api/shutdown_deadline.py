"""End a process within its grace period, whatever its threads do."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

logger = logging.getLogger("seriatim.api")

FINAL_RESPONSES_S = 3.0  # of the grace period: to answer what is under way, and to close the log
_STUCK_S = 1.0  # more, until the process is ended although nothing of Python runs any more
_FORCED = 1


class ShutdownDeadline:
    """Ends this process once its grace period is over; `begin` starts the clock."""

    def __init__(self, seconds: float, before: Callable[[], None] = lambda: None) -> None:
        self._seconds = seconds
        self._before = before
        self._begun = False

    def begin(self) -> None:
        """Start the clock; only the first call does."""
        if self._begun:
            return
        self._begun = True
        timer = threading.Timer(self._seconds, self._end)
        timer.daemon = True
        timer.start()
        # A thread that holds the interpreter keeps the timer from running, but not this one.
        null = open(os.devnull, "wb")  # noqa: SIM115, PTH123 - open until the process ends
        faulthandler.dump_traceback_later(self._seconds + _STUCK_S, exit=True, file=null)

    def _end(self) -> None:
        logger.error(
            "ending now: %g s after the signal some work is still under way", self._seconds
        )
        self._before()
        os._exit(_FORCED)


def kill_all(processes: Iterable[Any]) -> None:
    """Kill the processes that still run."""
    for one in processes:
        if one.process.is_alive():
            one.process.kill()

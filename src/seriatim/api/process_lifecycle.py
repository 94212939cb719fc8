"""Readiness and shutdown of a process, as a supervisor or load balancer sees them."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from seriatim.core.errors import BackendFailure

logger = logging.getLogger("seriatim.api")

READY_S = 0.8  # a readiness check responds within a second
FINAL_RESPONSES_S = 3.0  # of the grace period, to finish responses and close the log
_PROBE_STUCK_S = 5.0  # a probe that takes longer hangs: start another one next to it
_PROBES_MAX = 3
_INTERPRETER_STUCK_S = 1.0  # after the grace period: end the process even if no Python code runs
_EXIT_STATUS = 1


class Readiness:
    """Check whether the store responds; concurrent checks share one probe.

    Probes have threads of their own, so that a busy service still reports its state.

    Args:
        probe: A short read of the store, such as its head.
    """

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe
        self._threads = ThreadPoolExecutor(_PROBES_MAX, "seriatim-ready")
        self._probes: list[tuple[asyncio.Future[object], float]] = []

    async def check(self) -> None:
        """Check that the store responds within `READY_S`.

        Raises:
            BackendFailure: It does not. The reason is left out: callers need no token.
        """
        probe = self._current_probe()
        with suppress(Exception):
            async with asyncio.timeout(READY_S):
                await asyncio.shield(probe)
                return
        raise BackendFailure("the log's store does not respond")

    def _current_probe(self) -> asyncio.Future[object]:
        """Return the probe in progress, or a new one if there is none or it hangs."""
        self._probes = [entry for entry in self._probes if not entry[0].done()]
        now = time.monotonic()
        if self._probes and (
            now - self._probes[-1][1] < _PROBE_STUCK_S or len(self._probes) >= _PROBES_MAX
        ):
            return self._probes[-1][0]
        probe = asyncio.get_running_loop().run_in_executor(self._threads, self._probe)
        probe.add_done_callback(_retrieve_exception)
        self._probes.append((probe, now))
        return probe

    def stop(self) -> None:
        """Start no more probes."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _retrieve_exception(probe: asyncio.Future[object]) -> None:
    """Mark an exception as retrieved: asyncio logs it otherwise if every check timed out."""
    if not probe.cancelled():
        probe.exception()


class ShutdownDeadline:
    """End this process when its grace period is over, whatever its threads do.

    Args:
        seconds: The grace period; `begin` starts it.
        on_expiry: Called just before the process ends.
    """

    def __init__(self, seconds: float, on_expiry: Callable[[], None] = lambda: None) -> None:
        self._seconds = seconds
        self._on_expiry = on_expiry
        self._begun = False

    def begin(self) -> None:
        """Start the grace period; later calls have no effect."""
        if self._begun:
            return
        self._begun = True
        timer = threading.Timer(self._seconds, self._end_process)
        timer.daemon = True
        timer.start()
        # A thread that holds the interpreter lock stops the timer, but not faulthandler's thread.
        null = os.open(os.devnull, os.O_WRONLY)  # stays open until the process ends
        seconds = self._seconds + _INTERPRETER_STUCK_S
        faulthandler.dump_traceback_later(seconds, exit=True, file=null)

    def _end_process(self) -> None:
        logger.error(
            "ending the process: work is still in progress %g s after the signal", self._seconds
        )
        self._on_expiry()
        os._exit(_EXIT_STATUS)


def kill_all(processes: Iterable[Any]) -> None:
    """Kill the worker processes that are still alive."""
    for worker in processes:
        if worker.process.is_alive():
            worker.process.kill()

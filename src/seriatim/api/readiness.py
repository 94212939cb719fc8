"""Whether the log's store answers: asked in threads of its own, and never waited for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from seriatim.core.errors import BackendFailure

READY_S = 0.8  # how long a caller waits: it has its answer within a second
_STUCK_S = 5.0  # a probe that takes so long hangs: another one is tried beside it
_PROBES_MAX = 3


class Readiness:
    """Probe the store once for all who ask at the same time."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe
        self._threads = ThreadPoolExecutor(_PROBES_MAX, "seriatim-ready")
        self._probes: list[tuple[asyncio.Future[object], float]] = []

    async def check(self) -> None:
        """Raise `BackendFailure` unless the store answers within a moment; says nothing of why."""
        probe = self._current()
        with suppress(Exception):
            async with asyncio.timeout(READY_S):
                await asyncio.shield(probe)
                return
        raise BackendFailure("the log's store does not answer")

    def _current(self) -> asyncio.Future[object]:
        self._probes = [one for one in self._probes if not one[0].done()]
        now = time.monotonic()
        if self._probes and (
            now - self._probes[-1][1] < _STUCK_S or len(self._probes) >= _PROBES_MAX
        ):
            return self._probes[-1][0]
        probe = asyncio.get_running_loop().run_in_executor(self._threads, self._probe)
        probe.add_done_callback(_forget_error)
        self._probes.append((probe, now))
        return probe

    def stop(self) -> None:
        """Begin no more probes."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _forget_error(probe: asyncio.Future[object]) -> None:
    if not probe.cancelled():
        probe.exception()  # whoever waited has it

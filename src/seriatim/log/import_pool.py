"""Processes that validate the appends of an import, ahead of the process that sends them.

Validation takes most of the time of an import. The processes have no connection to the log: they
receive the lines of appends, and return their events.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import NamedTuple

from seriatim.core.errors import SeriatimError
from seriatim.core.guard import BUILT_IN_GUARDS, Guard
from seriatim.core.kinds import Rules
from seriatim.core.limits import Limits
from seriatim.log.appender import IdGenerator, PreparedAppend, Validator
from seriatim.log.import_lines import NumberedLines, make_draft

PARENT_ENDED = 1  # the exit status of a process whose import has ended without it

# The prepared appends of a batch; None if one is invalid, so that each must be validated alone.
PreparedBatch = list[PreparedAppend] | None


class ImportPool:
    """Validates batches of appends in other processes.

    Attributes:
        rules: The declarations under which the batches are validated.
    """

    def __init__(
        self, processes: int, rules: Rules, guard: str, limits: Limits, default_tenant: str
    ) -> None:
        """Make a pool; its processes start with the first batch.

        Args:
            processes: How many processes validate.
            rules: The declarations.
            guard: The name of a built-in guard.
            limits: The bounds on events.
            default_tenant: The tenant of lines that name none.
        """
        self.rules = rules
        # Spawned: a fork would copy locks that other threads of this process hold.
        self._executor = ProcessPoolExecutor(
            processes,
            mp_context=get_context("spawn"),
            initializer=_start_worker,
            initargs=(rules, guard, limits, default_tenant),
        )
        self.batches_max = 2 * processes  # that wait for their turn to be sent

    def submit(self, appends: list[NumberedLines]) -> Future[PreparedBatch] | None:
        """Start the validation of a batch; None if the processes have ended."""
        try:
            return self._executor.submit(_prepare_batch, appends)
        except BrokenExecutor:
            return None

    def close(self) -> None:
        """End the processes, and wait until they have; batches that none has begun are dropped."""
        self._executor.shutdown(cancel_futures=True)


def find_guard_name(guard: Guard) -> str | None:
    """Return the name of a built-in guard; None for any other, which cannot be sent."""
    return next((name for name, known in BUILT_IN_GUARDS.items() if known is guard), None)


class _Worker(NamedTuple):
    validator: Validator
    default_tenant: str


_worker: _Worker | None = None  # of a process of the pool


def _start_worker(rules: Rules, guard: str, limits: Limits, default_tenant: str) -> None:
    """Prepare a process of the pool."""
    global _worker  # noqa: PLW0603 - the pool passes nothing else on to its tasks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the importing process ends its pool itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = _Worker(
        Validator(rules, BUILT_IN_GUARDS[guard], limits, IdGenerator()), default_tenant
    )


def _end_with_parent() -> None:
    """End this process when the importing one has ended, also if it was killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(PARENT_ENDED)


def _prepare_batch(appends: list[NumberedLines]) -> PreparedBatch:
    """Validate the appends of a batch, in a process of the pool."""
    if _worker is None:
        return None
    try:
        return _worker.validator.prepare_each(
            [make_draft(append, _worker.default_tenant) for append in appends]
        )
    except SeriatimError:
        return None

"""Retries of registry operations while its database is unreachable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Literal, TypeVar

from seriatim.core.backoff import Backoff
from seriatim.core.errors import BackendFailure

logger = logging.getLogger("seriatim")

OnOutage = Literal["pause", "fail_fast", "dlq"]
T = TypeVar("T")

# A restart of the database takes seconds; afterwards consumers continue within 5 s.
_BACKOFF = Backoff(first_s=0.1, cap_s=5.0)


class OutageRetry:
    """Runs operations on the registry and, with the policy `pause`, retries them in an outage.

    `since` is the monotonic time at which the current outage began, or None.
    """

    def __init__(self, policy: OnOutage) -> None:
        self.policy: OnOutage = policy
        self.since: float | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop waiting: from now on the next failure is raised."""
        self._stopped.set()

    def run(self, operation: Callable[[], T], retry: Callable[[], T] | None = None) -> T:
        """Run an operation and return its result; retry it with backoff during an outage.

        Args:
            operation: The operation.
            retry: Runs instead of the operation after the first failure, for operations that may
                have been committed although their response was lost.

        Raises:
            BackendFailure: The policy is not `pause`, the failure is not retryable, or `stop` was
                called.

        """
        for attempt in count(1):
            try:
                found = operation()
            except BackendFailure as error:
                if self.policy != "pause" or not error.retryable or self._stopped.is_set():
                    raise
                self._note_failure(error)
            else:
                self._note_success()
                return found
            self._stopped.wait(_BACKOFF.delay_s(attempt))
            operation = retry or operation
        raise AssertionError  # the attempts never end

    def _note_failure(self, error: BackendFailure) -> None:
        """Log the beginning of an outage, once."""
        if self.since is None:
            self.since = time.monotonic()
            logger.warning("the registry cannot be reached, consumers pause: %s", error.message)

    def _note_success(self) -> None:
        """Log the end of an outage, if there was one."""
        if self.since is not None:
            lasted = time.monotonic() - self.since
            self.since = None
            logger.warning("the registry is back after %.1f s, consumers continue", lasted)

"""What consumers do while the registry cannot be reached: wait for it, or say so at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from seriatim.core.errors import BackendFailure

logger = logging.getLogger("seriatim")

OnOutage = Literal["pause", "fail_fast", "dlq"]
T = TypeVar("T")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_GROWTH = 2.0


class Outage:
    """How acts on the registry meet an outage; `since` tells whether there is one now."""

    def __init__(self, policy: OnOutage) -> None:
        self.policy: OnOutage = policy
        self.since: float | None = None
        self._ended = threading.Event()

    def end(self) -> None:
        """Wait no longer: what is tried next and fails, fails."""
        self._ended.set()

    def through(self, act: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """Return what an act returns; after an outage `again` is asked, as its answer was lost."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                found = act()
            except BackendFailure as error:
                if self.policy != "pause" or not error.retryable or self._ended.is_set():
                    raise
                self._began(error)
            else:
                self._over()
                return found
            self._ended.wait(pause)
            pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)
            act = again or act

    def _began(self, error: BackendFailure) -> None:
        if self.since is None:
            self.since = time.monotonic()
            logger.warning("the registry cannot be reached, consumers pause: %s", error.message)

    def _over(self) -> None:
        if self.since is not None:
            lasted = time.monotonic() - self.since
            self.since = None
            logger.warning("the registry is back after %.1f s, consumers go on", lasted)

"""Waking those who wait for the head to move, in this process and in others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.03


class Wakeups:
    """The head as last seen: own appends tell it at once, those of other processes are polled."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._moved = threading.Condition()
        self._head = 0
        self._looked_at = 0.0
        self._closed = False

    def wait(self, position: int, timeout: float) -> None:
        """Sleep until the head has passed a position, the time is over or the log closes."""
        deadline = time.monotonic() + timeout
        while not self._closed:
            self._poll()
            with self._moved:
                left = deadline - time.monotonic()
                if self._head > position or left <= 0:
                    return
                self._moved.wait(min(left, POLL_S))

    def _poll(self) -> None:
        """Look at the head, once for all that wait."""
        now = time.monotonic()
        if now - self._looked_at < POLL_S / 2:
            return
        self._looked_at = now
        head = self._look()
        with self._moved:
            self._head = max(self._head, head)

    def tell(self, head: int) -> None:
        """Wake those who wait for less than this head."""
        with self._moved:
            self._head = max(self._head, head)
            self._moved.notify_all()

    def close(self) -> None:
        """Let everyone go."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

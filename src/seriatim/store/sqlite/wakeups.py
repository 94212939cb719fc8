"""Wake threads that wait for new events, from this process and from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.03  # how often the file is checked for appends of other processes


class HeadWatcher:
    """The last known head: own appends update it at once, those of other processes by polling."""

    def __init__(self, read_head: Callable[[], int]) -> None:
        self._read_head = read_head
        self._moved = threading.Condition()
        self._head = 0
        self._polled_at = 0.0
        self._closed = False

    def wait(self, position: int, timeout: float) -> None:
        """Block until the head has passed a position, the timeout expires or the log closes."""
        deadline = time.monotonic() + timeout
        while not self._closed:
            self._poll()
            with self._moved:
                remaining = deadline - time.monotonic()
                if self._head > position or remaining <= 0:
                    return
                self._moved.wait(min(remaining, POLL_S))

    def _poll(self) -> None:
        """Read the head from the file, at most once per half interval for all waiting threads."""
        now = time.monotonic()
        if now - self._polled_at < POLL_S / 2:
            return
        self._polled_at = now
        head = self._read_head()
        with self._moved:
            self._head = max(self._head, head)

    def notify(self, head: int) -> None:
        """Update the head and wake the waiting threads."""
        with self._moved:
            self._head = max(self._head, head)
            self._moved.notify_all()

    def close(self) -> None:
        """Wake all waiting threads for good."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

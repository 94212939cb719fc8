"""Bounded label values: each value costs memory in every scrape, so their number is limited."""

from __future__ import annotations

import threading

OTHER = "other"
NAMES_MAX = 1000


class Bounded:
    """Accept the first label values up to a limit; all later ones become `other`."""

    def __init__(self, most: int = NAMES_MAX) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def name(self, name: str) -> str:
        """Return a value if it is accepted, else `other`."""
        return name if self.admits(name) else OTHER

    def admits(self, *names: str) -> bool:
        """Return whether a combination of label values is accepted, remembering it if so."""
        # Reading a set is safe without the lock, and this is the common case.
        if names in self._known:
            return True
        with self._lock:
            if len(self._known) >= self._most:
                return names in self._known
            self._known.add(names)
            return True

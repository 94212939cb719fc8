"""Labels of metrics: a bounded number of names, the rest counts as one."""

from __future__ import annotations

import threading

OTHER = "other"
NAMES_MAX = 1000


class Bounded:
    """The first so many names that come; whoever comes later is `other`."""

    def __init__(self, most: int = NAMES_MAX) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def name(self, name: str) -> str:
        """Return a name that may stand as a label."""
        return name if self.admits(name) else OTHER

    def admits(self, *names: str) -> bool:
        """Tell whether names that stand together may be labels, remembering them if so."""
        if names in self._known:
            return True
        with self._lock:
            if len(self._known) >= self._most:
                return names in self._known
            self._known.add(names)
            return True

"""Results that pages computed from events: events never change, so the results stay valid."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

_ENTRIES_MAX = 256
_WEIGHT_MAX = 16 * 1024 * 1024  # bytes, about
_SHARE = 8  # one entry takes at most this part, so that a few large ones do not evict all others


class PageCache:
    """A bounded cache of one process; the entries that were used least recently are evicted.

    Its users run on the event loop. A key names the tenant, and everything else that the value
    depends on.

    Args:
        entries_max: The number of entries.
        weight_max: The sum of their weights.
    """

    def __init__(self, entries_max: int = _ENTRIES_MAX, weight_max: int = _WEIGHT_MAX) -> None:
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._entries_max = entries_max
        self._weight_max = weight_max
        self._weight = 0

    def get(self, key: Hashable) -> Any:
        """Return a value, None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, value: Any, weight: int) -> None:
        """Keep a value of about this many bytes, unless it is too large."""
        self.drop(key)
        if weight > self._weight_max // _SHARE:
            return
        self._entries[key] = value, weight
        self._weight += weight
        while len(self._entries) > self._entries_max or self._weight > self._weight_max:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._weight -= evicted

    def drop(self, key: Hashable) -> None:
        """Forget a value."""
        _, weight = self._entries.pop(key, (None, 0))
        self._weight -= weight

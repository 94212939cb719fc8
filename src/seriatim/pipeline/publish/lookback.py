"""Lookback: send recent events again before a step, except those known to be delivered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator

from seriatim.config.delivery import PublisherSettings
from seriatim.core.event import EventRecord
from seriatim.core.times import parse_us
from seriatim.store.port import ReadSpec, Store

EventKey = tuple[str, str]  # tenant id and event id: an event id is unique within its tenant only

_PAGE = 10_000


class Lookback:
    """Moves the start of a step back by a configured time and number of events.

    It is off by default, as a gapless log has no late arrivals; then it does nothing.
    """

    def __init__(
        self, store: Store, settings: PublisherSettings, tenant_id: str | None = None
    ) -> None:
        self._store = store
        self._settings = settings
        self._tenant_id = tenant_id
        self._recent: deque[EventKey] = deque(maxlen=settings.dedup_max_events)

    @property
    def _enabled(self) -> bool:
        return self._settings.lookback_s > 0 and self._settings.lookback_max_keys > 0

    @property
    def checkpoint_keys(self) -> tuple[EventKey, ...]:
        """The delivered events to store in a checkpoint."""
        most = self._settings.dedup_checkpoint_max_events
        return tuple(self._recent)[-most:] if most else ()

    def remember(self, ids: Iterable[EventKey]) -> None:
        """Add the delivered events that a checkpoint contains."""
        self._recent.extend(ids)

    def find_start(self, after: int) -> tuple[int, frozenset[EventKey]]:
        """Return the position to start after instead, and the delivered events to skip."""
        if not self._enabled or not after:
            return after, frozenset()
        since = time.time_ns() // 1000 - int(self._settings.lookback_s * 1_000_000)
        begin = max(0, after - self._settings.lookback_max_keys)
        for event in self._events(begin, after):
            if (parse_us(event.recorded_at) or 0) >= since:
                return event.position - 1, frozenset(self._recent)
        return after, frozenset()

    def remember_range(self, after: int, until: int) -> None:
        """Remember the last events of a delivered step."""
        if not self._enabled or not self._recent.maxlen:
            return
        after = max(after, until - self._recent.maxlen)
        self._recent.extend(
            (event.tenant_id, event.event_id) for event in self._events(after, until)
        )

    def _events(self, after: int, until: int) -> Iterator[EventRecord]:
        """Read the events of a range that this publisher sends, page by page."""
        while after < until:
            page = self._store.read(
                ReadSpec(tenant_id=self._tenant_id, limit=_PAGE, after=after, until=until)
            )
            if not page:
                return
            yield from page
            after = page[-1].position

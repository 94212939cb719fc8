"""The state of one tail: its query, its position, and a bounded buffer of new appends."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cached_property

from seriatim.api.memory_budget import MemoryBudget
from seriatim.core.errors import LimitExceeded, SeriatimError
from seriatim.core.event import StreamRef
from seriatim.core.query import Matcher, Query

BUFFER_BYTES = 4 * 1024 * 1024


class TailChunk:
    """One encoded append, or only a position; shared by all tails that it matches.

    Its text counts once in the tenant's memory, however many tails hold it.
    """

    __slots__ = ("_holders", "_memory", "_tenant_id", "position", "records")

    def __init__(
        self,
        position: int,
        records: bytes = b"",
        tenant_id: str = "",
        memory: MemoryBudget | None = None,
    ) -> None:
        self.position = position
        self.records = records
        self._tenant_id = tenant_id
        self._memory = memory
        self._holders = 0

    def acquire(self) -> bool:
        """Add a holder; return False if the text does not fit into the tenant's memory."""
        memory = None if self._holders else self._memory
        if memory is not None and not memory.try_acquire(self._tenant_id, len(self.records)):
            return False
        self._holders += 1
        return True

    def release(self) -> None:
        """Remove a holder."""
        self._holders -= 1
        if not self._holders and self._memory is not None:
            self._memory.release(self._tenant_id, len(self.records))


class TailBuffer:
    """The state of one tail.

    A tail that is `lagging` gets nothing from the hub: it reads from the log until it has caught
    up, or ends with its `failure`.

    Args:
        tenant_id: The tenant.
        query: The events to send.
        position: The last position that was sent.
        capacity: The maximum number of appends in the buffer.
    """

    def __init__(self, tenant_id: str, query: Query, position: int, capacity: int) -> None:
        self.tenant_id = tenant_id
        self.query = query
        self.position = position
        self.lagging = False
        self.failure: SeriatimError | None = None
        self.match_failure: LimitExceeded | None = None
        self.match_s = 0.0  # processor time of its predicates, minus its share since then
        self.matched_at = 0.0
        self._capacity = capacity
        self._bytes = 0
        self._chunks: deque[TailChunk] = deque()
        self._current: TailChunk | None = None
        self._waiter: asyncio.Future[None] | None = None

    @cached_property
    def matcher(self) -> Matcher:
        """The compiled query; compiled in the thread that matches, not on the event loop."""
        return Matcher(self.query)

    def streams(self) -> set[StreamRef] | None:
        """Return the streams of the query; None if it is not restricted to streams."""
        filters = self.query.filters
        if not filters or any(query_filter.streams is None for query_filter in filters):
            return None
        return {stream for query_filter in filters for stream in query_filter.streams or ()}

    def start(self) -> None:
        """Accept appends from now on; the log was read up to here."""
        self.lagging = False
        self._clear()

    def close(self) -> None:
        """Release everything, and accept nothing more."""
        self.lagging = True
        self._clear()
        self._release_current()

    @property
    def has_pending(self) -> bool:
        """Whether the buffer holds appends."""
        return bool(self._chunks)

    def offer(self, chunk: TailChunk) -> bool:
        """Add an append to the buffer; return False if it is full, and the tail lags."""
        if self.lagging:
            return False
        # The size is checked before adding: an append is delivered whole, however large it is.
        full = len(self._chunks) >= self._capacity or self._bytes > BUFFER_BYTES
        if full or not chunk.acquire():
            self.mark_lagging()
            return False
        self._chunks.append(chunk)
        self._bytes += len(chunk.records)
        self._wake()
        return True

    def mark_lagging(self, failure: SeriatimError | None = None) -> None:
        """Clear the buffer: the tail reads from the log, or ends with `failure`."""
        self.lagging, self.failure = True, failure or self.failure
        self._clear()
        self._wake()

    def _clear(self) -> None:
        while self._chunks:
            self._chunks.popleft().release()
        self._bytes = 0

    def _release_current(self) -> None:
        if self._current is not None:
            self._current.release()
            self._current = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, seconds: float) -> TailChunk | None:
        """Return the next append; None after `seconds`, or if the tail lags.

        The append before it is released: it has been sent.
        """
        self._release_current()
        if not self._chunks and not self.lagging:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        if not self._chunks:
            return None
        chunk = self._current = self._chunks.popleft()
        self._bytes -= len(chunk.records)
        return chunk

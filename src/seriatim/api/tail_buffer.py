"""What one reader follows: its query, where it is, and a bounded buffer of what comes."""

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
    """One committed append as tails see it, ready to be sent; without text, only a position.

    Its text counts once as its tenant's memory, however many tails hold it.
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
        """Let one more tail have it; False if the tenant's memory has no room for it."""
        memory = None if self._holders else self._memory
        if memory is not None and not memory.try_acquire(self._tenant_id, len(self.records)):
            return False
        self._holders += 1
        return True

    def release(self) -> None:
        """Let a tail be done with it."""
        self._holders -= 1
        if not self._holders and self._memory is not None:
            self._memory.release(self._tenant_id, len(self.records))


class TailBuffer:
    """What one reader follows: its query, where it is, and a bounded buffer."""

    def __init__(self, tenant_id: str, query: Query, position: int, room: int) -> None:
        self.tenant_id = tenant_id
        self.query = query
        self.position = position
        self.lagging = False
        self.failure: SeriatimError | None = None
        self.match_failure: LimitExceeded | None = None
        self.match_s = 0.0  # processor time that its predicates have cost, less what it may use
        self.matched_at = 0.0
        self._room = room
        self._bytes = 0
        self._pieces: deque[TailChunk] = deque()
        self._current: TailChunk | None = None
        self._waiter: asyncio.Future[None] | None = None

    @cached_property
    def matcher(self) -> Matcher:
        """The query, compiled once; made by the thread that matches, not by the event loop."""
        return Matcher(self.query)

    def streams(self) -> set[StreamRef] | None:
        """Return the streams that the query is confined to, None when it is not."""
        filters = self.query.filters
        if not filters or any(one.streams is None for one in filters):
            return None
        return {stream for one in filters for stream in one.streams or ()}

    def start(self) -> None:
        """Take what comes from here on; what waited was read by other ways meanwhile."""
        self.lagging = False
        self._forget()

    def close(self) -> None:
        """Hold nothing any more, and want nothing."""
        self.lagging = True
        self._forget()
        self._sent()

    @property
    def has_pending(self) -> bool:
        """Whether something has come that was not taken yet."""
        return bool(self._pieces)

    def offer(self, piece: TailChunk) -> bool:
        """Take one more, unless there is no room: then the tail is behind."""
        if self.lagging:
            return False
        full = len(self._pieces) >= self._room or self._bytes > BUFFER_BYTES
        if full or not piece.acquire():
            self.mark_lagging()
            return False
        self._pieces.append(piece)
        self._bytes += len(piece.records)
        self._wake()
        return True

    def mark_lagging(self, failure: SeriatimError | None = None) -> None:
        """Forget what waits: the tail reads on by itself, or ends with an error."""
        self.lagging, self.failure = True, failure or self.failure
        self._forget()
        self._wake()

    def _forget(self) -> None:
        while self._pieces:
            self._pieces.popleft().release()
        self._bytes = 0

    def _sent(self) -> None:
        if self._current is not None:
            self._current.release()
            self._current = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, seconds: float) -> TailChunk | None:
        """Return the next piece; None when time is up or the tail is behind.

        To ask for the next one says that the one before was sent.
        """
        self._sent()
        if not self._pieces and not self.lagging:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            alarm = loop.call_later(seconds, self._wake)
            try:
                await waiter
            finally:
                alarm.cancel()
                self._waiter = None
        if not self._pieces:
            return None
        piece = self._current = self._pieces.popleft()
        self._bytes -= len(piece.records)
        return piece

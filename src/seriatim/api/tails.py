"""What one reader follows: its query, where it is, and a bounded buffer of what comes."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from seriatim.core.errors import SeriatimError
from seriatim.core.event import StreamRef
from seriatim.core.query import Query

BUFFER_BYTES = 4 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One committed append as a tail sees it, ready to be sent; without text, only a position."""

    position: int
    records: bytes = b""


class Tail:
    """What one reader follows: its query, where it is, and a bounded buffer."""

    def __init__(self, tenant_id: str, query: Query, position: int, room: int) -> None:
        self.tenant_id = tenant_id
        self.query = query
        self.position = position
        self.behind = False
        self.failure: SeriatimError | None = None
        self._room = room
        self._bytes = 0
        self._pieces: deque[Piece] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def streams(self) -> set[StreamRef] | None:
        """Return the streams that the query is confined to, None when it is not."""
        filters = self.query.filters
        if not filters or any(one.streams is None for one in filters):
            return None
        return {stream for one in filters for stream in one.streams or ()}

    def begin(self) -> None:
        """Take what comes from here on; what waited was read by other ways meanwhile."""
        self.behind = False
        self._forget()

    @property
    def waiting(self) -> bool:
        """Whether something has come that was not taken yet."""
        return bool(self._pieces)

    def offer(self, piece: Piece) -> bool:
        """Take one more, unless there is no room: then the tail is behind."""
        if self.behind:
            return False
        if len(self._pieces) >= self._room or self._bytes > BUFFER_BYTES:
            self.fall_behind()
            return False
        self._pieces.append(piece)
        self._bytes += len(piece.records)
        self._wake()
        return True

    def fall_behind(self, failure: SeriatimError | None = None) -> None:
        """Forget what waits: the tail reads on by itself, or ends with an error."""
        self.behind, self.failure = True, failure or self.failure
        self._forget()
        self._wake()

    def _forget(self) -> None:
        self._pieces.clear()
        self._bytes = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, seconds: float) -> Piece | None:
        """Return the next piece; None when time is up or the tail is behind."""
        if not self._pieces and not self.behind:
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
        piece = self._pieces.popleft()
        self._bytes -= len(piece.records)
        return piece

"""One connection of the server: its heads are bounded in size and time, idlers are let go."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 128 * 1024
TAKES_NOTHING_MS = 90_000  # the kernel closes a connection whose peer has no room for so long


class Connection(HttpToolsProtocol):
    """A connection whose requests have heads that come whole, soon, and are not too long."""

    head_s = 30.0
    _head_bytes = 0
    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; closing a connection waits for its peer, so the kernel has to bound that."""
        super().connection_made(transport)  # type: ignore[arg-type]
        link: Any = transport.get_extra_info("socket")
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and link is not None and link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, option, TAKES_NOTHING_MS)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is a head without an end."""
        super().data_received(data)
        scope: Any = self.scope  # none before the first request
        if scope is not None and getattr(self.cycle, "scope", None) is scope:
            self._head_came()
            return
        self._head_bytes += len(data)
        self._wait_for_head()
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def _wait_for_head(self) -> None:
        if self._alarm is None:
            self._alarm = self.loop.call_later(self.head_s, self._head_missing)

    def _head_came(self) -> None:
        self._head_bytes = 0
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _head_missing(self) -> None:
        self._alarm = None
        if not self.transport.is_closing():
            self.transport.close()

"""One connection of the server: its heads are bounded, and who takes nothing is let go."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 128 * 1024
TAKES_NOTHING_MS = 90_000  # the kernel closes a connection whose peer has no room for so long


class Connection(HttpToolsProtocol):
    """A connection whose requests have heads of a bounded size."""

    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; closing a connection waits for its peer, so the kernel has to bound that."""
        super().connection_made(transport)  # type: ignore[arg-type]
        link: Any = transport.get_extra_info("socket")
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and link is not None and link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, option, TAKES_NOTHING_MS)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is a head without an end."""
        super().data_received(data)
        scope: Any = self.scope  # none before the first request
        if scope is None or getattr(self.cycle, "scope", None) is scope:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

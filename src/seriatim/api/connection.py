"""One connection of the server, with bounds for heads, unauthenticated clients and stalls."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from seriatim.core.errors import InvalidArgument, LimitExceeded, SeriatimError
from seriatim.core.extras import explain_missing_module
from seriatim.core.limits import MIB
from seriatim.wire.problems import CONTENT_TYPE, problem_from_error

try:
    from httptools import HttpParserInvalidMethodError
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

HEAD_BYTES_MAX = 128 * 1024
LINE_BYTES_MAX = 64 * 1024 - 1  # of a request's target: the parser accepts no more
TRAILER_BYTES_MAX = 128 * 1024  # chunk extensions and trailers of a chunked body
TCP_USER_TIMEOUT_MS = 90_000  # the kernel closes a connection if its peer accepts no data
DISCARDED_BYTES_MAX = 64 * MIB  # of a refused request, before the connection is closed
SHUTDOWN_STALL_S = 5.0  # at shutdown, for a peer that does not read its response
THROTTLE_S = 1.0
LINGER_S = 1.0  # closing at once would reset the connection before a sending peer has read
_WRITE_HIGH = 64 * 1024
_CONNECTION = "seriatim.connection"
_REQUEST_LINE = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ?\r\n]+)[^ \r\n]* HTTP/1\.[01]\r?\n"
)


class UnauthenticatedConnections:
    """The connections of a process that have not presented a valid token yet, oldest first.

    Over a bound the oldest one is closed: clients with a token are in this list only briefly.

    Args:
        count: The maximum number of connections.
        size: The maximum number of bytes that they have sent.
        report: Called with the name of a bound that was reached.
    """

    def __init__(self, count: int, size: int, report: Callable[[str], None]) -> None:
        self._count = count
        self._size = size
        self._report = report
        self._open: dict[HttpConnection, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpConnection) -> None:
        """Count a new connection."""
        self._open[connection] = 0
        if len(self._open) > self._count:
            self._close_oldest("unauthenticated_connections")

    def add_bytes(self, connection: HttpConnection, size: int) -> None:
        """Count bytes received before a valid token."""
        if connection not in self._open:
            return
        self._open[connection] += size
        self.bytes += size
        while self.bytes > self._size and self._open:
            self._close_oldest("unauthenticated_bytes")

    def reset_bytes(self, connection: HttpConnection) -> None:
        """Stop counting the bytes of a connection after the response to its request."""
        if connection in self._open:
            self.bytes -= self._open[connection]
            self._open[connection] = 0

    def remove(self, connection: HttpConnection) -> None:
        """Stop counting a connection that has presented a token, or has ended."""
        self.bytes -= self._open.pop(connection, 0)

    def _close_oldest(self, limit: str) -> None:
        with_bytes = limit == "unauthenticated_bytes"
        oldest = next(
            (connection for connection, size in self._open.items() if size or not with_bytes), None
        )
        if oldest is None:
            return
        self.remove(oldest)
        self._report(limit)
        oldest.transport.abort()  # closing would wait for a peer that does not read


class HttpConnection(HttpToolsProtocol):
    """A connection that bounds the size and duration of request heads."""

    head_s = 30.0
    _head_bytes = 0
    _trailer_bytes = 0
    _peer_read = False
    _lost = False
    _discarded = 0
    _data = b""
    _refused = False
    _head_timer: asyncio.TimerHandle | None = None
    _unauthenticated: UnauthenticatedConnections | None = None
    on_lost: Callable[[], None] | None = None
    on_discard: Callable[[int], None] | None = None
    _throttle_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection; closing it waits for the peer, which only the kernel can bound."""
        super().connection_made(transport)  # type: ignore[arg-type] # asyncio passes a Transport
        tcp_socket: Any = transport.get_extra_info("socket")
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and tcp_socket is not None and tcp_socket.family != socket.AF_UNIX:
            tcp_socket.setsockopt(socket.IPPROTO_TCP, option, TCP_USER_TIMEOUT_MS)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._unauthenticated = getattr(self.app, "unauthenticated", None)
        if self._unauthenticated is not None:
            self._unauthenticated.add(self)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in progress: its response cannot be delivered any more."""
        self._lost = True
        self._end_head_timer()
        if self._unauthenticated is not None:
            self._unauthenticated.remove(self)
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def mark_authenticated(self) -> None:
        """Stop counting this connection as unauthenticated, and read request bodies ahead."""
        if self._unauthenticated is not None:
            self._unauthenticated.remove(self)
            self._unauthenticated = None
            if not self.cycle.body:
                self.flow.resume_reading()

    def start_request(self, on_lost: Callable[[], None]) -> None:
        """Begin a request.

        Args:
            on_lost: Called if the connection ends before the request does.
        """
        self.on_lost = on_lost
        self.on_discard = None
        self._throttle_s = 0.0
        if self.transport.is_closing():
            on_lost()

    def throttle(self) -> None:
        """Delay reading the rest of a refused body, to slow down a client over its quota."""
        self._throttle_s = THROTTLE_S
        self.on_discard = None  # a body that is refused unread is not charged to the quota

    @property
    def stalled(self) -> bool:
        """Whether the peer has not read the data sent so far."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Close at once, and discard unsent data."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Close after the current response; abort if the peer does not read it."""
        super().shutdown()
        self._watch_stall()

    def _watch_stall(self) -> None:
        """Abort if the peer reads nothing for `SHUTDOWN_STALL_S`."""
        self._peer_read = False
        self.loop.call_later(SHUTDOWN_STALL_S, self._abort_if_stalled)

    def _abort_if_stalled(self) -> None:
        if self._lost:
            return
        # A closing connection waits until its peer has read the end of the response.
        if (self.stalled or self.transport.is_closing()) and not self._peer_read:
            self.abort()
        else:
            self._watch_stall()

    def resume_writing(self) -> None:
        """Continue to write: the peer has read data."""
        self._peer_read = True
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse received data, within the bounds of heads and trailers."""
        if self._refused:
            self._discard(len(data))
            return
        self._data = data
        self._trailer_bytes += len(data)
        super().data_received(data)
        self._data = b""
        scope: Any = self.scope  # none before the first request
        # The cycle has the scope of the last head as soon as that head is complete.
        if scope is not None and getattr(self.cycle, "scope", None) is scope:
            self._end_head_timer()
            self._check_trailers()
            return
        self._trailer_bytes = 0
        self._head_bytes += len(data)
        self._start_head_timer()
        if self._unauthenticated is not None:
            self._unauthenticated.add_bytes(self, len(data))
        self._check_head(self._head_bytes)

    def _check_head(self, size: int) -> bool:
        """Refuse a head or a request line that is too long; return whether it is accepted."""
        if len(getattr(self, "url", b"")) > LINE_BYTES_MAX:
            self._refuse(
                HTTPStatus.REQUEST_URI_TOO_LONG, _too_long_error("request line", LINE_BYTES_MAX)
            )
        elif size > HEAD_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(status, _too_long_error("head", HEAD_BYTES_MAX))
        else:
            return True
        return False

    def _check_trailers(self) -> None:
        """Refuse chunk extensions and trailers that are too long: the parser buffers them all."""
        if self._trailer_bytes <= TRAILER_BYTES_MAX:
            return
        if self.cycle.response_started:
            self.transport.abort()  # a second response would be read as part of the first
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._refuse(status, _too_long_error("trailer", TRAILER_BYTES_MAX))

    def on_headers_complete(self) -> None:
        """Begin a request; its body is read ahead only after authentication."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._refused or not self._check_head(size):
            return
        scope: Any = self.scope
        scope[_CONNECTION] = self
        super().on_headers_complete()
        if self._unauthenticated is not None:
            self._unauthenticated.add_bytes(self, size)
            # Without a valid token no body is read: it stays in the kernel until authentication.
            if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Accept a chunk of a body; discard it, up to a bound, if the request was refused."""
        self._trailer_bytes = 0
        if self._refused:
            return
        if self.cycle.response_complete:
            self._discard(len(body))
            return
        if self._unauthenticated is not None:
            self._unauthenticated.add_bytes(self, len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body of a request."""
        self._discarded = self._trailer_bytes = 0
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        if self._unauthenticated is not None:
            self._unauthenticated.reset_bytes(self)
        super().on_response_complete()
        if self._throttle_s and self.cycle.more_body and not self.transport.is_closing():
            self.flow.pause_reading()
            self.loop.call_later(self._throttle_s, self._resume_reading)

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, or has a method that the parser does not know."""
        del msg
        # The parser stops at an unknown method: the path, for the header Allow, is in the raw data.
        unknown_method = isinstance(sys.exception(), HttpParserInvalidMethodError)
        line = _REQUEST_LINE.match(self._data) if unknown_method else None
        if line is None:
            error = InvalidArgument("not an HTTP/1.1 request", details={"argument": "request"})
            self._refuse(HTTPStatus.BAD_REQUEST, error)
            return
        app: Any = self.app
        allowed = app.allowed_methods(line[2].decode("latin-1"))
        msg = f"{line[1].decode()[:20]} is not allowed for this path, which accepts {allowed}"
        error = InvalidArgument(msg, details={"argument": "method"})
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, error, f"allow: {allowed}\r\n")

    def _refuse(self, status: HTTPStatus, error: SeriatimError, headers: str = "") -> None:
        """Send a problem response without calling the application, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        problem = msgspec.structs.replace(
            problem_from_error(error), status=int(status), title=status.phrase
        )
        body = msgspec.json.encode(problem)
        head = (
            f"content-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\n"
            f"connection: close\r\n{headers}\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _discard(self, size: int) -> None:
        """Count discarded bytes, and abort the connection when they exceed their bound."""
        self._discarded += size
        if self.on_discard is not None:
            self.on_discard(size)
        if self._discarded > DISCARDED_BYTES_MAX:
            self.transport.abort()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._close_without_head)

    def _end_head_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_without_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def connection_from_scope(scope: Any) -> HttpConnection | None:
    """Return the connection of a request; None if another server runs the application."""
    connection: HttpConnection | None = scope.get(_CONNECTION)
    return connection


def _too_long_error(part: str, bound: int) -> LimitExceeded:
    msg = f"the {part} of the request is over the bound of {bound} bytes"
    return LimitExceeded(msg, details={"limit": f"{part.replace(' ', '_')}_bytes", "bound": bound})

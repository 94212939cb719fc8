"""One connection of the server, with bounds for heads, unauthenticated and idle peers."""

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
LINE_BYTES_MAX = 64 * 1024 - 1  # of a request's target: the parser takes no more
TRAILER_BYTES_MAX = 128 * 1024  # of what stands in a chunked body and is no part of it
TCP_USER_TIMEOUT_MS = 90_000  # the kernel closes a connection whose peer has no room for so long
DISCARDED_BYTES_MAX = 64 * MIB  # of a refused request, before the connection is closed
SHUTDOWN_STALL_S = 5.0  # that a service which is ending waits for a peer to take its answer
THROTTLE_S = 1.0
LINGER_S = 1.0  # a peer that still sends would lose the refusal if the connection closed at once
_WRITE_HIGH = 64 * 1024
_CONNECTION = "seriatim.connection"
_REQUEST_LINE = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ?\r\n]+)[^ \r\n]* HTTP/1\.[01]\r?\n"
)


class UnauthenticatedConnections:
    """The connections of a process that have shown no valid token yet, oldest first.

    Over a bound the oldest is closed: a caller with a token needs its place for a moment only.
    """

    def __init__(self, count: int, size: int, met: Callable[[str], None]) -> None:
        self._count = count
        self._size = size
        self._met = met
        self._open: dict[HttpConnection, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: HttpConnection) -> None:
        """Count a new connection."""
        self._open[one] = 0
        if len(self._open) > self._count:
            self._close_oldest("unauthenticated_connections")

    def add_bytes(self, one: HttpConnection, size: int) -> None:
        """Count bytes that came before a valid token did."""
        if one not in self._open:
            return
        self._open[one] += size
        self.bytes += size
        while self.bytes > self._size and self._open:
            self._close_oldest("unauthenticated_bytes")

    def reset_bytes(self, one: HttpConnection) -> None:
        """Count the bytes of a connection no longer: its request was answered."""
        if one in self._open:
            self.bytes -= self._open[one]
            self._open[one] = 0

    def remove(self, one: HttpConnection) -> None:
        """Count a connection no longer: it has shown a token, or has ended."""
        self.bytes -= self._open.pop(one, 0)

    def _close_oldest(self, limit: str) -> None:
        heaviest = limit == "unauthenticated_bytes"
        found = next((one for one, size in self._open.items() if size or not heaviest), None)
        if found is None:
            return
        self.remove(found)
        self._met(limit)
        found.transport.abort()


class HttpConnection(HttpToolsProtocol):
    """A connection whose requests have heads that come whole, soon, and are not too long."""

    head_s = 30.0
    _head_bytes = 0
    _trailer_bytes = 0
    _resumed = False
    _lost = False
    _discarded = 0
    _data = b""
    _refused = False
    _alarm: asyncio.TimerHandle | None = None
    _unauthenticated: UnauthenticatedConnections | None = None
    on_lost: Callable[[], None] | None = None
    on_discard: Callable[[int], None] | None = None
    _pause_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; closing a connection waits for its peer, so the kernel has to bound that."""
        super().connection_made(transport)  # type: ignore[arg-type]
        link: Any = transport.get_extra_info("socket")
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and link is not None and link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, option, TCP_USER_TIMEOUT_MS)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._unauthenticated = getattr(self.app, "unauthenticated", None)
        if self._unauthenticated is not None:
            self._unauthenticated.add(self)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and stop the work of a request that nobody waits for any more."""
        self._lost = True
        self._head_came()
        if self._unauthenticated is not None:
            self._unauthenticated.remove(self)
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def mark_authenticated(self) -> None:
        """Count this connection as a known caller's from here on."""
        if self._unauthenticated is not None:
            self._unauthenticated.remove(self)
            self._unauthenticated = None
            if not self.cycle.body:
                self.flow.resume_reading()

    def start_request(self, on_lost: Callable[[], None]) -> None:
        """Begin a request; `on_lost` is called if the connection ends before it does."""
        self.on_lost = on_lost
        self.on_discard = None
        self._pause_s = 0.0
        if self.transport.is_closing():
            on_lost()

    def throttle(self) -> None:
        """Read the rest of a refused body later: whoever is over its quota is in no hurry."""
        self._pause_s = THROTTLE_S
        self.on_discard = None  # it was refused unread, which costs no quota

    @property
    def stalled(self) -> bool:
        """Whether the peer has not taken what was sent before."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Close at once, and forget what was not sent."""
        self.transport.abort()

    def shutdown(self) -> None:
        """End once the answer under way is sent; a peer that takes nothing is not waited for."""
        super().shutdown()
        self._watch_stall()

    def _watch_stall(self) -> None:
        """Abort once the peer has taken nothing for a while; one that takes something may go on."""
        self._resumed = False
        self.loop.call_later(SHUTDOWN_STALL_S, self._end_stalled)

    def _end_stalled(self) -> None:
        if self._lost:
            return
        # A connection that is closing waits for its peer to take the end of an answer.
        if (self.stalled or self.transport.is_closing()) and not self._resumed:
            self.abort()
        else:
            self._watch_stall()

    def resume_writing(self) -> None:
        """Go on writing: the peer has taken what was sent before."""
        self._resumed = True
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is a head without an end."""
        if self._refused:
            self._discard(len(data))
            return
        self._data = data
        self._trailer_bytes += len(data)
        super().data_received(data)
        self._data = b""
        scope: Any = self.scope  # none before the first request
        if scope is not None and getattr(self.cycle, "scope", None) is scope:
            self._head_came()
            self._check_trailers()
            return
        self._trailer_bytes = 0
        self._head_bytes += len(data)
        self._wait_for_head()
        if self._unauthenticated is not None:
            self._unauthenticated.add_bytes(self, len(data))
        self._check_head(self._head_bytes)

    def _check_head(self, size: int) -> bool:
        """Refuse a head that is too long; a line without an end is the part that is."""
        if len(getattr(self, "url", b"")) > LINE_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, _too_long("request line", LINE_BYTES_MAX))
        elif size > HEAD_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(status, _too_long("head", HEAD_BYTES_MAX))
        else:
            return True
        return False

    def _check_trailers(self) -> None:
        """Refuse chunk extensions and trailers that are too long: the parser keeps all of them."""
        if self._trailer_bytes <= TRAILER_BYTES_MAX:
            return
        if self.cycle.response_started:
            self.transport.abort()  # a second answer would be taken for a part of the first
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._refuse(status, _too_long("trailer", TRAILER_BYTES_MAX))

    def on_headers_complete(self) -> None:
        """Begin a request; the body of one who is not known yet is not read ahead."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._refused or not self._check_head(size):
            return
        scope: Any = self.scope
        scope[_CONNECTION] = self
        super().on_headers_complete()
        if self._unauthenticated is not None:
            self._unauthenticated.add_bytes(self, size)
            if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; a refused one is thrown away, up to a bound."""
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
        """End a request's body."""
        self._discarded = self._trailer_bytes = 0
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        if self._unauthenticated is not None:
            self._unauthenticated.reset_bytes(self)
        super().on_response_complete()
        if self._pause_s and self.cycle.more_body and not self.transport.is_closing():
            self.flow.pause_reading()
            self.loop.call_later(self._pause_s, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP request, or have a method that the parser does not know."""
        del msg
        unknown_method = isinstance(sys.exception(), HttpParserInvalidMethodError)
        line = _REQUEST_LINE.match(self._data) if unknown_method else None
        if line is None:
            error = InvalidArgument("this is no HTTP/1.1 request", details={"argument": "request"})
            self._refuse(HTTPStatus.BAD_REQUEST, error)
            return
        app: Any = self.app
        allowed = app.allowed_methods(line[2].decode("latin-1"))
        msg = f"{line[1].decode()[:20]} is not for this path: {allowed}"
        error = InvalidArgument(msg, details={"argument": "method"})
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, error, f"allow: {allowed}\r\n")

    def _refuse(self, status: HTTPStatus, error: SeriatimError, headers: str = "") -> None:
        """Answer without an application, and close."""
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
        self._discarded += size
        if self.on_discard is not None:
            self.on_discard(size)
        if self._discarded > DISCARDED_BYTES_MAX:
            self.transport.abort()

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


def connection_from_scope(scope: Any) -> HttpConnection | None:
    """Return the connection that a request came over, if this server runs it."""
    found: HttpConnection | None = scope.get(_CONNECTION)
    return found


def _too_long(what: str, bound: int) -> LimitExceeded:
    msg = f"the {what} of the request is over the bound of {bound} bytes"
    return LimitExceeded(msg, details={"limit": f"{what.replace(' ', '_')}_bytes", "bound": bound})

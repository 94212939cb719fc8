"""The connection pool of a service: keeps idle connections, and closes all with the log."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from seriatim.core.errors import BackendFailure
from seriatim.store.port import LogClosed

_IDLE_MAX = 64


class NoResponseError(Exception):
    """The connection broke; `maybe_received` means that the service may have the request."""

    def __init__(self, cause: Exception, *, maybe_received: bool) -> None:
        super().__init__(str(cause))
        self.maybe_received = maybe_received


class ConnectionPool:
    """The connections to one service; safe for use by several threads."""

    def __init__(
        self, host: str, port: int | None, tls: ssl.SSLContext | None, connect_timeout_s: float
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._closed = False
        self._has_content_length = False  # of the last response
        self.after_fork()

    def after_fork(self) -> None:
        """Forget all connections in a forked child: they belong to the parent."""
        self._idle: list[http.client.HTTPConnection] = []
        self._streams: set[socket.socket] = set()
        # Protects the two lists; never held while a connection sends, receives or connects.
        self._lock = threading.Lock()

    def check_open(self) -> None:
        """Raise `LogClosed` if the log is closed."""
        if self._closed:
            raise LogClosed

    def acquire(self, seconds: float) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection for one request, and whether it was used before.

        Raises:
            LogClosed: The log is closed.
            NoResponseError: A new connection could not be made.
            BackendFailure: TLS failed, which a retry would not change.
        """
        self.check_open()
        with self._lock:
            # The connection used last is the least likely to have been closed by the service.
            connection = self._idle.pop() if self._idle else None
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(seconds)
            return connection, True
        return self._connect(seconds), False

    @property
    def has_content_length(self) -> bool:
        """Whether responses have a Content-Length, so that an event loop can read them itself.

        False where the platform has no `poll`.
        """
        return self._has_content_length and hasattr(select, "poll")

    def acquire_idle(self) -> http.client.HTTPConnection | None:
        """Return an idle connection that is still open, or None."""
        while True:
            with self._lock:
                if self._closed or not self._idle:
                    return None
                connection = self._idle.pop()
            # Checked first: an event loop cannot send a group again on another connection.
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            connection.close()

    def release(self, connection: http.client.HTTPConnection, headers: Any) -> None:
        """Keep a connection for the next request, unless the service closes it."""
        self._has_content_length = "content-length" in headers
        closes = headers.get("connection", "").lower() == "close"
        with self._lock:
            if not closes and not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def open_stream(self, idle_s: float) -> Iterator[http.client.HTTPConnection]:
        """Open a connection for one streamed response, which ends when the log is closed."""
        self.check_open()
        connection = self._connect(idle_s)
        # http.client drops its socket when a response closes the connection: keep a reference.
        stream_socket = connection.sock
        try:
            with self._lock:
                # Again, under the lock: a close meanwhile would not find this stream to end it.
                self.check_open()
                self._streams.add(stream_socket)
            yield connection
        finally:
            with self._lock:
                self._streams.discard(stream_socket)
            connection.close()

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        timeout = min(self._connect_timeout_s, seconds)
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        try:
            connection.connect()
        except ssl.SSLError as error:
            raise self._make_tls_error(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise NoResponseError(error, maybe_received=False) from error
        # Without TCP_NODELAY a small body may wait for the acknowledgement of its head.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.settimeout(seconds)
        return connection

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port or (80 if self._tls is None else 443)}"

    def _make_tls_error(self, error: ssl.SSLError) -> BackendFailure:
        """Return the error of a failed TLS handshake; a retry would not change it."""
        if isinstance(error, ssl.SSLCertVerificationError):
            msg = (
                f"the certificate of the service at {self.address} does not verify "
                f"({error.verify_message}): pass verify=FILE with the trusted certificates "
                "(SSL_CERT_FILE for the command line), or use the host name in the certificate"
            )
        else:
            reason = (error.reason or "no reason was given").replace("_", " ").lower()
            msg = (
                f"the TLS handshake with the service at {self.address} failed ({reason}): check "
                "the port, or use http:// if the service does not use TLS"
            )
        return BackendFailure(msg, details={"ambiguous": False}, retryable=False)

    def close(self) -> None:
        """Close idle connections, and end the streamed responses that are being read."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            streams, self._streams = self._streams, set()
        for connection in idle:
            connection.close()
        for stream in streams:
            # Closing would not wake the thread that reads; and a TLS shutdown must not be sent from
            # another thread, so only the plain socket is shut down.
            with suppress(OSError):
                socket.socket.shutdown(stream, socket.SHUT_RDWR)


def _is_readable(idle_socket: socket.socket) -> bool:
    """Return whether an idle socket is readable: the peer closed it, or sent unexpected data."""
    ready = select.poll()
    ready.register(idle_socket, select.POLLIN)
    return bool(ready.poll(0))

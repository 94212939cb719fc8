"""Connections to a service: kept while idle, and all of them let go of when the log is closed."""

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
from seriatim.store.port import Closed

_IDLE_MAX = 64


class Unanswered(Exception):  # noqa: N818 - it is turned into an error where it is known what was asked
    """The connection broke; `sent` tells that the request may have been received."""

    def __init__(self, cause: Exception, *, sent: bool) -> None:
        super().__init__(str(cause))
        self.sent = sent


class Connections:
    """The connections to one service; any number of threads may take them at once."""

    def __init__(
        self, host: str, port: int | None, tls: ssl.SSLContext | None, connect_timeout_s: float
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._closed = False
        self._plain = False  # whether answers come whole, with their length told
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew in a child process: connections are the parent's."""
        self._idle: list[http.client.HTTPConnection] = []
        self._streams: set[socket.socket] = set()
        self._lock = threading.Lock()

    def check_open(self) -> None:
        """Refuse what is asked of a closed log."""
        if self._closed:
            raise Closed

    def take(self, seconds: float) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection for one request, and whether it was used before."""
        self.check_open()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(seconds)
            return connection, True
        return self._new(seconds), False

    @property
    def plain(self) -> bool:
        """Whether an event loop can wait for answers itself: it knows when they are whole."""
        return self._plain and hasattr(select, "poll")  # where there is none, loops watch nothing

    def take_idle(self) -> http.client.HTTPConnection | None:
        """Return a connection that is open and unused, None if none is at hand."""
        while True:
            with self._lock:
                if self._closed or not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.sock is not None and not _is_over(connection.sock):
                return connection
            connection.close()

    def put_back(self, connection: http.client.HTTPConnection, headers: Any) -> None:
        """Keep a connection for the next request, unless the service ends it."""
        self._plain = "content-length" in headers
        ends = headers.get("connection", "").lower() == "close"
        with self._lock:
            if not ends and not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def streaming(self, idle_s: float) -> Iterator[http.client.HTTPConnection]:
        """Lend a connection for one long answer, which ends when the log is closed."""
        self.check_open()
        connection = self._new(idle_s)
        # The connection forgets its socket when an answer says that it is the last.
        used = connection.sock
        try:
            with self._lock:
                self.check_open()
                self._streams.add(used)
            yield connection
        finally:
            with self._lock:
                self._streams.discard(used)
            connection.close()

    def _new(self, seconds: float) -> http.client.HTTPConnection:
        patience = min(self._connect_timeout_s, seconds)
        made: http.client.HTTPConnection
        if self._tls is None:
            made = http.client.HTTPConnection(self._host, self._port, timeout=patience)
        else:
            made = http.client.HTTPSConnection(
                self._host, self._port, timeout=patience, context=self._tls
            )
        try:
            made.connect()
        except ssl.SSLError as error:
            raise self._tls_failure(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(error, sent=False) from error
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sock.settimeout(seconds)
        return made

    @property
    def at(self) -> str:
        """Host and port, as messages have them."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port or (80 if self._tls is None else 443)}"

    def _tls_failure(self, error: ssl.SSLError) -> BackendFailure:
        """Return why TLS failed, which another try would not change."""
        if isinstance(error, ssl.SSLCertVerificationError):
            msg = (
                f"the certificate of the service at {self.at} does not verify "
                f"({error.verify_message}): pass verify=FILE with the certificates that are "
                "trusted (SSL_CERT_FILE for the command line), or call it by the name in it"
            )
        else:
            reason = (error.reason or "no reason was given").replace("_", " ").lower()
            msg = (
                f"the service at {self.at} does not speak TLS as expected ({reason}): check the "
                "port, or use http:// where TLS ends before it"
            )
        return BackendFailure(msg, details={"ambiguous": False}, retryable=False)

    def close(self) -> None:
        """Let go of what is idle, and end the answers that somebody still reads."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            streams, self._streams = self._streams, set()
        for connection in idle:
            connection.close()
        for one in streams:
            # Closing would not wake who reads from it; and TLS must not be spoken from two threads.
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)


def _is_over(idle: socket.socket) -> bool:
    """Tell whether the other side has closed a connection, or said something unasked."""
    ready = select.poll()
    ready.register(idle, select.POLLIN)
    return bool(ready.poll(0))

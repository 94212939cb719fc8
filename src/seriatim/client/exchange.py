"""A group of appends sent to a service over a socket that an event loop watches."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any

import msgspec

from seriatim.client.append_codec import mark_retried, parse_outcomes
from seriatim.client.connection_pool import NoResponseError
from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError
from seriatim.core.request import AppendRequest
from seriatim.store.port import Deferred, Outcome, make_unanswered_error
from seriatim.wire.problems import CONTENT_TYPE, Problem, error_from_problem

_decode_problem = msgspec.json.Decoder(Problem).decode


class ServiceResponse(msgspec.Struct, frozen=True):
    """A complete response of a service."""

    status: int
    headers: Any
    body: bytes


def send_request(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> ServiceResponse:
    """Send one request and read the whole response.

    Raises:
        NoResponseError: The connection broke before the response was complete.
    """
    sent = False
    try:
        connection.request(method, target, body=body, headers=dict(headers))
        sent = True
        response = connection.getresponse()
        return ServiceResponse(response.status, response.headers, response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
        # A kept-alive connection that was closed without a response: a read can be sent again. A
        # write may have been executed; its event ids make sending it again safe.
        raise NoResponseError(error, maybe_received=sent and method != "GET") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoResponseError(error, maybe_received=sent) from error


def is_retryable(failure: object) -> bool:
    """Return whether an operation that failed this way may succeed when it is retried."""
    return isinstance(failure, BackendFailure | LimitExceeded) and failure.retryable


def error_from_response(response: ServiceResponse, *, writes: bool) -> SeriatimError:
    """Return the error of a response; `writes` means that the request was not only a read.

    The delay that the header `Retry-After` requests is its `retry_after_s`, unless the problem has
    one of its own.
    """
    error = _read_error(response, writes=writes)
    seconds = response.headers.get("retry-after", "")
    if seconds.isdigit():
        error.details.setdefault("retry_after_s", float(seconds))
    return error


def _read_error(response: ServiceResponse, *, writes: bool) -> SeriatimError:
    if response.headers.get("content-type", "").startswith(CONTENT_TYPE):
        try:
            return error_from_problem(_decode_problem(response.body))
        except msgspec.MsgspecError:
            pass
    msg = (
        f"status {response.status} from something that is not a Seriatim service: check the URL, "
        "and proxies between client and service"
    )
    # A proxy in between does not know whether the service executed the request.
    if writes and response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        msg += "; the request may have been executed"
        return BackendFailure(msg, details={"ambiguous": True})
    return BackendFailure(msg, retryable=response.status in (502, 503, 504))


_CHUNK = 256 * 1024
_END = b"\r\n\r\n"
_OK = 200
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HttpExchange:
    """One group in flight, on a connection of its own until the response is complete.

    Appends that may succeed on a retry are deferred to the committer's threads, which retry them.
    """

    def __init__(
        self,
        connection: HTTPConnection,
        group: Sequence[AppendRequest],
        request: bytes,
        seconds: float,
        release: Callable[[HTTPConnection, ServiceResponse], None],
        learn_positions: Callable[[Iterable[object]], None],
    ) -> None:
        self._connection = connection
        self._socket = connection.sock
        # Kept: a closed socket has no descriptor, and the loop must still stop watching it.
        self._fileno = self._socket.fileno()
        self._group = group
        self._size = len(request)
        self._unsent = memoryview(request)
        self._release = release
        self._learn_positions = learn_positions
        self._received = bytearray()
        self._head_end = -1
        self._length = 0
        self._broken = False
        self._socket.setblocking(False)
        # Nothing else detects a service that disappears without closing the connection.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._shut_down)

    def _shut_down(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the file descriptor to watch."""
        return self._fileno

    def flush(self) -> bool:
        """Send as much as the socket accepts; return whether everything is sent."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except _WOULD_BLOCK:
            return False
        except OSError:
            # "All sent", so that the loop stops watching for writes: the next read fails, too, and
            # ends the exchange.
            self._broken = True
        return True

    def receive(self) -> bool:
        """Read what has arrived; return whether the response is complete, or broken."""
        try:
            while not self._is_complete():
                chunk = self._socket.recv(_CHUNK)
                if not chunk:
                    self._broken = True
                    return True
                self._received += chunk
        except _WOULD_BLOCK:
            # Nothing to read yet; after a failed write there will be no response to wait for.
            return self._broken
        except OSError:
            self._broken = True
        return True

    def _is_complete(self) -> bool:
        if self._head_end < 0:
            self._head_end = self._received.find(_END)
            if self._head_end < 0:
                return False
            length = _find_header(bytes(self._received[: self._head_end]), b"content-length")
            self._length = int(length) if length.isdigit() else -1
        if self._length < 0:  # chunked, for example, unlike the earlier responses of this service
            self._broken = True
            return True
        return len(self._received) >= self._response_end()

    def _response_end(self) -> int:
        return self._head_end + len(_END) + self._length

    def outcomes(self) -> list[Outcome | Deferred]:
        """Return the outcome of each append; retryable failures are returned as `Deferred`.

        Raises:
            Deferred: The whole group may succeed on a retry.
        """
        self._timer.cancel()
        if self._broken:
            self._connection.close()
            # The appends are certainly not stored only if no byte of the request was sent.
            raise self._defer(maybe_stored=len(self._unsent) < self._size)
        response = self._parse_response()
        if len(self._received) == self._response_end():
            self._release(self._connection, response)
        else:
            self._connection.close()  # more bytes than the response: not safe to reuse
        if response.status == _OK:
            outcomes = parse_outcomes(self._group, response.body)
            self._learn_positions(outcomes)
            return [_defer_retryable(*pair) for pair in zip(self._group, outcomes, strict=True)]
        failure = error_from_response(response, writes=True)
        if not is_retryable(failure):
            return [failure] * len(self._group)
        raise self._defer(
            maybe_stored=bool(failure.details.get("ambiguous")),
            wait_s=failure.retry_after_s,
        )

    def _defer(self, *, maybe_stored: bool, wait_s: float = 0.0) -> Deferred:
        """Return the whole group for the committer's threads, which retry it."""
        return Deferred(
            [
                mark_retried(request, maybe_stored=maybe_stored, wait_s=wait_s)
                for request in self._group
            ]
        )

    def _parse_response(self) -> ServiceResponse:
        head = bytes(self._received[: self._head_end])
        headers = Message()
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1")] = value.strip().decode("latin-1")
        body = self._received[self._head_end + len(_END) : self._response_end()]
        return ServiceResponse(int(head.split(b" ", 2)[1]), headers, bytes(body))

    def wait(self, timeout: float) -> list[Outcome | Deferred]:
        """Block until the response is complete, and return the outcomes.

        Raises:
            BackendFailure: The response was not complete in time; the appends may be stored.
        """
        deadline = time.monotonic() + timeout
        self._timer.cancel()
        while not (self.flush() and self.receive()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._connection.close()
                raise make_unanswered_error()
            time.sleep(min(remaining, 0.001))
        return self.outcomes()

    def abandon(self) -> None:
        """Close the connection without reading the response."""
        self._timer.cancel()
        self._connection.close()


def _defer_retryable(request: AppendRequest, outcome: Outcome) -> Outcome | Deferred:
    if not is_retryable(outcome) or not isinstance(outcome, SeriatimError):
        return outcome
    maybe_stored = bool(outcome.details.get("ambiguous"))
    return Deferred(
        [mark_retried(request, maybe_stored=maybe_stored, wait_s=outcome.retry_after_s)]
    )


def _find_header(head: bytes, name: bytes) -> bytes:
    _, separator, value = head.lower().partition(b"\r\n" + name + b":")
    return value.split(b"\r\n", 1)[0].strip() if separator else b""

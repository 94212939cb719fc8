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
from seriatim.client.connection_pool import NoResponse
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
        NoResponse: The connection broke before the response was complete.
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
        raise NoResponse(error, maybe_received=sent and method != "GET") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoResponse(error, maybe_received=sent) from error


def is_retryable(failure: object) -> bool:
    """Return whether an operation that failed this way may succeed when it is retried."""
    return isinstance(failure, BackendFailure | LimitExceeded) and failure.retryable


def retry_delay(answer: ServiceResponse, failure: SeriatimError) -> float:
    """Return the seconds to wait before a retry: from the problem, or else the header."""
    if "retry_after_s" in failure.details:
        return failure.retry_after_s
    seconds = answer.headers.get("retry-after", "")
    return float(seconds) if seconds.isdigit() else 0.0


def error_from_response(answer: ServiceResponse, *, writes: bool) -> SeriatimError:
    """Return the error of a response; `writes` means that the request was not only a read."""
    if answer.headers.get("content-type", "").startswith(CONTENT_TYPE):
        try:
            return error_from_problem(_decode_problem(answer.body))
        except msgspec.MsgspecError:
            pass
    msg = (
        f"status {answer.status} from something that is not a Seriatim service: check the URL, "
        "and proxies between client and service"
    )
    # A proxy in between does not know whether the service executed the request.
    if writes and answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        msg += "; the request may have been executed"
        return BackendFailure(msg, details={"ambiguous": True})
    return BackendFailure(msg, retryable=answer.status in (502, 503, 504))


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
        give_back: Callable[[HTTPConnection, ServiceResponse], None],
        learn: Callable[[Iterable[object]], None],
    ) -> None:
        self._connection = connection
        self._socket = connection.sock
        self._fileno = self._socket.fileno()  # a closed socket has none
        self._group = group
        self._size = len(request)
        self._left = memoryview(request)
        self._give_back = give_back
        self._learn = learn
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
            while self._left:
                self._left = self._left[self._socket.send(self._left) :]
        except _WOULD_BLOCK:
            return False
        except OSError:
            self._broken = True  # reading from the socket fails, too
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
        return len(self._received) >= self._end()

    def _end(self) -> int:
        return self._head_end + len(_END) + self._length

    def outcomes(self) -> list[Outcome | Deferred]:
        """Return the outcome of each append; retryable failures are returned as `Deferred`.

        Raises:
            Deferred: The whole group may succeed on a retry.
        """
        self._timer.cancel()
        if self._broken:
            self._connection.close()
            sent = len(self._left) < self._size
            raise Deferred([mark_retried(one, maybe_stored=sent) for one in self._group])
        answer = self._parse_response()
        if len(self._received) == self._end():
            self._give_back(self._connection, answer)
        else:
            self._connection.close()  # more bytes than the response: not safe to reuse
        if answer.status == _OK:
            found = parse_outcomes(self._group, answer.body)
            self._learn(found)
            return [_defer_retryable(*pair) for pair in zip(self._group, found, strict=True)]
        failure = error_from_response(answer, writes=True)
        if not is_retryable(failure):
            return [failure] * len(self._group)
        doubt, wait_s = bool(failure.details.get("ambiguous")), retry_delay(answer, failure)
        raise Deferred(
            [mark_retried(one, maybe_stored=doubt, wait_s=wait_s) for one in self._group]
        )

    def _parse_response(self) -> ServiceResponse:
        head = bytes(self._received[: self._head_end])
        headers = Message()
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1")] = value.strip().decode("latin-1")
        body = self._received[self._head_end + len(_END) : self._end()]
        return ServiceResponse(int(head.split(b" ", 2)[1]), headers, bytes(body))

    def wait(self, timeout: float) -> list[Outcome | Deferred]:
        """Block until the response is complete, and return the outcomes.

        Raises:
            BackendFailure: The response was not complete in time; the appends may be stored.
        """
        deadline = time.monotonic() + timeout
        self._timer.cancel()
        while not (self.flush() and self.receive()):
            left = deadline - time.monotonic()
            if left <= 0:
                self._connection.close()
                raise make_unanswered_error()
            time.sleep(min(left, 0.001))
        return self.outcomes()

    def abandon(self) -> None:
        """Close the connection without reading the response."""
        self._timer.cancel()
        self._connection.close()


def _defer_retryable(request: AppendRequest, outcome: Outcome) -> Outcome | Deferred:
    if not is_retryable(outcome) or not isinstance(outcome, SeriatimError):
        return outcome
    doubt = bool(outcome.details.get("ambiguous"))
    return Deferred([mark_retried(request, maybe_stored=doubt, wait_s=outcome.retry_after_s)])


def _find_header(head: bytes, name: bytes) -> bytes:
    _, found, rest = head.lower().partition(b"\r\n" + name + b":")
    return rest.split(b"\r\n", 1)[0].strip() if found else b""

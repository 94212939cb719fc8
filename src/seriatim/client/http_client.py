"""The HTTP client of a service: kept-alive connections, and retries with backoff."""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import count
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from seriatim.client.connection_pool import ConnectionPool, NoResponseError
from seriatim.client.exchange import (
    HttpExchange,
    ServiceResponse,
    error_from_response,
    is_retryable,
    send_request,
)
from seriatim.core.backoff import Backoff
from seriatim.core.errors import BackendFailure, InvalidArgument, SeriatimError, TimedOut
from seriatim.core.event import AppendResult
from seriatim.core.request import AppendRequest
from seriatim.telemetry import tracer

# Half of each delay is random, so that clients do not return to a restarted service together.
_BACKOFF = Backoff(first_s=0.05, cap_s=2.0, jitter=0.5)
_GRACE_S = 1.0  # the service times out first, so that its error is received
_TIMEOUT_MIN_S = 0.001  # the shortest timeout that a service accepts

_encode = msgspec.json.Encoder().encode


class AttemptHistory:
    """Whether an earlier attempt of a request may have been executed."""

    def __init__(self) -> None:
        self.maybe_applied = False


class HttpClient:
    """A client of one service; safe for use by several threads.

    Args:
        url: `http://host:port` or `https://host`, with an optional path prefix.
        token: The bearer token, or None.
        timeout_s: How long a call may take, including retries.
        connect_timeout_s: How long connecting may take.
        verify: True, False, or a file with trusted certificates.

    Raises:
        InvalidArgument: The URL is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        verify: str | bool = True,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            msg = "the URL of a service is http://host:port or https://host"
            raise InvalidArgument(msg, details={"argument": "url"})
        if parts.username or parts.query or parts.fragment:
            msg = "the URL of a service has no user, query or fragment: pass token= instead"
            raise InvalidArgument(msg, details={"argument": "url"})
        try:
            self._host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidArgument(str(error), details={"argument": "url"}) from None
        self._netloc = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._token = token
        self.timeout_s = timeout_s
        tls = _make_tls_context(verify) if parts.scheme == "https" else None
        self._connections = ConnectionPool(self._host, port, tls, connect_timeout_s)
        self.known_position = 0  # the highest position in any response

    def learn_positions(self, outcomes: Iterable[object]) -> None:
        """Update `known_position` with the receipts among these outcomes."""
        positions = [
            outcome.last_position for outcome in outcomes if isinstance(outcome, AppendResult)
        ]
        self.known_position = max([self.known_position, *positions])

    def after_fork(self) -> None:
        """Forget all connections in a forked child: they belong to the parent."""
        self._connections.after_fork()

    def close(self) -> None:
        """Close all connections, and end the streamed responses that are being read."""
        self._connections.close()

    # -- requests

    def get(
        self,
        path: str,
        params: Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        """Send a GET request, retrying transient failures, and return the body.

        `wait_s` is how long the service itself may wait before it responds.
        """
        target = _make_target(path, params)
        return self._request(
            "GET", target, None, tenant_id, self.timeout_s + wait_s, AttemptHistory()
        ).body

    def post(
        self,
        path: str,
        body: Any,
        *,
        tenant_id: str | None = None,
        timeout_s: float | None = None,
        history: AttemptHistory | None = None,
    ) -> bytes:
        """Send a POST request, retrying transient failures, and return the body.

        The operation must be safe to repeat.
        """
        seconds = self.timeout_s if timeout_s is None else timeout_s
        return self._request(
            "POST", path, _encode(body), tenant_id, seconds, history or AttemptHistory()
        ).body

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | None,
        tenant_id: str | None,
        seconds: float,
        history: AttemptHistory,
    ) -> ServiceResponse:
        """Send a request until it succeeds, fails permanently, or time is up."""
        deadline = time.monotonic() + seconds
        headers = self._make_headers(tenant_id, body)
        for delay in retry_delays():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise _timeout_error(history)
            if body is not None:
                # The service times out first, and its response says whether it executed the write.
                headers["seriatim-timeout-s"] = f"{max(remaining, _TIMEOUT_MIN_S):.3f}"
            try:
                response = self._request_once(method, target, body, headers, remaining + _GRACE_S)
            except NoResponseError as error:
                failure: SeriatimError = self._unreachable_error(error)
                wait = delay
            else:
                if response.status < HTTPStatus.BAD_REQUEST:
                    return response
                failure = error_from_response(response, writes=body is not None)
                if not is_retryable(failure):
                    raise failure
                wait = max(delay, failure.retry_after_s)
            if time.monotonic() + wait >= deadline:
                # The last failure alone may be a clear refusal, although an earlier attempt that
                # got no response was executed.
                if history.maybe_applied:
                    failure.details["ambiguous"] = True
                raise failure
            history.maybe_applied = history.maybe_applied or bool(failure.details.get("ambiguous"))
            time.sleep(wait)
        raise AssertionError  # the delays never end

    def _request_once(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> ServiceResponse:
        """Send a request once; a kept-alive connection that the service has closed is replaced."""
        while True:
            connection, reused = self._connections.acquire(seconds)
            try:
                response = send_request(connection, method, self._prefix + target, body, headers)
            except NoResponseError as error:
                connection.close()
                # Services close idle connections, so this is no failure: try the next one at once.
                if reused and not error.maybe_received:
                    continue
                raise
            except BaseException:
                # Interrupted half-way: the rest of the response would be read as the next one.
                connection.close()
                raise
            self._connections.release(connection, response.headers)
            return response

    def begin(
        self, path: str, body: Any, group: Sequence[AppendRequest], tenant_id: str
    ) -> HttpExchange | None:
        """Send a group without waiting for the response; None if no connection is idle."""
        # Never a new connection: connecting, with its TLS handshake, would block the loop.
        connection = self._connections.acquire_idle()
        if connection is None:
            return None
        data = _encode(body)
        # Written by hand: `http.client` sends with a blocking socket (decision 0030).
        headers = {
            "host": self._netloc,
            **self._make_headers(tenant_id, data),
            "seriatim-timeout-s": f"{self.timeout_s:.3f}",
            "content-length": str(len(data)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"POST {self._prefix}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data
        seconds = self.timeout_s + _GRACE_S
        return HttpExchange(
            connection, group, request, seconds, self._release, self.learn_positions
        )

    def _release(self, connection: http.client.HTTPConnection, response: ServiceResponse) -> None:
        self._connections.release(connection, response.headers)

    @property
    def supports_event_loop(self) -> bool:
        """Whether an event loop can send requests and read responses itself."""
        return self._connections.has_content_length and self._netloc.isascii()

    def stream_lines(
        self,
        path: str,
        params: Mapping[str, Any],
        body: Any = None,
        *,
        tenant_id: str | None,
        idle_s: float,
    ) -> Iterator[bytes]:
        """Yield the lines of a streamed response until it ends.

        Args:
            path: The path.
            params: Query parameters.
            body: With a body, the request is a POST.
            tenant_id: The tenant.
            idle_s: Seconds without a line after which the connection counts as broken.
        """
        method, target, data = "GET", _make_target(path, params), None
        if body is not None:
            method, data = "POST", _encode(body)
        headers = {**self._make_headers(tenant_id, data), "accept": "application/x-ndjson"}
        try:
            with self._connections.open_stream(idle_s) as connection:
                connection.request(method, self._prefix + target, data, headers)
                response = connection.getresponse()
                if response.status >= HTTPStatus.BAD_REQUEST:
                    error_response = ServiceResponse(
                        response.status, response.headers, response.read()
                    )
                    raise error_from_response(error_response, writes=False)
                while line := response.readline():
                    yield line
        except NoResponseError as error:
            raise self._unreachable_error(error) from error
        except (OSError, http.client.HTTPException) as error:
            self._connections.check_open()  # a closed log ends its streams by breaking them
            raise self._unreachable_error(NoResponseError(error, maybe_received=False)) from error
        self._connections.check_open()

    def _make_headers(self, tenant_id: str | None, body: bytes | None) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if tenant_id is not None:
            # Ids may be any text, sent as UTF-8; http.client encodes header values as Latin-1.
            headers["seriatim-tenant"] = tenant_id.encode().decode("latin-1")
        if body is not None:
            headers["content-type"] = "application/json"
        if tracer.is_active():
            headers |= tracer.inject()
        return headers

    def _unreachable_error(self, error: NoResponseError) -> BackendFailure:
        msg = f"the service at {self._connections.address} does not respond: {error}"
        if cure := _find_cure(error.__cause__):
            msg = f"{msg}; {cure}"
        return BackendFailure(msg, details={"ambiguous": True} if error.maybe_received else {})


def _find_cure(cause: BaseException | None) -> str:
    """Return what to try for a connection that could not be made or was lost."""
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved: correct the URL, or check DNS"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there: start it with seriatim serve, or correct host and port"
    if isinstance(cause, TimeoutError):
        return "check host, port, network and firewall, or raise timeout_s"
    if isinstance(cause, http.client.BadStatusLine | ConnectionResetError):  # or disconnected
        return "check that a service uses HTTP there, and not only TLS (https://)"
    return ""


def _make_target(path: str, params: Mapping[str, Any]) -> str:
    present = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(present, doseq=True)}" if present else path


def retry_delays() -> Iterator[float]:
    """Yield growing retry delays in seconds, with jitter, without end."""
    for attempt in count(1):
        yield _BACKOFF.delay_s(attempt, random.random())  # noqa: S311 - jitter


def _timeout_error(history: AttemptHistory) -> SeriatimError:
    if history.maybe_applied:
        msg = "the service did not respond in time; the request may have been executed"
        return BackendFailure(msg, details={"ambiguous": True})
    return TimedOut("the service did not respond in time")


def _make_tls_context(verify: str | bool) -> ssl.SSLContext:
    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)

"""HTTP for the client: kept connections, retries that are safe, and pauses that the server sets."""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from seriatim.client.answers import Answer, exchanged, may_help, refusal, retry_after
from seriatim.client.connections import Connections, Unanswered
from seriatim.client.exchange import HttpExchange
from seriatim.core.errors import BackendFailure, InvalidArgument, SeriatimError, TimedOut
from seriatim.core.event import AppendResult
from seriatim.core.request import Request
from seriatim.telemetry import tracing

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_GRACE_S = 1.0  # the server's own bound ends first, and says more
_LEAST_S = 0.001  # a service takes no shorter time

_encode = msgspec.json.Encoder().encode


class Doubt:
    """Whether an earlier try of a request may have been done, for who must know."""

    def __init__(self) -> None:
        self.earlier = False


class Http:
    """A service by its address; any number of threads may use it at once."""

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
            msg = "a service is named http://host:port or https://host"
            raise InvalidArgument(msg, details={"argument": "url"})
        if parts.username or parts.query or parts.fragment:
            msg = "a service's address has no user, query or fragment: pass token= for who you are"
            raise InvalidArgument(msg, details={"argument": "url"})
        try:
            self._host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidArgument(str(error), details={"argument": "url"}) from None
        self._place = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._token = token
        self.timeout_s = timeout_s
        tls = _context(verify) if parts.scheme == "https" else None
        self._connections = Connections(self._host, port, tls, connect_timeout_s)
        self.known_position = 0  # the highest position that the service has named

    def learn_positions(self, outcomes: Iterable[object]) -> None:
        """Remember the last position of the receipts among these outcomes."""
        found = [one.last_position for one in outcomes if isinstance(one, AppendResult)]
        self.known_position = max([self.known_position, *found])

    def after_fork(self) -> None:
        """Begin anew in a child process: connections are the parent's."""
        self._connections.after_fork()

    def close(self) -> None:
        """Let go of all connections, and end what is still followed over one."""
        self._connections.close()

    # -- asking

    def get(
        self,
        path: str,
        params: Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        """Read something; tried again while that may help."""
        target = _target(path, params)
        return self._ask("GET", target, None, tenant_id, self.timeout_s + wait_s, Doubt()).body

    def post(
        self,
        path: str,
        body: Any,
        *,
        tenant_id: str | None = None,
        timeout_s: float | None = None,
        doubt: Doubt | None = None,
    ) -> bytes:
        """Do something that does no harm when it is done twice; tried again while that may help."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        return self._ask("POST", path, _encode(body), tenant_id, seconds, doubt or Doubt()).body

    def _ask(  # noqa: PLR0913 - a request, its time and its fate
        self,
        method: str,
        target: str,
        body: bytes | None,
        tenant_id: str | None,
        seconds: float,
        doubt: Doubt,
    ) -> Answer:
        """Ask until there is an answer that another try would not change, or time is up."""
        until = time.monotonic() + seconds
        headers = self._headers(tenant_id, body)
        for pause in pauses():
            left = until - time.monotonic()
            if left <= 0:
                raise _too_late(doubt)
            if body is not None:
                headers["seriatim-timeout-s"] = f"{max(left, _LEAST_S):.3f}"
            try:
                answer = self._once(method, target, body, headers, left + _GRACE_S)
            except Unanswered as error:
                failure: SeriatimError = self._unreachable(error)
                wait = pause
            else:
                if answer.status < 400:  # noqa: PLR2004 - it was done
                    return answer
                failure = refusal(answer, acts=body is not None)
                if not may_help(failure):
                    raise failure
                wait = max(pause, retry_after(answer, failure))
            if time.monotonic() + wait >= until:
                if doubt.earlier:
                    failure.details["ambiguous"] = True
                raise failure
            doubt.earlier = doubt.earlier or bool(failure.details.get("ambiguous"))
            time.sleep(wait)
        raise AssertionError  # pauses never end

    def _once(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> Answer:
        """Ask once; a kept connection that the server has closed meanwhile is replaced."""
        while True:
            connection, kept = self._connections.take(seconds)
            try:
                answer = exchanged(connection, method, self._prefix + target, body, headers)
            except Unanswered as error:
                connection.close()
                if kept and not error.sent:
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            self._connections.put_back(connection, answer.headers)
            return answer

    def begin(
        self, path: str, body: Any, group: Sequence[Request], tenant_id: str
    ) -> HttpExchange | None:
        """Send a group without waiting for its answer, if a connection is at hand."""
        connection = self._connections.take_idle()
        if connection is None:
            return None
        data = _encode(body)
        told = {
            "host": self._place,
            **self._headers(tenant_id, data),
            "seriatim-timeout-s": f"{self.timeout_s:.3f}",
            "content-length": str(len(data)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        request = f"POST {self._prefix}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data
        seconds = self.timeout_s + _GRACE_S
        return HttpExchange(
            connection, group, request, seconds, self._give_back, self.learn_positions
        )

    def _give_back(self, connection: http.client.HTTPConnection, answer: Answer) -> None:
        self._connections.put_back(connection, answer.headers)

    @property
    def swift(self) -> bool:
        """Whether an event loop can send and receive by itself."""
        return self._connections.plain and self._place.isascii()

    def lines(
        self,
        path: str,
        params: Mapping[str, Any],
        body: Any = None,
        *,
        tenant_id: str | None,
        idle_s: float,
    ) -> Iterator[bytes]:
        """Yield the lines of an answer that comes in pieces, until it ends or is left."""
        method, target, sent = "GET", _target(path, params), None
        if body is not None:
            method, sent = "POST", _encode(body)
        headers = {**self._headers(tenant_id, sent), "accept": "application/x-ndjson"}
        try:
            with self._connections.streaming(idle_s) as connection:
                connection.request(method, self._prefix + target, sent, headers)
                response = connection.getresponse()
                if response.status >= 400:  # noqa: PLR2004
                    answer = Answer(response.status, response.headers, response.read())
                    raise refusal(answer, acts=False)
                while line := response.readline():
                    yield line
        except Unanswered as error:
            raise self._unreachable(error) from error
        except (OSError, http.client.HTTPException) as error:
            self._connections.check_open()
            raise self._unreachable(Unanswered(error, sent=False)) from error
        self._connections.check_open()

    def _headers(self, tenant_id: str | None, body: bytes | None) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if tenant_id is not None:
            # Ids may be any text; http.client writes headers as Latin-1 unless they are bytes.
            headers["seriatim-tenant"] = tenant_id.encode().decode("latin-1")
        if body is not None:
            headers["content-type"] = "application/json"
        if tracing.active():
            headers |= tracing.inject()
        return headers

    def _unreachable(self, error: Unanswered) -> BackendFailure:
        msg = f"the service at {self._connections.at} does not answer: {error}"
        if cure := _cure(error.__cause__):
            msg = f"{msg}; {cure}"
        return BackendFailure(msg, details={"ambiguous": True} if error.sent else {})


def _cure(cause: BaseException | None) -> str:
    """Say what helps against a connection that could not be made or was lost."""
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved: correct the address, or check DNS"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there: start it with seriatim serve, or correct host and port"
    if isinstance(cause, TimeoutError):
        return "check host, port, network and firewall, or raise timeout_s"
    if isinstance(cause, http.client.BadStatusLine | ConnectionResetError):  # or disconnected
        return "check that a service speaks HTTP there, and not TLS alone (https://)"
    return ""


def _target(path: str, params: Mapping[str, Any]) -> str:
    given = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def pauses() -> Iterator[float]:
    """Yield growing pauses with jitter, for ever."""
    longest = _FIRST_PAUSE_S
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - jitter
        longest = min(longest * 2, _LONGEST_PAUSE_S)


def _too_late(doubt: Doubt) -> SeriatimError:
    if doubt.earlier:
        msg = "the service did not answer in time; it may have been done"
        return BackendFailure(msg, details={"ambiguous": True})
    return TimedOut("the service did not answer in time")


def _context(verify: str | bool) -> ssl.SSLContext:
    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)

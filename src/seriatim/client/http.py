"""HTTP for the client: kept connections, retries that are safe, and pauses that the server sets."""

from __future__ import annotations

import http.client
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from seriatim.core.errors import BackendFailure, InvalidArgument, SeriatimError, TimedOut
from seriatim.telemetry import tracing
from seriatim.wire.problems import CONTENT_TYPE, Problem, error_of

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_GRACE_S = 1.0  # the server's own bound ends first, and says more
_BUSY = (429, 503)
_IDLE_MAX = 64

_problem = msgspec.json.Decoder(Problem).decode
_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """What a service answered."""

    status: int
    headers: Any
    body: bytes

    @property
    def replayed(self) -> bool:
        """Whether it is the answer to an earlier twin."""
        return bool(self.headers.get("seriatim-replayed") == "true")


class Unanswered(Exception):  # noqa: N818 - it is turned into an error where it is known what was asked
    """The connection broke; `sent` tells that the request may have been received."""

    def __init__(self, cause: Exception, *, sent: bool) -> None:
        super().__init__(str(cause))
        self.sent = sent


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
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls = _context(verify) if parts.scheme == "https" else None
        self._token = token
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._closed = False
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew in a child process: connections are the parent's."""
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

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
        given = {name: value for name, value in params.items() if value is not None}
        target = f"{path}?{urlencode(given, doseq=True)}" if given else path
        return self._ask("GET", target, None, tenant_id, self.timeout_s + wait_s).body

    def post(
        self,
        path: str,
        body: Any,
        *,
        tenant_id: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Do something that does no harm when it is done twice; tried again while that may help."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        return self._ask("POST", path, _encode(body), tenant_id, seconds).body

    def _ask(
        self, method: str, target: str, body: bytes | None, tenant_id: str | None, seconds: float
    ) -> Answer:
        """Ask until there is an answer that another try would not change, or time is up."""
        until = time.monotonic() + seconds
        headers = self._headers(tenant_id, body)
        ambiguous = False
        for pause in pauses():
            left = until - time.monotonic()
            if left <= 0:
                raise self._too_late(ambiguous)
            if body is not None:
                headers["seriatim-timeout-s"] = f"{left:.3f}"
            try:
                answer = self._once(method, target, body, headers, left + _GRACE_S)
            except Unanswered as error:
                ambiguous = ambiguous or error.sent
                failure: SeriatimError = self._unreachable(error, ambiguous)
                wait = pause
            else:
                if answer.status < 400:  # noqa: PLR2004 - it was done
                    return answer
                failure = _refusal(answer)
                if answer.status not in _BUSY or not failure.retryable:
                    raise failure
                ambiguous = ambiguous or bool(failure.details.get("ambiguous"))
                wait = max(pause, _retry_after(answer, failure))
            if time.monotonic() + wait >= until:
                if ambiguous:
                    failure.details["ambiguous"] = True
                raise failure
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
            connection, kept = self._connection(seconds)
            try:
                answer = _exchanged(connection, method, self._prefix + target, body, headers)
            except Unanswered as error:
                connection.close()
                if kept and not error.sent:
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            self._put_back(connection, answer)
            return answer

    def lines(
        self, path: str, params: Mapping[str, Any], *, tenant_id: str | None, idle_s: float
    ) -> Iterator[bytes]:
        """Yield the lines of an answer that comes in pieces, until it ends or is left."""
        given = {name: value for name, value in params.items() if value is not None}
        target = f"{self._prefix}{path}?{urlencode(given, doseq=True)}"
        headers = {**self._headers(tenant_id, None), "accept": "application/x-ndjson"}
        connection = self._new_connection(idle_s)
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            if response.status >= 400:  # noqa: PLR2004
                raise _refusal(Answer(response.status, response.headers, response.read()))
            while line := response.readline():
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(Unanswered(error, sent=False), False) from error
        finally:
            connection.close()

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

    # -- connections

    def _connection(self, seconds: float) -> tuple[http.client.HTTPConnection, bool]:
        if self._closed:
            msg = "the log is closed"
            raise BackendFailure(msg, retryable=False)
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(seconds)
            return connection, True
        return self._new_connection(seconds), False

    def _new_connection(self, seconds: float) -> http.client.HTTPConnection:
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
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(error, sent=False) from error
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sock.settimeout(seconds)
        return made

    def _put_back(self, connection: http.client.HTTPConnection, answer: Answer) -> None:
        ends = answer.headers.get("connection", "").lower() == "close"
        with self._lock:
            if not ends and not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Let go of all connections."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # -- failures

    def _unreachable(self, error: Unanswered, ambiguous: bool) -> BackendFailure:
        msg = f"the service at {self._host} does not answer ({error})"
        return BackendFailure(msg, details={"ambiguous": True} if ambiguous else {})

    def _too_late(self, ambiguous: bool) -> SeriatimError:
        if ambiguous:
            msg = "the service did not answer in time; it may have been done"
            return BackendFailure(msg, details={"ambiguous": True})
        return TimedOut("the service did not answer in time")


def _exchanged(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> Answer:
    sent = False
    try:
        connection.request(method, target, body=body, headers=dict(headers))
        sent = True
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
        # A kept connection that was closed before anything came back has done nothing for reads;
        # for a write it may have, which its ids make harmless.
        raise Unanswered(error, sent=sent and method != "GET") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(error, sent=sent) from error


def pauses() -> Iterator[float]:
    """Yield growing pauses with jitter, for ever."""
    longest = _FIRST_PAUSE_S
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - jitter
        longest = min(longest * 2, _LONGEST_PAUSE_S)


def _retry_after(answer: Answer, failure: SeriatimError) -> float:
    """Return how long the service asks to wait: to the millisecond if it says so."""
    exact = failure.details.get("retry_after_s")
    if isinstance(exact, int | float) and exact >= 0:
        return float(exact)
    told = answer.headers.get("retry-after", "")
    return float(told) if told.isdigit() else 0.0


def _refusal(answer: Answer) -> SeriatimError:
    if answer.headers.get("content-type", "").startswith(CONTENT_TYPE):
        try:
            return error_of(_problem(answer.body))
        except msgspec.MsgspecError:
            pass
    msg = f"something that is no Seriatim service answered with status {answer.status}"
    return BackendFailure(msg, retryable=answer.status in (502, 503, 504))


def _context(verify: str | bool) -> ssl.SSLContext:
    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)

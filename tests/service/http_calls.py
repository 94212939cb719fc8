"""A minimal HTTP client for tests of the service."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec

from tests.fixtures.service import RunningService

TIMEOUT_S = 60.0


class ServiceResponse(msgspec.Struct, frozen=True):
    """A response of the service."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the decoded JSON body."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Return the error code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        found: str = self.json["code"]
        return found

    @property
    def comparable(self) -> tuple[int, bytes, dict[str, str]]:
        """Return the response without its request id, for comparisons."""
        text = self.body.replace(self.headers["x-request-id"].encode(), b"-")
        headers = {k: v for k, v in self.headers.items() if k not in _OF_THE_REQUEST}
        return self.status, text, headers


_OF_THE_REQUEST = ("x-request-id", "content-length")


class Caller:
    """A client with a token."""

    def __init__(self, port: int, token: str | None = None, tenant: str | None = None) -> None:
        self._port = port
        self.token = token
        self.tenant = tenant

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        **params: object,
    ) -> ServiceResponse:
        """Send one request; a body other than bytes is sent as JSON."""
        target = f"{path}?{urlencode(params, doseq=True)}" if params else path
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = dict(self.auth_headers)
        if sent is not None:
            given["content-type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, sent, given | (headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return ServiceResponse(response.status, found, response.read())
        finally:
            connection.close()

    @property
    def auth_headers(self) -> dict[str, str]:
        """Return the headers with the token and the tenant."""
        given = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        return given if self.tenant is None else {**given, "seriatim-tenant": self.tenant}

    def append(self, *events: dict[str, Any], **more: object) -> ServiceResponse:
        """Append events."""
        return self("POST", "/v1/events", {"events": list(events), **more})


def make_event(event_type: str = "noted", payload: Any = None, **more: object) -> dict[str, Any]:
    """Return an event as JSON."""
    return {"event_type": event_type, "payload": {} if payload is None else payload, **more}


def make_caller(service: RunningService, **token: object) -> Caller:
    """Return a client with a new token."""
    return Caller(service.port, service.token(**token))


class OpenTail:
    """An open tail that is read incrementally."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of NDJSON."""
        while line := self.response.readline():
            yield json.loads(line)

    def events(self) -> Iterator[dict[str, str]]:
        """Yield Server-Sent Events as their fields."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            if line == "\n":
                yield fields
                fields = {}
                continue
            name, _, value = line.rstrip("\n").partition(":")
            fields[name or "comment"] = value.removeprefix(" ")


@contextmanager
def open_tail(
    caller: Caller,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    lines: bool = True,
    **params: object,
) -> Iterator[OpenTail]:
    """Open a tail as NDJSON or Server-Sent Events; with a body, by POST."""
    connection = http.client.HTTPConnection("127.0.0.1", caller._port, timeout=TIMEOUT_S)
    kind = "application/x-ndjson" if lines else "text/event-stream"
    given = {**caller.auth_headers, "accept": kind, "content-type": "application/json"}
    try:
        connection.request(
            "GET" if body is None else "POST",
            f"/v1/tail?{urlencode(params, doseq=True)}",
            None if body is None else json.dumps(body),
            headers={**given, **(headers or {})},
        )
        yield OpenTail(connection.getresponse())
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

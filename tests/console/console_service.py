"""A service with the console in the test process, and a browser without scripts."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import urlencode

import msgspec
import uvicorn

from seriatim.api.server import ServiceLocation, make_app, make_config
from seriatim.api.service import ServiceSettings
from seriatim.console.routes import make_console
from tests.fixtures.service import RunningService

TIMEOUT_S = 60.0
_REQUEST_TOKEN = re.compile(r'name="request_token" value="([^"]+)"')


class ConsoleService(RunningService):
    """A running service with the console."""

    def __init__(self, url: str, **serving: Any) -> None:
        super().__init__(url, **serving)
        location = ServiceLocation(url=url, port=0)
        make = partial(make_app, make_mount=make_console)
        self._config = make_config(location, ServiceSettings(**serving), make)
        self._server = uvicorn.Server(self._config)

    def sign_in(self, **token: Any) -> Visitor:
        """Return a visitor with a new token; by default of a service, with all rights."""
        visitor = Visitor(self.port)
        visitor.sign_in(self.token(**token))
        return visitor


class PageResponse(msgspec.Struct, frozen=True):
    """A response of the console."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def html(self) -> str:
        """The page."""
        return self.body.decode()

    @property
    def text(self) -> str:
        """The page without tags, with single spaces."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())


class Visitor:
    """A browser with a session and without scripts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cookie = ""

    def sign_in(self, token: str) -> None:
        """Open a session with a token."""
        response = self._send("POST", "/console/sign-in", urlencode({"token": token}))
        assert response.status == 303, response.text
        self.cookie = response.headers["set-cookie"].partition(";")[0]

    def get(self, path: str, **params: Any) -> PageResponse:
        """Load a page of the console."""
        query = f"?{urlencode(params)}" if params else ""
        return self._send("GET", f"/console{path}{query}")

    def submit(self, path: str, page: PageResponse | None = None, **fields: Any) -> PageResponse:
        """Submit a form with the request token of a page, and follow its redirection."""
        found = _REQUEST_TOKEN.search("" if page is None else page.html)
        if found is not None:
            fields["request_token"] = unescape(found[1])
        response = self._send("POST", f"/console{path}", urlencode(fields))
        if response.status == 303:
            return self._send("GET", response.headers["location"])
        return response

    def _send(self, method: str, target: str, body: str | None = None) -> PageResponse:
        headers = {"cookie": self.cookie} if self.cookie else {}
        if body is not None:
            headers["content-type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return PageResponse(response.status, found, response.read())
        finally:
            connection.close()


@contextmanager
def run_console(url: str, **serving: Any) -> Iterator[ConsoleService]:
    """Run a service with the console during the `with` block."""
    service = ConsoleService(url, **serving)
    service.start()
    try:
        yield service
    finally:
        service.stop()

"""A service with its console on a thread, and a browser without scripts."""

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

_REQUEST_TOKEN = re.compile(r'name="request_token" value="([^"]+)"')


class VisitedPage(msgspec.Struct, frozen=True):
    """A page as it was received."""

    status: int
    html: str

    @property
    def text(self) -> str:
        """The page without tags, with single spaces."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    def link(self, text: str) -> str:
        """Return the address of the first link with this text."""
        found = re.search(rf'<a [^>]*href="([^"]+)"[^>]*>(?:<bdi>)?{re.escape(text)}', self.html)
        assert found is not None, self.html
        return unescape(found[1])


class PageVisitor:
    """A browser with the session of a token."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._cookie = ""
        self._send("POST", "/console/sign-in", {"token": token})

    def get(self, path: str, **params: Any) -> VisitedPage:
        """Load a page by its path below `/console`, or by a whole address."""
        query = f"?{urlencode(params)}" if params else ""
        return self._send("GET", path if path.startswith("/console") else f"/console{path}{query}")

    def submit(self, path: str, page: VisitedPage | None = None, **fields: str) -> VisitedPage:
        """Submit a form of a page, with its request token."""
        if page is not None:
            found = _REQUEST_TOKEN.search(page.html)
            assert found is not None, page.html
            fields["request_token"] = found[1]
        return self._send("POST", f"/console{path}", fields)

    def _send(self, method: str, target: str, fields: dict[str, str] | None = None) -> VisitedPage:
        headers = {"cookie": self._cookie}
        body = None
        if fields is not None:
            body = urlencode(fields)
            headers["content-type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            if given := response.headers.get("set-cookie"):
                self._cookie = given.partition(";")[0]
            return VisitedPage(response.status, response.read().decode())
        finally:
            connection.close()


class VisitedService(RunningService):
    """A running service with its console."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        make = partial(make_app, make_mount=make_console)
        self._config = make_config(ServiceLocation(url=url, port=0), ServiceSettings(), make)
        self._server = uvicorn.Server(self._config)

    def visitor(self, **token: Any) -> PageVisitor:
        """Return a browser with a session; by default of a token with all rights."""
        return PageVisitor(self.port, self.token(**token))


@contextmanager
def run_visited_service(url: str) -> Iterator[VisitedService]:
    """Run a service with its console during the `with` block."""
    service = VisitedService(url)
    service.start()
    try:
        yield service
    finally:
        service.stop()

"""A service with the console, and a visitor that reads pages and submits forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

import msgspec

from seriatim.console.app import ConsoleSettings
from tests.fixtures import console


class ConsoleService(console.ConsoleService):
    """A running service with the console."""

    def sign_in(self, **token: object) -> Visitor:
        """Return a visitor with a new token; by default of a service, with all rights."""
        visitor = Visitor(self.port)
        visitor.sign_in(self.token(**token))
        return visitor


class VisitedPage(msgspec.Struct, frozen=True):
    """A page as it was received."""

    status: int
    headers: dict[str, str]
    html: str

    @property
    def text(self) -> str:
        """The page without tags, with single spaces."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    def link(self, text: str) -> str:
        """Return the address of the first link with this text."""
        match = re.search(rf'<a [^>]*href="([^"]+)"[^>]*>(?:<bdi>)?{re.escape(text)}', self.html)
        assert match is not None, self.html
        return unescape(match[1])


class Visitor:
    """A browser with a session and without scripts, which follows redirections of forms."""

    def __init__(self, port: int) -> None:
        self._client = console.Visitor(port)

    def sign_in(self, token: str) -> None:
        """Open a session with a token."""
        response = self._client.sign_in(token)
        assert response.status == 303, response.text

    def get(self, path: str, **params: Any) -> VisitedPage:
        """Load a page by its path below `/console`, or by a whole address."""
        address = path if path.startswith("/console") else f"/console{path}"
        return _visit(self._client.get(address, **params))

    def submit(self, path: str, page: VisitedPage | None = None, **fields: Any) -> VisitedPage:
        """Submit a form with the request token of a page."""
        if page is not None and (match := console.REQUEST_TOKEN.search(page.html)) is not None:
            fields["request_token"] = unescape(match[1])
        response = self._client.post(f"/console{path}", **fields)
        if response.status == 303:
            response = self._client.get(response.location)
        return _visit(response)


def _visit(response: console.PageResponse) -> VisitedPage:
    return VisitedPage(response.status, response.headers, response.text)


@contextmanager
def run_console(url: str, **serving: Any) -> Iterator[ConsoleService]:
    """Run a service with the console during the `with` block."""
    service = ConsoleService(url, ConsoleSettings(), **serving)
    service.start()
    try:
        yield service
    finally:
        service.stop()

"""The context of a page: its request, calls of the API, and rendering."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode

import msgspec

from seriatim.access.rights import Caller, Right
from seriatim.api.app import App
from seriatim.api.http import HttpRequest, HttpResponse, HttpStream
from seriatim.console.history import History
from seriatim.console.renderer import Renderer
from seriatim.core.errors import InvalidArgument, SeriatimError
from seriatim.core.projection import Projection
from seriatim.core.tenants import ALL_TENANTS

PREFIX = "/console"
_FIELDS_MAX = 200
_is_plain = re.compile(r"[A-Za-z0-9_.-]+").fullmatch
_SMALL_BODY = 32 * 1024  # bytes that are decoded on the event loop

Param = str | int | bool | list[str] | None
ConsoleResponse = HttpResponse | HttpStream
PageFunction = Callable[["ConsolePage"], Awaitable[ConsoleResponse]]


class PageRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A page or an action of the console.

    Attributes:
        method: `GET` for pages, `POST` for actions; only these need a request token.
        path: The path after `/console`.
        show: Renders the page, or performs the action and redirects.
        title: The entry in the navigation; empty for pages that other pages link to.
        right: The right that a caller needs to see the entry. The routes of the API that the page
            calls check rights themselves.
    """

    method: str
    path: str
    show: PageFunction
    title: str = ""
    right: Right = "read"


class ConsolePage:
    """A request for a page, with everything that its response needs.

    Args:
        app: The application whose routes the page calls.
        request: The request, with its caller and tenant.
        renderer: Renders templates.
        form: The fields of a submitted form.
        request_token: The value that forms of this session send back.
        navigation: The entries of the navigation.
        history: The last hour of the log in this process.
        projections: Declared projections whose states can be displayed event by event.
    """

    def __init__(
        self,
        app: App,
        request: HttpRequest,
        renderer: Renderer,
        *,
        form: Mapping[str, str],
        request_token: str,
        navigation: tuple[PageRoute, ...],
        history: History,
        projections: tuple[Projection, ...] = (),
    ) -> None:
        self.app = app
        self.projections = projections
        self.request = request
        self.params = parse_fields(request.query)
        self.form = form
        self._renderer = renderer
        self._request_token = request_token
        self._navigation = navigation
        self.history = history

    @property
    def caller(self) -> Caller:
        """The caller of the session."""
        return self.request.caller

    @property
    def reason(self) -> str:
        """The reason of an action, as the form gives it."""
        return self.form.get("reason", "").strip()

    def can(self, right: Right) -> bool:
        """Return whether the caller has a right, so that a form for it is rendered.

        The routes of the API check the right again when the form is sent.
        """
        return right in self.caller.rights and (right == "read" or self.caller.service)

    # -- calls of the API

    async def get(self, path: str, **params: Param) -> Any:
        """Call a route of the API with GET, and return its response as plain values.

        Parameters that are None or empty are omitted.

        Raises:
            SeriatimError: The call failed.
        """
        fields = [
            (name, _format_param(item))
            for name, value in params.items()
            if value not in (None, "", [])
            for item in (value if isinstance(value, list) else [value])
        ]
        query = urlencode(fields).encode()
        return await self._decode(await self.app.call(self.request.derive("GET", path, query)))

    async def post(self, path: str, body: Any) -> Any:
        """Call a route of the API with POST, and return its response as plain values.

        Raises:
            SeriatimError: The call failed.
        """
        encoded = msgspec.json.encode(body)
        response = await self.app.call(self.request.derive("POST", path, b"", encoded))
        return await self._decode(response)

    async def _decode(self, response: ConsoleResponse) -> Any:
        """Decode a response; a large one in a thread of the tenant."""
        if isinstance(response, HttpStream) or len(response.body) <= _SMALL_BODY:
            return decode_response(response)
        return await self.app.service.run_for_tenant(
            self.request.tenant_id, decode_response, response
        )

    async def stream(self, path: str, params: Mapping[str, str]) -> HttpStream:
        """Call a route that streams, such as a tail."""
        query = urlencode(params).encode()
        response = await self.app.call(self.request.derive("GET", path, query))
        if not isinstance(response, HttpStream):
            msg = f"{path} does not stream"
            raise InvalidArgument(msg, details={"argument": "path"})
        return response

    # -- responses

    def url(self, path: str, /, **params: Param) -> str:
        """Return the address of a page with the tenant of this one; every view is a link (N5)."""
        tenant: dict[str, Param] = {}
        if self.caller.tenant_id == ALL_TENANTS:
            tenant["tenant"] = self.request.tenant_id
        fields = [
            f"{name}={_quote(str(value))}"
            for name, value in (tenant | params).items()
            if value is not None and value != ""
        ]
        return f"{PREFIX}{path}?{'&'.join(fields)}" if fields else f"{PREFIX}{path}"

    async def render(self, template: str, *, status: int = 200, **values: object) -> HttpResponse:
        """Render a template."""
        return await self._render(template, status, values)

    async def render_form(
        self, template: str, error: SeriatimError | None, **values: object
    ) -> HttpResponse:
        """Render a page with a form, and the error of an action that the form requested."""
        if error is None:
            return await self._render(template, 200, {"error": "", **values})
        status = self.app.service.problem(error, self.request.request_id).status
        return await self._render(template, status, {"error": error.message, **values})

    async def _render(self, template: str, status: int, values: dict[str, object]) -> HttpResponse:
        visible_routes = tuple(route for route in self._navigation if self.can(route.right))
        values |= {
            "page": self,
            "navigation": visible_routes,
            "request_token": self._request_token,
            "all_tenants": self.caller.tenant_id == ALL_TENANTS,
        }
        # In a thread of the tenant: payloads can be large.
        body = await self.app.service.compute_for(
            self.request.tenant_id, self._renderer.render, template, values
        )
        return HttpResponse(status, body, b"text/html; charset=utf-8")

    def redirect(self, path: str, /, **params: Param) -> HttpResponse:
        """Send the browser to a page after an action."""
        return redirect_to(self.url(path, **params))


def _quote(value: str) -> str:
    """Quote a value of an address."""
    # A list has some hundred links, and most of their ids need no quoting.
    return value if _is_plain(value) is not None else quote_plus(value)


def redirect_to(address: str) -> HttpResponse:
    """Return a redirection that the browser follows with GET."""
    # 303: reloading the page that follows does not repeat the action.
    return HttpResponse(303, b"", b"text/plain", ((b"location", address.encode("ascii")),))


def parse_fields(encoded: bytes) -> dict[str, str]:
    """Return the fields of a query string or a form; the last value of a repeated name counts.

    Raises:
        InvalidArgument: It is not UTF-8, or has too many fields.
    """
    try:
        pairs = parse_qsl(
            encoded.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        msg = f"a form has at most {_FIELDS_MAX} fields, encoded as UTF-8"
        raise InvalidArgument(msg, details={"argument": "form"}) from None
    return dict(pairs)


def decode_response(response: ConsoleResponse) -> Any:
    """Return the body of a response as plain values."""
    if isinstance(response, HttpStream):
        msg = "this route streams: use ConsolePage.stream"
        raise InvalidArgument(msg, details={"argument": "path"})
    return msgspec.json.decode(response.body) if response.body else None


def _format_param(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

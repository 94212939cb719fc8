"""The context of a page: its request, calls of the API, and rendering."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote_plus, urlencode

import msgspec
from markupsafe import Markup

from seriatim.access.rights import Caller, Right
from seriatim.api.app import App
from seriatim.api.http import HttpRequest, HttpResponse, HttpStream
from seriatim.console.history import History
from seriatim.console.page_cache import PageCache
from seriatim.console.renderer import (
    Renderer,
    format_inline_json,
    format_number,
    format_seconds,
    shorten,
)
from seriatim.core.errors import Forbidden, InvalidArgument, SeriatimError
from seriatim.core.projection import Projection
from seriatim.core.tenants import ALL_TENANTS

PREFIX = "/console"
_FIELDS_MAX = 200
_is_plain = re.compile(r"[A-Za-z0-9_.-]+").fullmatch

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


class EventRow(NamedTuple):
    """The texts and addresses of an event in a table; the table unpacks them in this order."""

    key: str
    address: str
    position: str
    recorded_at: str
    time: str
    type: str
    stream_address: str
    stream: str
    seq: str
    actor: str
    payload: str


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
        cache: Results that pages computed from events.
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
        cache: PageCache,
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
        self.cache = cache

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

    def require_operator_of_all(self) -> None:
        """Check that the caller may operate the whole log, before a page asks for a confirmation.

        Raises:
            Forbidden: The caller may not.
        """
        if self.caller.tenant_id != ALL_TENANTS or not self.can("operate"):
            msg = "this operation concerns the whole log: it needs an operator of all tenants"
            raise Forbidden(msg)

    # -- calls of the API

    async def get(self, path: str, **params: Param) -> Any:
        """Call a route of the API with GET, and return its response as plain values.

        Parameters that are None or empty are omitted.

        Raises:
            SeriatimError: The call failed.
        """
        return await self._decode(await self._call_get(path, params))

    async def get_body(self, path: str, **params: Param) -> bytes:
        """Call a route of the API with GET, and return its response in JSON.

        Raises:
            SeriatimError: The call failed.
        """
        response = await self._call_get(path, params)
        if isinstance(response, HttpStream):
            raise _make_stream_error()
        return response.body

    async def _call_get(self, path: str, params: Mapping[str, Param]) -> ConsoleResponse:
        fields = [
            (name, _format_param(item))
            for name, value in params.items()
            if value not in (None, "", [])
            for item in (value if isinstance(value, list) else [value])
        ]
        query = urlencode(fields).encode()
        return await self.app.call(self.request.derive("GET", path, query))

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
        if isinstance(response, HttpStream):
            return decode_response(response)
        return await self.app.service.run_sized(
            self.request.tenant_id, len(response.body), partial(decode_response, response)
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
            f"{name}={quote_value(str(value))}"
            for name, value in (tenant | params).items()
            if value is not None and value != ""
        ]
        return f"{PREFIX}{path}?{'&'.join(fields)}" if fields else f"{PREFIX}{path}"

    def url_start(self, path: str, name: str) -> str:
        """Return the address of a page up to the value of its last parameter."""
        address = self.url(path)
        return f"{address}{'&' if '?' in address else '?'}{name}="

    def event_rows(self, events: Iterable[Mapping[str, Any]]) -> list[EventRow]:
        """Return the rows of a table of events.

        They are prepared here because a template takes twice as long: it looks up each field, and
        calls each filter, by its name.
        """
        event_start, stream_start = (
            self.url_start("/event", "id"),
            self.url_start("/stream", "type"),
        )
        rows = []
        for event in events:
            stream_type, stream_id, seq = (
                event["stream_type"],
                event["stream_id"],
                event["stream_seq"],
            )
            stream_address = stream = ""
            if stream_type is not None:
                stream_address = (
                    f"{stream_start}{quote_value(stream_type)}&id={quote_value(stream_id)}"
                )
                stream = f"{shorten(stream_type, 24)} / {shorten(stream_id, 40)}"
            position, recorded_at = event["position"], event["recorded_at"]
            rows.append(
                EventRow(
                    str(position),
                    event_start + quote_value(event["event_id"]),
                    format_number(position),
                    recorded_at,
                    format_seconds(recorded_at),
                    shorten(event["event_type"], 48),
                    stream_address,
                    stream,
                    "" if seq is None else str(seq),
                    shorten(event["actor_id"] or "", 24),
                    format_inline_json(event["payload"]),
                )
            )
        return rows

    async def render(self, template: str, *, status: int = 200, **values: object) -> HttpResponse:
        """Render a template."""
        return await self._render(template, status, values)

    async def render_part(self, template: str, **values: object) -> Markup:
        """Render a part of a page, to keep it; a template inserts it as it is."""
        values |= {"page": self}
        body = await self.app.service.compute_for(
            self.request.tenant_id, self._renderer.render, template, values
        )
        return Markup(body.decode())  # noqa: S704 - the template has escaped its values

    async def render_form(
        self, template: str, error: SeriatimError | None, **values: object
    ) -> HttpResponse:
        """Render a page with a form, and the error of an action that the form requested."""
        if error is None:
            return await self._render(template, 200, {"error": "", **values})
        status = self.app.service.problem(error, self.request.request_id).status
        return await self._render(template, status, {"error": error.message, **values})

    async def _render(self, template: str, status: int, values: dict[str, object]) -> HttpResponse:
        values |= {
            "page": self,
            "navigation": self._list_navigation(),
            "request_token": self._request_token,
            "all_tenants": self.caller.tenant_id == ALL_TENANTS,
        }
        # In a thread of the tenant: payloads can be large.
        body = await self.app.service.compute_for(
            self.request.tenant_id, self._renderer.render, template, values
        )
        return HttpResponse(status, body, b"text/html; charset=utf-8")

    def _list_navigation(self) -> list[tuple[str, str, bool]]:
        """Return address, title, and whether it is this page, for each entry of the navigation."""
        path = self.request.path.removeprefix(PREFIX)
        return [
            (self.url(route.path), route.title, route.path == path)
            for route in self._navigation
            if self.can(route.right)
        ]

    def redirect(self, path: str, /, **params: Param) -> HttpResponse:
        """Send the browser to a page after an action."""
        return redirect_to(self.url(path, **params))


def quote_value(value: str) -> str:
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
        raise _make_stream_error()
    return msgspec.json.decode(response.body) if response.body else None


def _make_stream_error() -> InvalidArgument:
    msg = "this route streams: use ConsolePage.stream"
    return InvalidArgument(msg, details={"argument": "path"})


def _format_param(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The console as a part of the service: signing in, requests for pages, and security headers."""

from __future__ import annotations

import hmac
import secrets
import time
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

import msgspec

from seriatim.access.rights import Caller, Right
from seriatim.api.app import App
from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.service import is_loopback
from seriatim.console.page import (
    PREFIX,
    ConsolePage,
    ConsoleResponse,
    PageRoute,
    parse_fields,
    redirect_to,
)
from seriatim.console.renderer import Renderer
from seriatim.console.sessions import (
    ANONYMOUS,
    COOKIE,
    LOCAL,
    SECURE_COOKIE,
    SESSION_S,
    SessionSigner,
)
from seriatim.core.errors import Forbidden, NotFound, SeriatimError, Unauthorized
from seriatim.core.limits import MIB

_FORM_BYTES = 2 * MIB
_HTML = b"text/html; charset=utf-8"
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# N3: nothing inline, no other origin, no framing; pages are not kept by caches.
_SECURITY_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the console.

    Attributes:
        sign_in_code: Opens a session once, without a token; for `seriatim console`.
        operate: Whether such a session may operate, beside reading.
        session_s: The lifetime of a session in seconds.
    """

    sign_in_code: str | None = None
    operate: bool = False
    session_s: float = SESSION_S


def new_sign_in_code() -> str:
    """Return a code for a one-time link."""
    return secrets.token_urlsafe(24)


class Console:
    """The pages under `/console/`.

    Args:
        routes: The pages and actions.
        settings: The settings.
    """

    def __init__(self, routes: tuple[PageRoute, ...], settings: ConsoleSettings) -> None:
        self._routes = {(route.method, route.path): route for route in routes}
        self._navigation = tuple(route for route in routes if route.title)
        self._settings = settings
        self._code = settings.sign_in_code
        self._renderer = Renderer()
        self._signer: SessionSigner

    def start(self, app: App) -> None:
        """Take the key that signs sessions from the service."""
        self._signer = SessionSigner(app.service.session_key)

    def stop(self) -> None:
        """Do nothing: the console has no background work."""

    def has_path(self, path: str) -> bool:
        """Return whether a path belongs to the console."""
        return path in ("/", PREFIX) or path.startswith(PREFIX + "/")

    async def handle(self, app: App, request: HttpRequest) -> ConsoleResponse:
        """Respond to a request for a page; errors become pages too."""
        if request.path in ("/", PREFIX):
            return _secure(redirect_to(f"{PREFIX}/"))
        path = request.path.removeprefix(PREFIX)
        if path.startswith("/static/") and (asset := self._renderer.asset(path)) is not None:
            return _secure(asset)
        try:
            return _secure(await self._respond(app, request, path))
        except SeriatimError as error:
            return _secure(self._error_page(app, request, error))

    async def _respond(self, app: App, request: HttpRequest, path: str) -> ConsoleResponse:
        _check_origin(request)
        if path == "/sign-in":
            return await self._sign_in(app, request)
        if path == "/sign-out":
            return self._sign_out(request)
        cookie, caller = await self._authenticate(app, request)
        if caller is None:
            if app.service.tokens_optional and is_loopback(_host_name(request)):
                return self._open_session(request, ANONYMOUS, _address_of(request))
            return redirect_to(f"{PREFIX}/sign-in")
        request.caller = caller
        if request.connection is not None:
            request.connection.mark_authenticated()
        route = self._routes.get((request.route_method, path))
        if route is None:
            raise NotFound("there is no such page in the console")
        form = await self._read_form(app, request, cookie) if route.method == "POST" else {}
        named = parse_fields(request.query).get("tenant") or form.get("tenant") or None
        request.tenant_id = caller.resolve_tenant(named)
        request.identified = True
        page = ConsolePage(
            app,
            request,
            self._renderer,
            form=form,
            request_token=self._signer.request_token(cookie),
            navigation=self._navigation,
        )
        return await app.service.queue.run(request.tenant_id, partial(route.show, page))

    # -- sessions

    async def _authenticate(self, app: App, request: HttpRequest) -> tuple[str, Caller | None]:
        """Return the cookie of a request and its caller, None if it has no valid session."""
        cookie = _read_cookie(request)
        if not cookie:
            return "", None
        try:
            session = self._signer.open(cookie, time.time())
            return cookie, await self._caller_of(app, request, session.token_id)
        except Unauthorized:
            return "", None

    async def _caller_of(self, app: App, request: HttpRequest, token_id: str) -> Caller:
        if token_id == LOCAL and self._settings.sign_in_code is not None:
            rights: frozenset[Right] = frozenset({"read"})
            if self._settings.operate:
                # Pages append nothing: these two are for dry runs of appends.
                rights |= {"operate", "append", "act_as"}
            return Caller(subject="console", rights=rights)
        if token_id == ANONYMOUS:
            return await app.service.authenticate(request.headers)
        return await app.service.authenticate_session(token_id)

    async def _sign_in(self, app: App, request: HttpRequest) -> ConsoleResponse:
        params = parse_fields(request.query)
        if request.route_method == "GET" and "code" in params:
            return self._use_code(request, params["code"])
        if request.route_method == "GET":
            return self._sign_in_page()
        form = await self._read_body(request)
        headers = {b"authorization": b"Bearer " + form.get("token", "").strip().encode()}
        try:
            caller = await app.service.authenticate(headers)
            caller.require("read")
        except SeriatimError as error:
            return self._sign_in_page(error.message, HTTPStatus.FORBIDDEN)
        return self._open_session(request, caller.token_id, f"{PREFIX}/")

    def _use_code(self, request: HttpRequest, given: str) -> HttpResponse:
        """Open a session by a one-time link; a code that was used opens no second one."""
        code, genuine = self._code, False
        if code is not None:
            genuine = hmac.compare_digest(given.encode(), code.encode())
        if not genuine:
            msg = "this sign-in link was used before, or belongs to another console"
            return self._sign_in_page(msg, HTTPStatus.FORBIDDEN)
        self._code = None
        return self._open_session(request, LOCAL, f"{PREFIX}/")

    def _sign_in_page(self, error: str = "", status: int = 200) -> HttpResponse:
        body = self._renderer.render("sign_in.html", {"error": error})
        return HttpResponse(status, body, _HTML)

    def _open_session(self, request: HttpRequest, token_id: str, address: str) -> HttpResponse:
        lifetime = self._settings.session_s
        cookie = self._signer.issue(token_id, time.time(), lifetime)
        return _set_cookie(request, redirect_to(address), cookie, int(lifetime))

    def _sign_out(self, request: HttpRequest) -> HttpResponse:
        return _set_cookie(request, redirect_to(f"{PREFIX}/sign-in"), "", 0)

    # -- forms

    async def _read_form(self, app: App, request: HttpRequest, cookie: str) -> dict[str, str]:
        """Read a form that this console rendered for this session.

        Raises:
            Forbidden: The form was not rendered for this session: a forged request.
        """
        form = await self._read_body(request, app.service.settings.body_timeout_s)
        if not self._signer.is_request_token(form.pop("request_token", ""), cookie):
            msg = "this form was not made by your session: go back, reload the page, and try again"
            raise Forbidden(msg)
        return form

    async def _read_body(self, request: HttpRequest, seconds: float = 30.0) -> dict[str, str]:
        raw = await request.body(_FORM_BYTES, seconds, lambda _: None)
        return parse_fields(raw)

    def _error_page(self, app: App, request: HttpRequest, error: SeriatimError) -> HttpResponse:
        problem = app.service.problem(error, request.request_id)
        body = self._renderer.render("error.html", {"problem": problem})
        return HttpResponse(problem.status, body, _HTML)


def _secure(response: ConsoleResponse) -> ConsoleResponse:
    headers = (*response.headers, *_SECURITY_HEADERS)
    if not any(name == b"cache-control" for name, _ in headers):
        headers = (*headers, _NO_STORE)
    return msgspec.structs.replace(response, headers=headers)


def _check_origin(request: HttpRequest) -> None:
    """Refuse actions that another site's page sends; browsers name their origin.

    Raises:
        Forbidden: The request comes from another origin.
    """
    origin = request.headers.get(b"origin")
    if request.route_method == "GET" or origin in (None, b"null"):
        return
    _, _, host = origin.partition(b"://")
    if host != request.headers.get(b"host"):
        raise Forbidden("this request comes from another site")


def _is_encrypted(request: HttpRequest) -> bool:
    return request.scheme == "https"


def _read_cookie(request: HttpRequest) -> str:
    try:
        cookies = SimpleCookie(request.headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    name = SECURE_COOKIE if _is_encrypted(request) else COOKIE
    return cookies[name].value if name in cookies else ""


def _set_cookie(
    request: HttpRequest, response: HttpResponse, value: str, lifetime_s: int
) -> HttpResponse:
    name = SECURE_COOKIE if _is_encrypted(request) else COOKIE
    secure = "; Secure" if _is_encrypted(request) else ""
    cookie = f"{name}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"
    headers = (*response.headers, (b"set-cookie", cookie.encode()))
    return msgspec.structs.replace(response, headers=headers)


def _host_name(request: HttpRequest) -> str:
    return request.headers.get(b"host", b"").decode("latin-1").rpartition(":")[0].strip("[]")


def _address_of(request: HttpRequest) -> str:
    """Return the address of a request, to load it again with its new cookie."""
    query = request.query.decode("latin-1")
    return request.path + (f"?{query}" if query else "")

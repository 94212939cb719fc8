"""The console as a part of the service: sessions, requests for pages, and security headers."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import quote, urlencode

import msgspec

from seriatim.access.rights import Caller, Right
from seriatim.api.app import App
from seriatim.api.http import ClientDisconnected, HttpRequest, HttpResponse, StatusError
from seriatim.api.service import host_name, is_loopback
from seriatim.console.history import History, Sampler
from seriatim.console.page import (
    PREFIX,
    ConsolePage,
    ConsoleResponse,
    PageRoute,
    parse_fields,
    redirect_to,
)
from seriatim.console.page_cache import PageCache
from seriatim.console.renderer import Renderer
from seriatim.core.builtin_folds import BUILTIN_FOLDS
from seriatim.core.errors import (
    BackendFailure,
    Forbidden,
    NotFound,
    SeriatimError,
    Unauthorized,
)
from seriatim.core.limits import KIB, MIB
from seriatim.core.projection import Projection

logger = logging.getLogger("seriatim.console")

COOKIE = "seriatim_session"
SECURE_COOKIE = "__Host-seriatim_session"  # browsers accept it only over TLS, for this host
SESSION_S = 12 * 3600
ANONYMOUS = "anonymous"  # in place of a token id: the service requires no tokens
_COOKIE_MAX = 1024  # ours are shorter; a longer one is refused before it is hashed
_FORM_BYTES = 2 * MIB
_SMALL_FORM_BYTES = 8 * KIB  # of forms that clients without authentication send
_ADDRESS_CHARS = 2048
# Visible ASCII without the backslash: browsers read a backslash as a slash, and a line break would
# start another header.
_OWN_ADDRESS = re.compile(rf"{PREFIX}/[!-\[\]-~]*")
_HTML = b"text/html; charset=utf-8"
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# N3: pages contain text that any caller with the right to append has written. If a template failed
# to escape it, the policy would still refuse inline scripts, other origins and frames.
_SECURITY_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")  # no cache keeps what a token has read


# -- sessions: signed cookies, and tokens against forged requests (N2)


def make_local_id(code: str) -> str:
    """Return the token id of sessions that were opened by a one-time link.

    It depends on the code: a session is valid only in the process that issued the link, and not in
    a later one that shares the access store and may have other rights.
    """
    return "local:" + sha256(code.encode()).hexdigest()[:32]


class Session(msgspec.Struct, frozen=True):
    """The content of a session cookie: the token that opened the session, and its expiry."""

    token_id: str
    expires: int  # seconds since 1970
    nonce: str  # two sessions of one token have different request tokens


class SessionSigner:
    """Issue and check session cookies.

    Cookies are signed, not stored: every process that shares the access store accepts them. The
    token is looked up at each request, so a session ends with its token.

    Args:
        key: The secret of the access store, shared by all processes of the service.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, token_id: str, now: float, lifetime_s: float = SESSION_S) -> str:
        """Return the cookie of a new session."""
        session = Session(token_id, int(now + lifetime_s), secrets.token_urlsafe(12))
        content = urlsafe_b64encode(msgspec.json.encode(session)).rstrip(b"=").decode()
        return f"{content}.{self._sign('session', content)}"

    def open(self, cookie: str, now: float) -> Session:
        """Return the session of a cookie.

        Raises:
            Unauthorized: The cookie is forged, malformed or expired.
        """
        content, _, signature = cookie.partition(".")
        # Compared as bytes, in constant time: compare_digest refuses text that is not ASCII.
        is_genuine = len(cookie) <= _COOKIE_MAX and hmac.compare_digest(
            signature.encode(), self._sign("session", content).encode()
        )
        if not is_genuine:
            raise Unauthorized("this session is not valid: sign in again")
        # Only decoded after the signature was verified, so the content is our own.
        padded = content + "=" * (-len(content) % 4)
        session = msgspec.json.decode(urlsafe_b64decode(padded), type=Session)
        if session.expires <= now:
            raise Unauthorized("this session has expired: sign in again")
        return session

    def request_token(self, cookie: str) -> str:
        """Return the value that every form of a session must send back."""
        return self._sign("form", cookie)

    def is_request_token(self, token: str, cookie: str) -> bool:
        """Return whether a form was rendered for this session."""
        return hmac.compare_digest(token.encode(), self.request_token(cookie).encode())

    def _sign(self, purpose: str, text: str) -> str:
        # With the purpose, a request token never passes as the signature of a cookie.
        digest = hmac.new(self._key, f"{purpose}\0{text}".encode(), sha256).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


# -- the console


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the console.

    Attributes:
        sign_in_code: Opens a session once, without a token; for `seriatim console`.
        operate: Whether such a session may also operate.
        session_s: The lifetime of a session in seconds.
        projections: Declared projections whose states can be displayed event by event, besides
            the shipped ones.
    """

    sign_in_code: str | None = None
    operate: bool = False
    session_s: float = SESSION_S
    projections: tuple[Projection, ...] = ()


def new_sign_in_code() -> str:
    """Return a random code for a one-time sign-in link."""
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
        self._history = History()
        self._cache = PageCache()
        self._sampler: Sampler | None = None
        self._signer: SessionSigner

    def start(self, app: App) -> None:
        """Take the key that signs sessions from the service, and begin to record the history."""
        self._signer = SessionSigner(app.service.session_key)
        self._sampler = Sampler(app, self._history)
        self._sampler.start()

    async def stop(self) -> None:
        """Stop recording the history."""
        if self._sampler is not None:
            await self._sampler.stop()

    def has_path(self, path: str) -> bool:
        """Return whether a path belongs to the console."""
        return path in ("/", PREFIX) or path.startswith(PREFIX + "/")

    async def handle(self, app: App, request: HttpRequest) -> ConsoleResponse:
        """Respond to a request for a page; errors become pages too."""
        if request.path in ("/", PREFIX):
            return _secure(redirect_to(f"{PREFIX}/"))
        path = request.path.removeprefix(PREFIX)
        request.route = self._name_route(path)
        try:
            return _secure(await self._respond(app, request, path))
        except SeriatimError as error:
            return _secure(self._error_page(app, request, error))
        except StatusError as refusal:
            return _secure(self._error_page(app, request, refusal.error, refusal.status))
        except ClientDisconnected:
            raise  # nobody is left to receive a page
        except Exception as error:
            # The visitor receives only the type: a message may contain data of other tenants.
            logger.exception("a page failed with an unexpected error")
            msg = f"the console failed with an unexpected error ({type(error).__name__})"
            failure = BackendFailure(msg, details={"ambiguous": True})
            return _secure(self._error_page(app, request, failure))

    def _name_route(self, path: str) -> str:
        """Return the route name for metrics; all unknown paths share one, to bound their number."""
        known = path in ("/sign-in", "/sign-out") or any(
            path == page_path for _, page_path in self._routes
        )
        return PREFIX + path if known else f"{PREFIX}/other"

    async def _respond(self, app: App, request: HttpRequest, path: str) -> ConsoleResponse:
        if path.startswith("/static/"):
            return self._static_file(request, path)
        # Also before signing in: another site could sign a visitor in with a token of its own.
        _check_origin(request)
        if path == "/sign-in":
            return await self._sign_in(app, request)
        if path == "/sign-out" and request.method == "POST":
            return await self._sign_out(app, request)
        cookie, caller = await self._authenticate(app, request)
        if caller is None:
            return self._redirect_to_sign_in(app, request)
        request.caller = caller
        if request.connection is not None:
            request.connection.mark_authenticated()
        route = self._routes.get((request.route_method, path))
        if route is None:
            raise NotFound("there is no such page in the console")
        requested_tenant = parse_fields(request.query).get("tenant") or None
        request.tenant_id = caller.resolve_tenant(requested_tenant)
        form = {}
        if request.method == "POST":
            form = await self._read_form(app, request, cookie)
            if requested_tenant is None and form.get("tenant"):
                # The form was read before its tenant was known: move its bytes to that tenant.
                body_bytes = request.held_bytes
                app.service.release(request)
                request.tenant_id = caller.resolve_tenant(form["tenant"])
                app.service.hold(request, body_bytes)
        request.identified = True
        page = ConsolePage(
            app,
            request,
            self._renderer,
            form=form,
            request_token=self._signer.request_token(cookie),
            navigation=self._navigation,
            history=self._history,
            cache=self._cache,
            projections=(*BUILTIN_FOLDS, *self._settings.projections),
        )
        return await app.service.queue.run(request.tenant_id, partial(route.show, page))

    def _static_file(self, request: HttpRequest, path: str) -> HttpResponse:
        asset = self._renderer.asset(path)
        if asset is None or request.route_method != "GET":
            raise NotFound("there is no such file in the console")
        return asset

    def _redirect_to_sign_in(self, app: App, request: HttpRequest) -> HttpResponse:
        """Send a client without a session to the form, and from there to the requested page."""
        address = _format_address(request)
        if _is_cross_site_navigation(request):
            # Browsers send no SameSite=Strict cookie when a link on another site is followed, but
            # they send it when this page loads the same address again.
            body = self._renderer.render("continue.html", {"address": address})
            return HttpResponse(200, body, _HTML)
        # The name counts, not only the address: a page of another site whose host name resolves to
        # this machine must not receive a session.
        if app.service.tokens_optional and is_loopback(host_name(request.headers)):
            return self._open_session(request, ANONYMOUS, address)
        query = "" if address == f"{PREFIX}/" else "?" + urlencode({"next": address})
        return redirect_to(f"{PREFIX}/sign-in{query}")

    # -- sessions

    async def _authenticate(self, app: App, request: HttpRequest) -> tuple[str, Caller | None]:
        """Return the cookie of a request and its caller; without a valid session "" and None."""
        cookie = _read_cookie(request)
        if not cookie:
            return "", None
        try:
            session = self._signer.open(cookie, time.time())
            return cookie, await self._find_caller(app, request, session.token_id)
        except Unauthorized:
            return "", None

    async def _find_caller(self, app: App, request: HttpRequest, token_id: str) -> Caller:
        code = self._settings.sign_in_code
        if code is not None and token_id == make_local_id(code):
            rights: frozenset[Right] = frozenset({"read"})
            if self._settings.operate:
                # Pages append nothing: these two are for dry runs of appends.
                rights |= {"operate", "append", "act_as"}
            return Caller(subject="console", rights=rights)
        if token_id == ANONYMOUS:
            return await app.service.authenticate({b"host": request.headers.get(b"host", b"")})
        return await app.service.authenticate_session(token_id)

    async def _sign_in(self, app: App, request: HttpRequest) -> ConsoleResponse:
        params = parse_fields(request.query)
        if request.method == "GET" and "code" in params:  # HEAD, as sent for previews, uses no code
            return self._use_code(request, params["code"])
        if request.route_method == "GET":
            return self._sign_in_page(params.get("next", ""))
        if request.method != "POST":
            raise NotFound("there is no such page in the console")
        form = parse_fields(await _read_small_form(app, request))
        address = form.get("next", "")
        try:
            token = form.get("token", "").strip().encode()
            caller = await app.service.authenticate({b"authorization": b"Bearer " + token})
            caller.require("read")
        except Unauthorized:
            msg = "this token is unknown, revoked or expired"
            return self._sign_in_page(address, msg, HTTPStatus.FORBIDDEN)
        except Forbidden as error:
            return self._sign_in_page(address, error.message, HTTPStatus.FORBIDDEN)
        return self._open_session(request, caller.token_id, _restrict_address(address))

    async def _sign_out(self, app: App, request: HttpRequest) -> ConsoleResponse:
        """End a session.

        The token is not looked up: a visitor can sign out while the access store does not respond,
        and after the token has ended.
        """
        cookie = _read_cookie(request)
        try:
            self._signer.open(cookie, time.time())
        except Unauthorized:
            return self._redirect_to_sign_in(app, request)
        form = parse_fields(await _read_small_form(app, request))
        self._check_request_token(form, cookie)
        return _clear_cookies(redirect_to(f"{PREFIX}/sign-in"))

    def _use_code(self, request: HttpRequest, submitted: str) -> HttpResponse:
        """Open a session for a one-time link; a code is accepted once."""
        code, genuine = self._code, False
        if code is not None:
            # In constant time: a faster refusal would tell how much of a guess was right.
            genuine = hmac.compare_digest(submitted.encode(), code.encode())
        if code is None or not genuine:
            msg = "this sign-in link was used before, or belongs to another console"
            return self._sign_in_page("", msg, HTTPStatus.FORBIDDEN)
        self._code = None
        return self._open_session(request, make_local_id(code), f"{PREFIX}/")

    def _sign_in_page(self, address: str, error: str = "", status: int = 200) -> HttpResponse:
        values = {"error": error, "address": _restrict_address(address)}
        return HttpResponse(status, self._renderer.render("sign_in.html", values), _HTML)

    def _open_session(self, request: HttpRequest, token_id: str, address: str) -> HttpResponse:
        lifetime = self._settings.session_s
        cookie = self._signer.issue(token_id, time.time(), lifetime)
        return _set_cookie(request, redirect_to(address), cookie, int(lifetime))

    # -- forms

    async def _read_form(self, app: App, request: HttpRequest, cookie: str) -> dict[str, str]:
        """Read a form that this console rendered for this session.

        Raises:
            Forbidden: The form was not rendered for this session: a forged request.
        """
        service = app.service
        hold = partial(service.hold, request)
        body = await request.body(_FORM_BYTES, service.settings.body_timeout_s, hold)
        form = await service.run_sized(request.tenant_id, len(body), partial(parse_fields, body))
        self._check_request_token(form, cookie)
        return form

    def _check_request_token(self, form: dict[str, str], cookie: str) -> None:
        """Remove the request token from a form; raise `Forbidden` if it is not of this session."""
        if not self._signer.is_request_token(form.pop("request_token", ""), cookie):
            msg = "this form was not made by your session: go back, reload the page, and try again"
            raise Forbidden(msg)

    def _error_page(
        self, app: App, request: HttpRequest, error: SeriatimError, status: int | None = None
    ) -> HttpResponse:
        problem = app.service.problem(error, request.request_id)
        body = self._renderer.render("error.html", {"problem": problem})
        return HttpResponse(status or problem.status, body, _HTML)


async def _read_small_form(app: App, request: HttpRequest) -> bytes:
    """Read the body of a form before its sender is authenticated; it counts for no tenant."""
    return await request.body(
        _SMALL_FORM_BYTES, app.service.settings.body_timeout_s, lambda _: None
    )


def _secure(response: ConsoleResponse) -> ConsoleResponse:
    headers = (*response.headers, *_SECURITY_HEADERS)
    if not any(name == b"cache-control" for name, _ in headers):
        headers = (*headers, _NO_STORE)
    return msgspec.structs.replace(response, headers=headers)


def _check_origin(request: HttpRequest) -> None:
    """Refuse actions that a page of another site sends.

    Browsers name the origin of a request in headers. A request without them is not sent by a
    browser, so no visitor's cookie is misused.

    Raises:
        Forbidden: The request comes from another origin, or its origin is hidden.
    """
    if request.route_method == "GET":
        return
    origin = request.headers.get(b"origin")
    site = request.headers.get(b"sec-fetch-site", b"same-origin")
    foreign = origin is not None and origin.partition(b"://")[2] != request.headers.get(b"host")
    if foreign or site != b"same-origin":
        raise Forbidden("this request comes from another site")


def _is_cross_site_navigation(request: HttpRequest) -> bool:
    headers = request.headers
    fetch_metadata = headers.get(b"sec-fetch-site"), headers.get(b"sec-fetch-mode")
    return request.route_method == "GET" and fetch_metadata == (b"cross-site", b"navigate")


def _is_encrypted(request: HttpRequest) -> bool:
    """Return whether the browser uses TLS, possibly up to a proxy in front of the service."""
    return request.scheme == "https" or request.headers.get(b"origin", b"").startswith(b"https://")


def _read_cookie(request: HttpRequest) -> str:
    """Return the session cookie; other applications of the host may have set malformed ones."""
    text = request.headers.get(b"cookie", b"").decode("latin-1")
    pairs = [pair.strip().partition("=") for pair in text.split(";")]
    cookies = {name: value for name, _, value in reversed(pairs)}  # the first of a name counts
    if SECURE_COOKIE in cookies:
        return cookies[SECURE_COOKIE]
    # Under TLS only the name with the prefix counts: another host could have set the other one.
    return "" if request.scheme == "https" else cookies.get(COOKIE, "")


def _set_cookie(
    request: HttpRequest, response: HttpResponse, value: str, lifetime_s: int
) -> HttpResponse:
    encrypted = _is_encrypted(request)
    cookie = _format_cookie(SECURE_COOKIE if encrypted else COOKIE, value, lifetime_s)
    headers = (*response.headers, (b"set-cookie", cookie))
    return msgspec.structs.replace(response, headers=headers)


def _clear_cookies(response: HttpResponse) -> HttpResponse:
    # Both names: a visitor may have signed in with and without TLS.
    cleared = ((b"set-cookie", _format_cookie(name, "", 0)) for name in (COOKIE, SECURE_COOKIE))
    return msgspec.structs.replace(response, headers=(*response.headers, *cleared))


def _format_cookie(name: str, value: str, lifetime_s: int) -> bytes:
    # Strict, and HttpOnly: forms of other sites are sent without it, and scripts cannot read it.
    secure = "; Secure" if name == SECURE_COOKIE else ""
    attributes = f"Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"
    return f"{name}={value}; {attributes}".encode()


def _format_address(request: HttpRequest) -> str:
    """Return the address of a request, to load it after signing in."""
    address = quote(request.path)
    if request.query:
        address += "?" + quote(request.query, safe="%=&+/:,;~")
    return _restrict_address(address) if request.route_method == "GET" else f"{PREFIX}/"


def _restrict_address(address: str) -> str:
    """Return the address if it belongs to the console, else that of the overview.

    The address comes from a link, which must not send a visitor to another site after signing in.
    """
    is_own = len(address) <= _ADDRESS_CHARS and _OWN_ADDRESS.fullmatch(address) is not None
    return address if is_own else f"{PREFIX}/"

"""The frame of the console: signing in, sessions, forged requests, headers and bounds."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from seriatim.api.access_control import TOKEN_CACHE_S
from seriatim.api.http import HttpResponse
from seriatim.console.app import (
    COOKIE,
    SECURE_COOKIE,
    ConsoleSettings,
    SessionSigner,
    new_sign_in_code,
)
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.renderer import Renderer
from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.factory import access_url, sqlite_path
from tests.fixtures.console import ConsoleService, PageResponse, Visitor, run_console
from tests.service.http_calls import Caller

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
Run = Callable[..., ConsoleService]


async def _fail(_: ConsolePage) -> ConsoleResponse:
    message = "secret of the implementation"
    raise RuntimeError(message)


async def _stream(page: ConsolePage) -> ConsoleResponse:
    return await page.stream("/v1/tail", {"after": "0"})


async def _echo(page: ConsolePage) -> ConsoleResponse:
    text = f"{page.request.tenant_id} {len(page.form)} {sum(map(len, page.form.values()))}"
    return HttpResponse(200, text.encode(), b"text/plain")


EXTRA = (
    PageRoute(method="GET", path="/test/failure", show=_fail),
    PageRoute(method="GET", path="/test/stream", show=_stream),
    PageRoute(method="POST", path="/test/echo", show=_echo),
)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleService]:
    """A service with a console that the tests of this file share."""
    url = f"sqlite:///{tmp_path_factory.mktemp('console') / 'log.db'}"
    with run_console(url, routes=EXTRA) as service:
        service.token()  # with a token, none of the requests is anonymous
        yield service


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts separate consoles on one log."""
    with ExitStack() as stack:

        def start(settings: ConsoleSettings | None = None, **more: object) -> ConsoleService:
            url = f"sqlite:///{tmp_path / 'log.db'}"
            return stack.enter_context(run_console(url, settings, routes=EXTRA, **more))

        yield start


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def sign_in(console: ConsoleService, **token: object) -> Visitor:
    """Return a visitor that has signed in with a new token."""
    visitor = Visitor(console.port)
    assert visitor.sign_in(console.token(**token)).status == 303
    return visitor


def token_id_of(token: str) -> str:
    """Return the id of a token, which is no secret."""
    return token.split("_")[1]


# -- signing in


@pytest.mark.parametrize(
    "token",
    [
        {},
        {"rights": ["read"]},
        {"tenant_id": "acme", "rights": ["read"]},
        {"subject": None, "tenant_id": "acme", "rights": ["read"]},
        {"tenant_id": "acme", "rights": ["read"], "types": ["order.placed"]},
    ],
    ids=["all", "reader", "tenant", "of a tenant", "types"],
)
def test_each_kind_of_token_signs_in(console: ConsoleService, token: dict[str, Any]) -> None:
    """N2: a token with the right to read opens a session, and the session shows pages."""
    visitor = Visitor(console.port)
    response = visitor.sign_in(console.token(**token))

    assert (response.status, response.location) == (303, "/console/")
    assert visitor.get("/console/").status == 200


@pytest.mark.parametrize(
    "text", ["", "x", "srt_0011223344556677_" + "A" * 43, "ü" * 40, "a b", "\0", "Bearer x"]
)
def test_a_wrong_token_does_not_sign_in(console: ConsoleService, text: str) -> None:
    """N2: an invalid token opens no session, and the form names the reason."""
    visitor = Visitor(console.port)
    response = visitor.sign_in(text)

    assert (response.status, response.cookies) == (403, [])
    assert "unknown, revoked or expired" in response.text
    assert visitor.get("/console/").location == "/console/sign-in"


def test_a_token_without_the_right_to_read_does_not_sign_in(console: ConsoleService) -> None:
    """N2: the console reads, so a token that may only append opens no session."""
    response = Visitor(console.port).sign_in(console.token(rights=["append"]))

    assert (response.status, response.cookies) == (403, [])
    assert "lacks the right read" in response.text


def test_the_id_of_a_token_is_not_accepted_in_its_place(console: ConsoleService) -> None:
    """K2, N2: a session is looked up by the token's id, which the API must not accept."""
    token = console.token()
    visitor = Visitor(console.port)
    visitor.sign_in(token)
    assert visitor.get("/console/").status == 200  # the lookup of the id is cached now

    refused = Caller(console.port, token_id_of(token))("GET", "/v1/log")

    assert refused.status == 401
    assert Visitor(console.port).sign_in(token_id_of(token)).status == 403


def test_signing_in_returns_to_the_requested_page(console: ConsoleService) -> None:
    """N5: a shared link leads to its page after signing in."""
    visitor = Visitor(console.port)
    redirection = visitor.get("/console/", tenant="acme", after="7 ü")
    form = visitor("GET", redirection.location)
    response = visitor.post(
        "/console/sign-in", token=console.token(), next="/console/?tenant=acme&after=7+%C3%BC"
    )

    assert redirection.location.startswith("/console/sign-in?next=%2Fconsole%2F%3Ftenant%3Dacme")
    assert 'value="/console/?tenant=acme&amp;after=7+%C3%BC"' in form.text
    assert response.location == "/console/?tenant=acme&after=7+%C3%BC"


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/console/\\evil",
        "/console/\r\nset-cookie: a=b",
        "/console/ü",
        "javascript:alert(1)",
        "/v1/log",
        "/console/" + "a" * 3000,
    ],
)
def test_signing_in_leads_to_no_other_site(console: ConsoleService, address: str) -> None:
    """N3: the address after signing in is one of the console; any other is replaced."""
    visitor = Visitor(console.port)
    form = visitor.get("/console/sign-in", next=address)
    response = visitor.post("/console/sign-in", token=console.token(), next=address)

    assert 'name="next" value="/console/"' in form.text
    assert (response.status, response.location) == (303, "/console/")


def test_a_path_with_control_characters_is_not_repeated(run: Run) -> None:
    """N3: the address in a redirection is encoded; a path adds no header."""
    console = run(open_on_loopback=True)
    response = Visitor(console.port).get("/console/%0d%0aset-cookie:%20a=b/%C3%BC")

    assert response.location == "/console/%0D%0Aset-cookie%3A%20a%3Db/%C3%BC"
    assert len(response.cookies) == 1


def test_a_link_on_another_site_finds_the_session(console: ConsoleService) -> None:
    """N5: a link on another site receives a page that loads the address again with the cookie."""
    visitor = Visitor(console.port)
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    response = visitor("GET", '/console/?a=1&b="><script>', headers=headers)

    assert (response.status, response.cookies) == (200, [])
    assert 'content="0; url=/console/?a=1&amp;b=%22%3E%3Cscript%3E"' in response.text


# -- sessions


def test_the_cookie_is_strict_without_tls(console: ConsoleService) -> None:
    """N2: scripts cannot read the cookie, and other sites cannot send it."""
    [cookie] = Visitor(console.port).sign_in(console.token()).cookies
    value, *attributes = cookie.split("; ")

    assert value.startswith(f"{COOKIE}=")
    assert attributes == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]


def test_the_cookie_is_bound_to_the_host_under_tls(
    run: Run, certificate: tuple[Path, Path]
) -> None:
    """N2: under TLS the cookie is Secure and bound to the host, and only that one counts."""
    console = run(certificate=certificate)
    visitor = Visitor(console.port, certificate[0])
    [cookie] = visitor.sign_in(console.token()).cookies
    value, *attributes = cookie.split("; ")
    page = visitor.get("/console/")
    visitor.cookies = {COOKIE: visitor.cookies[SECURE_COOKIE]}

    assert value.startswith(f"{SECURE_COOKIE}=")
    assert attributes == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict", "Secure"]
    assert page.status == 200
    assert visitor.get("/console/").status == 303  # a cookie that another host could have set


def test_the_cookie_is_secure_behind_a_proxy_with_tls(console: ConsoleService) -> None:
    """N2: the cookie is Secure also if a proxy terminates TLS."""
    visitor = Visitor(console.port)
    host = {"host": "log.example", "origin": "https://log.example"}
    [cookie] = visitor.post("/console/sign-in", host, token=console.token()).cookies

    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert cookie.endswith("; Secure")
    assert visitor.get("/console/").status == 200


def test_a_session_expires(run: Run) -> None:
    """N2: a session ends after its lifetime, also if the browser keeps the cookie."""
    console = run(ConsoleSettings(session_s=1.2))
    visitor = sign_in(console)
    before = visitor.get("/console/").status
    time.sleep(1.3)

    assert before == 200
    assert visitor.get("/console/").location == "/console/sign-in"


def test_a_session_ends_with_its_token(console: ConsoleService) -> None:
    """N2: revoking the token ends its sessions within the time that lookups are cached."""
    token = console.token()
    visitor = Visitor(console.port)
    visitor.sign_in(token)
    assert visitor.get("/console/").status == 200

    console.service.access.revoke(token_id_of(token))
    deadline = time.monotonic() + TOKEN_CACHE_S + 0.5
    while time.monotonic() < deadline and visitor.get("/console/").status == 200:
        time.sleep(0.05)

    assert visitor.get("/console/").location == "/console/sign-in"


def test_a_session_ends_when_its_token_expires(console: ConsoleService) -> None:
    """N2: a session does not outlive a token with an expiry."""
    visitor = sign_in(console, expires_in_s=1.0)
    before = visitor.get("/console/").status
    time.sleep(1.1)

    assert (before, visitor.get("/console/").status) == (200, 303)


def test_signing_out_removes_the_cookies(console: ConsoleService) -> None:
    """N2: signing out removes both cookies; a link or an image cannot sign anyone out."""
    visitor = sign_in(console)
    page = visitor.get("/console/")
    by_link = visitor.get("/console/sign-out")
    afterwards = visitor.get("/console/")
    response = visitor.post("/console/sign-out", request_token=page.request_token)

    assert (by_link.status, by_link.cookies, afterwards.status) == (404, [], 200)
    assert (response.status, response.location) == (303, "/console/sign-in")
    assert [cookie.partition(";")[0] for cookie in response.cookies] == [
        f"{COOKIE}=",
        f"{SECURE_COOKIE}=",
    ]
    assert visitor.get("/console/").location == "/console/sign-in"


def test_signing_out_needs_no_access_store(tmp_path: Path) -> None:
    """N2: a visitor can sign out while the access store does not respond."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with run_console(url) as console:
        visitor = sign_in(console)
        page = visitor.get("/console/")
        stored = Path(sqlite_path(access_url(url)))
        stored.rename(stored.with_suffix(".moved"))
        time.sleep(TOKEN_CACHE_S + 0.1)
        unavailable = visitor.get("/console/")
        forged = visitor.post("/console/sign-out", request_token=page.request_token + "x")
        response = visitor.post("/console/sign-out", request_token=page.request_token)
        stored.with_suffix(".moved").rename(stored)

    assert (unavailable.status, forged.status, forged.cookies) == (503, 403, [])
    assert (response.status, response.location) == (303, "/console/sign-in")
    assert [cookie.partition(";")[0] for cookie in response.cookies] == [
        f"{COOKIE}=",
        f"{SECURE_COOKIE}=",
    ]


def test_a_revoked_token_signs_out(console: ConsoleService) -> None:
    """N2: signing out clears the cookies of a session whose token has ended."""
    visitor = sign_in(console, expires_in_s=1.0)
    page = visitor.get("/console/")
    time.sleep(1.1)
    response = visitor.post("/console/sign-out", request_token=page.request_token)

    assert (response.status, len(response.cookies)) == (303, 2)


@pytest.mark.parametrize(
    "cookie", ["", ".", "a.b", "=", "é", "x" * 5000, '"; {"a":1}', "a" * 60_000, ";" * 5000]
)
def test_a_forged_cookie_opens_nothing(console: ConsoleService, cookie: str) -> None:
    """N2: a cookie that this service did not sign is no session."""
    visitor = Visitor(console.port)
    response = visitor("GET", "/console/", headers={"cookie": f"{COOKIE}={cookie}"})

    assert (response.status, response.location) == (303, "/console/sign-in")


def test_a_cookie_signed_by_another_service_opens_nothing(console: ConsoleService) -> None:
    """N2: a cookie is accepted only if it was signed with the key of the access store."""
    token = console.token()
    visitor = Visitor(console.port)
    visitor.cookies[COOKIE] = SessionSigner(b"other").issue(token_id_of(token), time.time())
    assert visitor.get("/console/").status == 303
    visitor.cookies[COOKIE] = SessionSigner(console.service.session_key).issue(
        token_id_of(token), time.time()
    )
    assert visitor.get("/console/").status == 200


@pytest.mark.parametrize("token_id", ["anonymous", "local", "local:", "", "0011223344556677"])
def test_a_session_of_no_token_opens_nothing(console: ConsoleService, token_id: str) -> None:
    """N2: a session without a token is refused while the service requires tokens."""
    visitor = Visitor(console.port)
    issued = SessionSigner(console.service.session_key).issue(token_id, time.time())
    visitor.cookies[COOKIE] = issued

    assert visitor.get("/console/").status == 303


def test_cookies_of_other_applications_do_not_matter(console: ConsoleService) -> None:
    """N2: a session is valid beside malformed cookies of other applications on the host."""
    visitor = sign_in(console)
    visitor.cookies = {"a": '{"x": [1, 2]}', "b c": "é", **visitor.cookies, "z": '"'}

    assert visitor.get("/console/").status == 200


# -- forged requests


@pytest.mark.parametrize("kind", ["missing", "empty", "foreign", "stale", "changed"])
def test_a_form_of_another_session_is_refused(console: ConsoleService, kind: str) -> None:
    """N2: an action requires the request token of its session."""
    visitor, other = sign_in(console), sign_in(console)
    own = visitor.get("/console/").request_token
    if kind == "stale":
        visitor.sign_in(console.token())
    tokens = {
        "missing": {},
        "empty": {"request_token": ""},
        "foreign": {"request_token": other.get("/console/").request_token},
        "stale": {"request_token": own},
        "changed": {"request_token": own[:-1] + ("A" if own[-1] != "A" else "B")},
    }
    response = visitor.post("/console/sign-out", **tokens[kind])

    assert (response.status, response.cookies) == (403, [])
    assert "not made by your session" in response.text
    assert visitor.get("/console/").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
def test_requests_of_another_origin_are_refused(
    console: ConsoleService, headers: dict[str, str]
) -> None:
    """N2: another site's page can neither act nor sign its visitors in with its own token."""
    visitor = sign_in(console)
    token = visitor.get("/console/").request_token
    acted = visitor.post("/console/sign-out", headers, request_token=token)
    signed_in = Visitor(console.port).post("/console/sign-in", headers, token=console.token())

    assert (acted.status, acted.cookies) == (403, [])
    assert (signed_in.status, signed_in.cookies) == (403, [])


def test_a_form_of_the_same_origin_is_accepted(console: ConsoleService) -> None:
    """N2: a form with the headers that browsers send for the same origin is accepted."""
    visitor = Visitor(console.port)
    own = {"origin": f"http://127.0.0.1:{console.port}", "sec-fetch-site": "same-origin"}
    assert visitor.post("/console/sign-in", own, token=console.token()).status == 303

    token = visitor.get("/console/").request_token
    assert visitor.post("/console/test/echo", own, request_token=token).status == 200


# -- one-time links and anonymous access


def test_a_code_opens_one_session(run: Run) -> None:
    """N2: a one-time link opens one session, also after a preview has requested it with HEAD."""
    code = new_sign_in_code()
    console = run(ConsoleSettings(sign_in_code=code))
    console.token()
    visitor, late = Visitor(console.port), Visitor(console.port)
    wrong = late.get("/console/sign-in", code=code + "x")
    previewed = late("HEAD", f"/console/sign-in?code={code}")
    first = visitor.get("/console/sign-in", code=code)
    second = late.get("/console/sign-in", code=code)

    assert (wrong.status, wrong.cookies, previewed.cookies) == (403, [], [])
    assert (first.status, first.location) == (303, "/console/")
    assert (second.status, second.cookies) == (403, [])
    assert visitor.get("/console/").status == 200


def test_a_code_session_belongs_to_its_process(run: Run) -> None:
    """N2: a session of a read-only console is not valid in a later console with more rights."""
    code = new_sign_in_code()
    first = run(ConsoleSettings(sign_in_code=code))
    second = run(ConsoleSettings(sign_in_code=new_sign_in_code(), operate=True))
    second.token()
    visitor, other = Visitor(first.port), Visitor(second.port)
    visitor.get("/console/sign-in", code=code)
    other.cookies = visitor.cookies

    assert visitor.get("/console/").status == 200
    assert other.get("/console/").status == 303


def test_a_loopback_name_opens_an_anonymous_session(run: Run) -> None:
    """N2, K2: while no token is required, a visitor of a loopback name gets a session."""
    console = run(open_on_loopback=True)
    visitor = Visitor(console.port)
    redirection = visitor.get("/console/", tenant="acme")
    page = visitor.get("/console/", tenant="acme")

    assert (redirection.status, redirection.location) == (303, "/console/?tenant=acme")
    assert page.status == 200
    assert "Sign out" not in page.text


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "[::1]", "[::1]:8420", "127.0.0.1"])
def test_each_loopback_name_opens_an_anonymous_session(run: Run, host: str) -> None:
    """N2: loopback names are recognized with and without a port."""
    console = run(open_on_loopback=True)
    response = Visitor(console.port)("GET", "/console/", headers={"host": host})

    assert (response.location, len(response.cookies)) == ("/console/", 1)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", ""]
)
def test_anonymous_access_needs_a_loopback_name(run: Run, host: str) -> None:
    """N2, K2: a page whose host name resolves to this machine gets no session, nor uses one."""
    console = run(open_on_loopback=True)
    visitor = Visitor(console.port)
    refused = visitor("GET", "/console/", headers={"host": host})
    visitor.get("/console/")
    used = visitor("GET", "/console/", headers={"host": host})

    assert (refused.status, refused.cookies) == (303, [])
    assert used.status == 403


def test_anonymous_sessions_end_with_the_first_token(run: Run) -> None:
    """N2, K2: sessions without a token end when the first token is created."""
    console = run(open_on_loopback=True)
    visitor = Visitor(console.port)
    visitor.get("/console/")
    assert visitor.get("/console/").status == 200
    console.token()
    deadline = time.monotonic() + 2 * TOKEN_CACHE_S
    while time.monotonic() < deadline and visitor.get("/console/").status == 200:
        time.sleep(0.05)

    assert visitor.get("/console/").location == "/console/sign-in"


# -- tenants


def test_a_tenants_token_sees_that_tenant_alone(console: ConsoleService) -> None:
    """N2: another tenant is refused in the address and in a form."""
    visitor = sign_in(console, tenant_id="a", rights=["read"])
    own = visitor.get("/console/")
    other = visitor.get("/console/", tenant="b")
    token = own.request_token
    in_form = visitor.post("/console/test/echo", request_token=token, tenant="b")
    in_query = visitor.post("/console/test/echo?tenant=b", request_token=token, tenant="a")
    accepted = visitor.post("/console/test/echo", request_token=token, tenant="a")

    assert (own.status, visitor.get("/console/", tenant="a").status) == (200, 200)
    assert (other.status, in_form.status, in_query.status) == (403, 403, 403)
    assert (accepted.status, accepted.text) == (200, "a 1 1")


def test_a_token_for_all_tenants_chooses_one(console: ConsoleService) -> None:
    """N2: the tenant is in the address; the infrastructure's needs the right to operate."""
    operator, reader = sign_in(console), sign_in(console, rights=["read"])

    assert 'value="acme"' in operator.get("/console/", tenant="acme").text
    assert operator.get("/console/", tenant="*").status == 400
    assert operator.get("/console/", tenant=INFRASTRUCTURE_TENANT).status == 200
    assert reader.get("/console/", tenant="acme").status == 200
    assert reader.get("/console/", tenant=INFRASTRUCTURE_TENANT).status == 403


# -- headers


def responses(console: ConsoleService) -> dict[str, PageResponse]:
    """Return a response of each kind."""
    visitor, stranger = sign_in(console), Visitor(console.port)
    page = visitor.get("/console/")
    asset = re.search(r'href="([^"]+console\.css)"', page.text)
    assert asset is not None
    return {
        "page": page,
        "head": visitor("HEAD", "/console/"),
        "root": stranger.get("/"),
        "without slash": stranger.get("/console"),
        "sign-in": stranger.get("/console/sign-in"),
        "refused sign-in": stranger.sign_in("x"),
        "redirect": stranger.get("/console/"),
        "not found": visitor.get("/console/nothing"),
        "not found in static": stranger.get("/console/static/0/console.css"),
        "forbidden": visitor.post("/console/sign-out"),
        "malformed": visitor.get("/console/?tenant=%ff"),
        "failure": visitor.get("/console/test/failure"),
        "static": stranger("GET", asset[1]),
        "stream": visitor.get("/console/test/stream"),
        "other method": visitor("DELETE", "/console/"),
        "odd body": visitor("POST", "/console/sign-in", b"\xff=\xff"),
    }


def test_every_response_has_the_security_headers(console: ConsoleService) -> None:
    """N3: pages, errors, redirects, static files and streams have the security headers."""
    for kind, response in responses(console).items():
        headers = {name: response.headers.get(name) for name in HEADERS}
        assert headers == HEADERS, kind
        cached = "public, max-age=31536000, immutable" if kind == "static" else "no-store"
        if kind != "stream":
            assert response.headers["cache-control"] == cached, kind


def test_each_kind_of_response_has_its_status(console: ConsoleService) -> None:
    """N3: errors are pages with the status of the API; unexpected ones reveal nothing."""
    by_kind = responses(console)
    failed = by_kind["failure"]

    assert {kind: response.status for kind, response in by_kind.items()} == {
        "page": 200,
        "head": 200,
        "root": 303,
        "without slash": 303,
        "sign-in": 200,
        "refused sign-in": 403,
        "redirect": 303,
        "not found": 404,
        "not found in static": 404,
        "forbidden": 403,
        "malformed": 400,
        "failure": 503,
        "static": 200,
        "stream": 200,
        "other method": 404,
        "odd body": 400,
    }
    assert "RuntimeError" in failed.text
    assert "secret of the implementation" not in failed.text
    assert by_kind["head"].text == ""


def test_static_files_are_kept_by_digest(console: ConsoleService) -> None:
    """N1, N3: an address of a static file names its content, so it never changes."""
    stranger = Visitor(console.port)
    for name in ("console.css", "console.js", "icon.svg"):
        path = Renderer().asset_path(name)
        response = stranger("GET", path)
        assert (response.status, response.headers["cache-control"][-9:]) == (200, "immutable")
        assert stranger("GET", path.replace("/static/", "/static/0")).status == 404
        assert stranger("POST", path, b"").status == 404
    for path in ("../app.py", "%2e%2e/app.py", "x/../../app.py", ""):
        assert stranger("GET", f"/console/static/{path}").status == 404


def test_the_root_leads_to_the_console(console: ConsoleService) -> None:
    """N1: a browser at the root or without the slash finds the console."""
    stranger = Visitor(console.port)

    assert [stranger.get(path).location for path in ("/", "/console")] == ["/console/"] * 2


def test_the_console_hides_no_route_of_the_api(console: ConsoleService) -> None:
    """N1: routes, public paths and unknown paths of the API behave as without a console."""
    caller, stranger = Caller(console.port, console.token()), Caller(console.port)

    assert caller("GET", "/v1/log").status == 200
    assert caller("GET", "/v1/openapi.json").status == 200
    assert stranger("GET", "/health").json == {"status": "alive"}
    assert stranger("GET", "/ready").status == 200
    assert (stranger("GET", "/v1/log").code, stranger("GET", "/consoles").code) == (
        "unauthorized",
        "unauthorized",
    )
    assert caller("GET", "/consoles").code == "not_found"


def test_a_session_is_no_token_for_the_api(console: ConsoleService) -> None:
    """N2: the API does not read cookies, so no page can call it with a visitor's session."""
    visitor = sign_in(console)

    assert visitor("GET", "/v1/log").status == 401


def test_unknown_paths_add_no_metrics(console: ConsoleService) -> None:
    """N1: requests for unknown paths add no labels to the metrics."""
    stranger = Visitor(console.port)
    for number in range(20):
        stranger.get(f"/console/strange-{number}")
        stranger.get(f"/console/static/{number}/strange-{number}")
    text = Caller(console.port, console.token())("GET", "/metrics").body.decode()

    assert "strange-" not in text
    assert 'route="/console/other"' in text


# -- bounds


def test_a_form_has_a_bound(console: ConsoleService) -> None:
    """N1: a form has at most 2 MiB and 200 fields."""
    visitor = sign_in(console)
    token = visitor.get("/console/").request_token
    large = visitor.post("/console/test/echo", request_token=token, text="x" * 2_000_000)
    beyond = visitor.post("/console/test/echo", request_token=token, text="x" * 2_200_000)
    fields = {f"f{number}": "1" for number in range(199)}
    many = visitor.post("/console/test/echo", request_token=token, **fields)
    too_many = visitor.post("/console/test/echo", request_token=token, more="1", **fields)

    assert (large.status, large.text) == (200, "default 1 2000000")
    assert (many.status, many.text) == (200, "default 199 199")
    assert (beyond.status, too_many.status) == (413, 400)


def test_a_form_counts_in_the_memory_of_its_tenant(run: Run) -> None:
    """N1: the bytes of a form count in the memory budget of its tenant."""
    console = run(tenant_memory_bytes=1_000_000)
    visitor = sign_in(console)
    token = visitor.get("/console/").request_token
    small = visitor.post("/console/test/echo", request_token=token, tenant="b", text="x" * 10_000)
    refused = visitor.post("/console/test/echo", request_token=token, text="x" * 1_500_000)

    assert (small.status, refused.status) == (200, 429)
    deadline = time.monotonic() + 10  # released once the response is sent
    while console.service.memory.used("default") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [console.service.memory.used(tenant) for tenant in ("default", "b")] == [0, 0]


def test_a_client_without_a_session_sends_little(console: ConsoleService) -> None:
    """N1: the sign-in form accepts a few KiB; nothing larger is read without a session."""
    stranger = Visitor(console.port)
    body = urlencode({"token": "x" * 20_000}).encode()

    assert stranger("POST", "/console/sign-in", body).status == 413
    assert stranger("POST", "/console/test/echo", b"a=" + b"x" * 20_000).status == 303


def test_a_query_has_a_bound(console: ConsoleService) -> None:
    """N1: long addresses and many parameters are refused."""
    visitor = sign_in(console)
    many = "&".join(f"p{number}=1" for number in range(300))

    assert visitor("GET", f"/console/?{many}").status == 400
    assert visitor("GET", f"/console/sign-in?{many}").status == 400
    assert visitor("GET", "/console/?a=" + "x" * 30_000).status == 200
    assert visitor("GET", "/console/?a=" + "x" * 70_000).status == 414

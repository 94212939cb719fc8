"""Every page and action of the console with every kind of token, and whose data it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Literal

import msgspec
import pytest

from seriatim.access.rights import RIGHTS
from seriatim.api.access_control import TOKEN_CACHE_S
from seriatim.console.page import PageRoute
from seriatim.console.routes import ROUTES
from tests.fixtures.console import ConsoleService, PageResponse, Visitor, run_console
from tests.fixtures.postgres_server import PostgresServer
from tests.service.tenant_data import NOBODYS, OURS, SECRET, THEIRS, fill

Needs = Literal["read", "append", "operate", "whole log"]
EXPLAINING = ("/handlers", "/topics", "/access", "/journal")
HIDDEN_TYPES = (f"{OURS}.dead", f"{OURS}.more")


class PageRequest(msgspec.Struct, frozen=True):
    """What a page is asked with the data of a tenant, and the right that it needs.

    `{whose}` in a value is the tenant. A page for a whole log is for operators of all tenants.
    """

    fields: dict[str, str] = {}
    needs: Needs = "read"


_HANDLER = {"name": "mailer", "reason": "a test"}
_PROJECTION = {"name": "seats", "reason": "a test"}
_EXPLAINED = '{"events": [{"event_type": "{whose}.one", "event_id": "{whose}-one"}]}'
REQUESTS: dict[str, PageRequest] = {
    "GET /": PageRequest(),
    "GET /events": PageRequest({"types": "{whose}.one", "tag": "tag:{whose}"}),
    "GET /events/live": PageRequest({"types": "{whose}.one"}),
    "GET /event": PageRequest({"id": "{whose}-one"}),
    "GET /stream": PageRequest(
        {"type": "order", "id": "{whose}-stream", "projection": "aggregate_states"}
    ),
    "GET /query": PageRequest({"run": "1", "streams1": "order/{whose}-stream"}),
    "GET /why": PageRequest({"idempotency_key": "{whose}-key-one"}),
    "POST /why": PageRequest({"request": _EXPLAINED}, "append"),
    "GET /traces": PageRequest({"text": "{whose}"}),
    "GET /trace": PageRequest({"id": "{whose}-trace"}),
    "GET /projections": PageRequest(),
    "GET /projection": PageRequest({"name": "seats"}),
    "GET /projection/retry-all": PageRequest({"name": "seats"}, "operate"),
    "GET /projection/accept": PageRequest({"name": "seats"}, "whole log"),
    "GET /job": PageRequest({"id": "{whose}-job"}, "whole log"),
    "POST /projection/job": PageRequest({**_PROJECTION, "kind": "verify"}, "whole log"),
    "POST /projection/pause": PageRequest(_PROJECTION, "operate"),
    "POST /projection/resume": PageRequest(_PROJECTION, "operate"),
    "POST /projection/retry": PageRequest({**_PROJECTION, "position": "1"}, "operate"),
    "POST /projection/skip": PageRequest({**_PROJECTION, "position": "1"}, "operate"),
    "POST /projection/retry-all": PageRequest({**_PROJECTION, "expected_count": "9"}, "operate"),
    "GET /projection/steps": PageRequest(
        {"name": "aggregate_states", "key": "order:{whose}-stream"}
    ),
    "GET /handlers": PageRequest({}, "operate"),
    "GET /handler": PageRequest({"name": "mailer", "event_id": "{whose}-dead"}, "operate"),
    "GET /handler/entry": PageRequest({"name": "mailer", "event_id": "{whose}-dead"}, "operate"),
    "GET /handler/confirm": PageRequest(
        {"name": "mailer", "action": "skip", "event_id": "{whose}-dead"}, "operate"
    ),
    "POST /handler/retry": PageRequest({**_HANDLER, "event_id": "{whose}-dead"}, "operate"),
    "POST /handler/skip": PageRequest({**_HANDLER, "event_id": "{whose}-none"}, "operate"),
    "POST /handler/all": PageRequest(
        {**_HANDLER, "action": "skip", "event_type": "{whose}.dead", "expected_count": "9"},
        "operate",
    ),
    "GET /handler/prune": PageRequest(
        {"name": "mailer", "before": "2001-01-01T00:00:00Z"}, "whole log"
    ),
    "POST /handler/prune": PageRequest(
        {**_HANDLER, "before": "2001-01-01T00:00:00Z", "expected_count": "9"}, "whole log"
    ),
    "GET /handler/reset": PageRequest({"name": "mailer"}, "whole log"),
    "POST /handler/reset": PageRequest({**_HANDLER, "expected_count": "9"}, "whole log"),
    "POST /handler/pause": PageRequest(_HANDLER, "whole log"),
    "POST /handler/resume": PageRequest(_HANDLER, "whole log"),
    "GET /topics": PageRequest({}, "whole log"),
    "GET /access": PageRequest({}, "whole log"),
    "GET /access/revoke": PageRequest({"token_id": "0" * 16}, "whole log"),
    "POST /access/create": PageRequest(
        {"token_tenant": "{whose}", "right_read": "yes", "reason": "a test"}, "whole log"
    ),
    "POST /access/revoke": PageRequest({"token_id": "0" * 16, "reason": "a test"}, "whole log"),
    "POST /access/quota": PageRequest(
        {"quota_tenant": "{whose}-quota", "events_per_s": "9", "reason": "a test"}, "whole log"
    ),
    "POST /access/quota/remove": PageRequest(
        {"quota_tenant": "{whose}-quota", "reason": "a test"}, "whole log"
    ),
    "GET /journal": PageRequest({}, "operate"),
}


def name_of(route: PageRoute) -> str:
    """Return the method and path of a route."""
    return f"{route.method} {route.path}"


every_route = pytest.mark.parametrize("route", ROUTES, ids=name_of)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleService]:
    """A console on each backend, with data of two tenants."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('pages') / 'log.db'}"
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            template = request.getfixturevalue("postgres_template")
            url = server.create_database("page_matrix", template)
            stack.callback(server.drop_database, "page_matrix")
        service = stack.enter_context(run_console(url))
        fill(service, url)
        yield service


@pytest.fixture(scope="module")
def ended_visitors(console: ConsoleService) -> list[Visitor]:
    """Visitors who never had a session, and whose tokens have expired or were revoked."""
    expired = sign_in(console, tenant_id=OURS, expires_in_s=0.05)
    revoked = Visitor(console.port)
    text, token = console.service.access.create(subject="x", tenant_id=OURS, rights=RIGHTS)
    assert revoked.sign_in(text).status == 303
    console.service.access.revoke(token.token_id)
    time.sleep(TOKEN_CACHE_S + 0.1)
    return [Visitor(console.port), expired, revoked]


def sign_in(console: ConsoleService, **token: Any) -> Visitor:
    """Return a visitor with a new token."""
    visitor = Visitor(console.port)
    assert visitor.sign_in(console.token(**token)).status == 303
    return visitor


def ask(visitor: Visitor, route: PageRoute, whose: str, **more: str) -> PageResponse:
    """Load a page, or submit a form with the request token of the session."""
    wanted = REQUESTS[name_of(route)].fields
    fields = {name: value.replace("{whose}", whose) for name, value in wanted.items()} | more
    path = f"/console{route.path}"
    if route.method == "GET":
        return visitor.get(path, **fields)
    token = visitor.get("/console/events", **more).request_token
    return visitor.post(path, **fields, request_token=token)


def needs_of(route: PageRoute) -> Needs:
    """Return the right that a page needs."""
    return REQUESTS[name_of(route)].needs


def assert_nothing_of_theirs(response: PageResponse) -> None:
    """Check that a response shows no data of the other tenant."""
    assert SECRET not in response.text
    assert SECRET not in str(response.headers)


def assert_only_reads(route: PageRoute, response: PageResponse) -> None:
    """Check the response to a token that may only read.

    A page of the navigation may say which token it needs. No page shows a form of an action.
    """
    if needs_of(route) == "read":
        assert response.status in (200, 404)
    elif route.method == "POST":
        assert response.status == 403
    else:
        assert response.status in (403, 404) or route.path in EXPLAINING
    actions = re.findall(r'<form method="post" action="([^"]+)"', response.text)
    assert set(actions) <= {"/console/sign-out", "/console/why"}


def test_the_matrix_contains_every_page() -> None:
    """N2, K2: every page and action of the console is part of this matrix."""
    assert sorted(map(name_of, ROUTES)) == sorted(REQUESTS)


@every_route
def test_a_tenants_operator_sees_that_tenant_alone(
    console: ConsoleService, route: PageRoute
) -> None:
    """N2, K2: an operator of a tenant may use all pages but those of the whole log."""
    operator = sign_in(console, tenant_id=OURS)
    response = ask(operator, route, OURS)

    if needs_of(route) == "whole log":
        assert_only_reads(route, response)
    else:
        assert response.status in (200, 303) or (route.method, response.status) in EXPECTED
    assert_nothing_of_theirs(response)


# Actions on things that our data does not have, or with a count that is not true.
EXPECTED = {("POST", 404), ("POST", 409), ("GET", 404)}


@every_route
def test_a_reader_may_only_read(console: ConsoleService, route: PageRoute) -> None:
    """N2, K4: a token that may only read is refused for every page and action of an operator."""
    reader = sign_in(console, subject=None, tenant_id=OURS, rights=["read"])
    response = ask(reader, route, OURS)

    assert_only_reads(route, response)
    assert_nothing_of_theirs(response)


@every_route
def test_an_operator_of_all_tenants_names_one(console: ConsoleService, route: PageRoute) -> None:
    """N2: a token for all tenants may use every page, with the data of the tenant it names."""
    operator = sign_in(console)
    response = ask(operator, route, OURS, tenant=OURS)

    assert response.status in (200, 303) or (route.method, response.status) in EXPECTED
    if route.path not in ("/access", "/journal", "/handlers"):  # these cover all tenants
        assert_nothing_of_theirs(response)


@every_route
def test_a_reader_of_all_tenants_may_only_read(console: ConsoleService, route: PageRoute) -> None:
    """N2, K4: reading all tenants includes no page or action of an operator."""
    reader = sign_in(console, rights=["read"])
    response = ask(reader, route, OURS, tenant=OURS)

    assert_only_reads(route, response)
    assert_nothing_of_theirs(response)


@every_route
def test_a_token_for_one_type_sees_no_other(console: ConsoleService, route: PageRoute) -> None:
    """N2, K4: a token for one type sees events of that type alone, on every page."""
    rights = ["append", "read", "act_as"]
    scoped = sign_in(console, tenant_id=OURS, rights=rights, types=[f"{OURS}.one"])
    response = ask(scoped, route, OURS)

    if needs_of(route) == "append":
        assert response.status == 200
    elif response.status != 403:  # pages that need all types are refused
        assert_only_reads(route, response)
    assert_nothing_of_theirs(response)
    for hidden in HIDDEN_TYPES:
        assert hidden not in response.text


@every_route
def test_foreign_and_absent_data_look_the_same(console: ConsoleService, route: PageRoute) -> None:
    """K2: a page looks the same for data of another tenant and for data that does not exist."""
    operator = sign_in(console, tenant_id=OURS)
    foreign, absent = (ask(operator, route, whose) for whose in (THEIRS, NOBODYS))

    assert foreign.status == absent.status
    assert_nothing_of_theirs(foreign)
    assert _mask(foreign.text) == _mask(absent.text)


def _mask(text: str) -> str:
    """Return a page without the names of tenants, request ids and times."""
    text = re.sub(r"[0-9a-f]{22,}|\d+(?:\.\d+)? (?:ms|s|min)\b", "…", text)
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    text = text.replace(THEIRS, "…").replace(NOBODYS, "…")  # "none" is a word of pages, too
    return re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "…", text)


@every_route
def test_another_tenant_cannot_be_named(console: ConsoleService, route: PageRoute) -> None:
    """K2: naming another tenant is refused, whether that tenant exists or not."""
    visitor = sign_in(console, tenant_id=OURS)
    token = visitor.get("/console/").request_token
    responses = []
    for whose in (THEIRS, NOBODYS):
        wanted = REQUESTS[name_of(route)].fields
        path = f"/console{route.path}"
        fields = {name: value.replace("{whose}", OURS) for name, value in wanted.items()}
        fields["tenant"] = whose
        if route.method == "GET":
            responses.append(visitor.get(path, **fields))
        else:
            responses.append(visitor.post(path, **fields, request_token=token))

    assert {response.status for response in responses} == {403}
    texts = [_mask(response.text) for response in responses]
    assert texts[0] == texts[1]


@every_route
def test_no_page_without_a_session(ended_visitors: list[Visitor], route: PageRoute) -> None:
    """N2, K4: without a session, or with one whose token has ended, each page leads to sign-in."""
    for visitor in ended_visitors:
        wanted = REQUESTS[name_of(route)].fields
        path = f"/console{route.path}"
        response = (
            visitor.get(path, **wanted)
            if route.method == "GET"
            else visitor.post(path, **wanted, request_token="x")
        )
        assert response.status == 303
        assert response.location.startswith("/console/sign-in")

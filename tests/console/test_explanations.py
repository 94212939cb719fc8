"""The page Why: dry runs of appends, and receipts by key or command."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

import seriatim
from seriatim import NewEvent
from tests.console.console_service import ConsoleService, VisitedPage, Visitor, run_console
from tests.fixtures.postgres_server import PostgresServer
from tests.service.http_calls import Caller

_numbers = itertools.count(1)
HOSTILE = "<script>alert(1)</script>\u202e\"'"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleService]:
    """A console on a log with one order of two tenants."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('why')}/log.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"console_why_{next(_numbers)}"
        url = server.create_database(name, request.getfixturevalue("postgres_template"))
    with seriatim.open(url) as log:
        placed = NewEvent(
            "order.placed",
            {"total": 9007199254740993},
            stream=("order", "7"),
            actor_type="service_principal",
            actor_id="shop",
        )
        log.append([placed], idempotency_key="order-7")
    with run_console(url) as service:
        yield service
    if request.param == "postgres":
        server.drop_database(name)


def explain(visitor: Visitor, body: Any, **fields: str) -> VisitedPage:
    """Submit the form with a request, as JSON unless it is a text."""
    text = body if isinstance(body, str) else json.dumps(body)
    return visitor.submit("/why", visitor.get("/why"), request=text, **fields)


def event(event_type: str = "order.paid", **fields: object) -> dict[str, Any]:
    """Make an event of the order's stream."""
    return {"event_type": event_type, "payload": {"total": 1}, "stream": ["order", "7"]} | fields


def steps_of(page: VisitedPage) -> dict[str, str]:
    """Return the result of each check."""
    matches = re.findall(
        r'<tr>\s*<td>([a-z]+(?: \d+)?)</td>.*?class="mark [a-z]*">([a-z]+)<', page.html, re.DOTALL
    )
    return dict(matches)


def test_an_acceptable_append_is_explained_and_not_stored(console: ConsoleService) -> None:
    """N1: the page names the position that the append would have, and stores nothing."""
    before = console.service.log.head()

    page = explain(console.sign_in(), {"events": [event()]})

    assert page.status == 200
    assert "The append would be accepted" in page.text
    assert f"at position {before + 1}" in page.text
    assert set(steps_of(page).values()) == {"passed"}
    assert console.service.log.head() == before


def test_a_refused_sequence_names_both_numbers(console: ConsoleService) -> None:
    """N1: a refusal names the check, the expected and actual numbers, and the conflict."""
    body = {"events": [event()], "conditions": [{"stream": ["order", "7"], "seq": None}]}

    page = explain(console.sign_in(), body)

    assert "The append would be refused" in page.text
    assert steps_of(page)["conditions 1"] == "refused"
    assert steps_of(page)["sequence"] == "skipped"
    assert "event_sequence_invalid" in page.text
    assert "expected null actual 1" in page.text
    assert "Events in conflict" in page.text
    assert "order.placed" in page.text


def test_a_reused_key_names_the_differing_fields(console: ConsoleService) -> None:
    """C2, N1: a reused key is refused with the differing fields; a repeat is replayed."""
    visitor = console.sign_in()
    stored = event("order.placed", payload={"total": 9007199254740993})
    other = event("order.placed", payload={"total": 9007199254740992})

    repeat = explain(visitor, {"events": [stored], "idempotency_key": "order-7"}, actor="shop")
    reuse = explain(visitor, {"events": [other], "idempotency_key": "order-7"}, actor="shop")
    unnamed = explain(visitor, {"events": [stored], "idempotency_key": "order-7"})

    assert "The append would be replayed" in repeat.text
    assert "Stored events" in repeat.text
    assert "differing fields payload" in reuse.text
    assert "differing fields actor" in unnamed.text


def test_the_guard_names_rule_and_path(console: ConsoleService) -> None:
    """K1, N1: a secret is refused with the rule and the path."""
    secret = event(payload={"note": "Bearer " + "abcdef0123456789" * 3})

    page = explain(console.sign_in(), {"events": [secret]})

    assert steps_of(page)["guard"] == "refused"
    assert "pii_policy_violation" in page.text
    assert "$.note" in page.text


@pytest.mark.parametrize("body", ["", "no json", "[]", "{}", '{"events": 1}', '{"colour": "red"}'])
@pytest.mark.parametrize("actor", ["", "shop"])
def test_malformed_requests_are_explained_beside_the_form(
    console: ConsoleService, body: str, actor: str
) -> None:
    """L3, N1: the form keeps the pasted text, and the problem is displayed beside it."""
    page = explain(console.sign_in(), body, actor=actor)

    assert page.status == 400
    assert 'role="alert"' in page.html
    assert "Dry run of an append" in page.text


@pytest.mark.parametrize("actor", ["", "shop"])
def test_an_invalid_event_is_explained(console: ConsoleService, actor: str) -> None:
    """L3, N1: an invalid event is reported as a refusal that names its number."""
    page = explain(console.sign_in(), '{"events": [1]}', actor=actor)

    assert page.status == 200
    assert "The append would be refused" in page.text
    assert "event number, from 0 0" in page.text


def test_readers_have_no_form(console: ConsoleService) -> None:
    """K4, N2: without the right to append there is no form, and a forged one is refused."""
    reader = console.sign_in(rights=["read"])
    page = reader.get("/why")

    assert page.status == 200
    assert "<textarea" not in page.html
    assert reader.submit("/why", request="{}").status == 403


def test_actors_need_their_right(console: ConsoleService) -> None:
    """K4: naming another service needs the right act_as."""
    shop = console.sign_in(subject="shop", tenant_id="default", rights=["append", "read"])

    assert explain(shop, {"events": [event()]}, actor="other").status == 403
    assert explain(shop, {"events": [event()]}).status == 200


def test_a_receipt_is_found_by_its_key(console: ConsoleService) -> None:
    """N1, N5: the page shows the first receipt of the key in its address, with exact integers."""
    page = console.sign_in().get("/why", idempotency_key="order-7")
    missing = console.sign_in().get("/why", idempotency_key="order-8")

    assert page.status == 200
    assert "service_principal shop" in page.text
    assert "9007199254740993" in page.text
    assert missing.status == 404
    assert 'role="alert"' in missing.html


def test_a_receipt_is_found_by_its_command(console: ConsoleService) -> None:
    """C5, N1: a command is found by its Idempotency-Key, for its sender and for others."""
    sent = Caller(console.port, console.token(subject="shop"))(
        "POST",
        "/v1/events",
        {"events": [{"event_type": "noted", "payload": {}}]},
        headers={"idempotency-key": "request-1"},
    )
    visitor = console.sign_in()
    command = {"key": "request-1", "endpoint": "POST /v1/events"}

    assert sent.status == 201
    assert "noted" in visitor.get("/why", **command, actor="shop").text
    assert visitor.get("/why", **command).status == 404
    assert visitor.get("/why", key="request-1").status in (400, 404)


def test_tenants_and_types_are_separate(console: ConsoleService) -> None:
    """K2, N2: keys of other tenants and of other event types are not found."""
    acme = console.sign_in(tenant_id="acme", rights=["read"], subject=None)
    other = console.sign_in(rights=["read"], types=["order.paid"])

    for visitor in (acme, other):
        page = visitor.get("/why", idempotency_key="order-7")
        assert page.status == 404
        assert "9007199254740993" not in page.html


def test_hostile_contents_are_text(console: ConsoleService) -> None:
    """N3: markup in pasted text, keys and stored events is displayed as text."""
    log = console.service.log
    key = f"key {HOSTILE}"
    log.append([NewEvent(HOSTILE, {"x": HOSTILE}, stream=(HOSTILE, HOSTILE))], idempotency_key=key)
    visitor = console.sign_in()
    body = {"events": [{"event_type": HOSTILE, "payload": {}}], "idempotency_key": key}

    for page in (
        visitor.get("/why", idempotency_key=key),
        visitor.get("/why", idempotency_key=HOSTILE),
        explain(visitor, body),
        explain(visitor, HOSTILE, actor=HOSTILE),
    ):
        assert "<script>alert" not in page.html
        assert "&lt;script&gt;" in page.html
        assert " style=" not in page.html


def test_a_large_request_is_explained(console: ConsoleService) -> None:
    """N1: a large payload is explained, and a form beyond the limit is refused."""
    visitor = console.sign_in()

    assert explain(visitor, {"events": [event(payload={"x": "a" * 500_000})]}).status == 200
    assert explain(visitor, "a" * 3_000_000).status in (400, 413)


def test_a_recent_refusal_fills_in_the_dry_run(console: ConsoleService) -> None:
    """N1, N3, N5: a link fills the form with the request of a refused append."""
    caller = Caller(console.port, console.token(tenant_id="refusing"))
    body = {"events": [event(HOSTILE)], "conditions": [{"stream": ["order", "7"], "seq": 5}]}
    caller("POST", "/v1/events", body)
    visitor = console.sign_in(tenant_id="refusing")

    listed = visitor.get("/why")
    filled = visitor.get(listed.link("Explain it"))

    assert "event_sequence_invalid" in listed.text
    assert "<script>alert" not in listed.html + filled.html
    text = re.search(r'<textarea id="request"[^>]*>([^<]*)</textarea>', filled.html)
    assert text is not None
    request = unescape(text[1])
    assert json.loads(request) == body
    assert "refused" in explain(visitor, request).text
    assert visitor.get("/why", refusal="absent-1").status == 404


def test_refusals_need_the_rights_of_a_dry_run(console: ConsoleService) -> None:
    """K2, N2: a token that may not run a dry run sees no refused appends."""
    caller = Caller(console.port, console.token(tenant_id="refusing-2"))
    caller("POST", "/v1/events", {"events": [event(event_id="")]})

    assert "Explain it" in console.sign_in(tenant_id="refusing-2").get("/why").text
    for token in ({"rights": ["read"], "tenant_id": "refusing-2"}, {"tenant_id": "refusing-3"}):
        assert "Explain it" not in console.sign_in(**token).get("/why").text

"""Every page of the console in a browser, found by following links."""

from __future__ import annotations

import json
from typing import Literal
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from seriatim.console.page import PREFIX
from seriatim.console.routes import ROUTES
from tests.console.browser.conftest import OPEN_VISIT
from tests.console.browser.hostile_events import LARGE_INTEGER, SCRIPT, TEXTS, make_hostile_events
from tests.service.service_process import ServiceProcess

pytestmark = pytest.mark.slow
NOT_LINKED = {"/events/live"}  # the stream that the list of events follows
LOOKS: tuple[tuple[Literal["light", "dark"], tuple[int, int]], ...] = (
    ("dark", (360, 640)),
    ("light", (3840, 2160)),
)


def list_missing_pages(addresses: list[str]) -> list[str]:
    """Return the pages of the console that are not among these addresses."""
    loaded = {urlsplit(address).path.removeprefix(PREFIX) for address in addresses}
    pages = {route.path for route in ROUTES if route.method == "GET"}
    return sorted(pages - loaded - NOT_LINKED)


def test_every_page_is_accessible(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N1, N3: each page passes the AA check in light and dark, and fits small and large screens."""
    visitor = visit()
    problems_by_page: dict[str, object] = {}
    addresses = []
    for address in visitor.walk("/console/?tenant=acme"):
        for scheme, (width, height) in LOOKS:
            visitor.page.emulate_media(color_scheme=scheme)
            visitor.page.set_viewport_size({"width": width, "height": height})
            # The pages of both backends are the same, and this check takes a second.
            if service.url.startswith("sqlite") and (problems := visitor.accessibility_problems()):
                problems_by_page[f"{address} {scheme} {width}"] = problems
            if overflow := visitor.overflow():
                problems_by_page[f"{address} {width}"] = overflow
        if unreachable := visitor.unreachable():
            problems_by_page[f"{address} keyboard"] = unreachable
        assert not visitor.is_hacked(), address
        addresses.append(address)

    assert list_missing_pages(addresses) == []
    assert not problems_by_page, "\n".join(
        f"{where}: {what}" for where, what in problems_by_page.items()
    )


def test_every_page_works_without_javascript(visit: OPEN_VISIT) -> None:
    """N1: each page has a heading and the navigation without JavaScript."""
    visitor = visit(java_script_enabled=False)
    addresses = []
    for address in visitor.walk("/console/?tenant=acme"):
        assert visitor.page.locator("h1").count() == 1, address
        assert visitor.page.locator("nav a[aria-current], nav a").count() >= 1, address
        addresses.append(address)

    assert list_missing_pages(addresses) == []


def test_a_token_that_only_reads_sees_no_actions(visit: OPEN_VISIT) -> None:
    """N2: a token of a tenant that may only read sees no actions, and no page fails."""
    visitor = visit(token={"subject": None, "tenant_id": "glob", "rights": ["read"]})
    for address in visitor.walk():
        forms = visitor.page.locator("form[method=post]").all()
        actions = [form.get_attribute("action") for form in forms]
        assert [action for action in actions if not _only_reads(action or "")] == [], address
        assert "acme" not in visitor.page.content(), address


def _only_reads(action: str) -> bool:
    """Return whether a form changes nothing of the log: signing out, and dry runs."""
    return any(part in action for part in ("/sign-out", "/query", "/why", "/explain"))


def test_hostile_contents_are_shown_as_text(visit: OPEN_VISIT) -> None:
    """N3: markup in ids, names and payloads is displayed as text, and never runs."""
    visitor = visit()
    visitor.goto("/console/?tenant=acme")
    text = visitor.page.locator("main").inner_text()

    assert "<script>window.hacked=1</script>" in text
    assert "<img src=x onerror=" in text
    assert "{{ 7*7 }}" in text
    assert visitor.page.locator("main img, main script, main b, main i").count() == 0
    assert all(href.startswith("/console/") for href in visitor.links())
    assert str(LARGE_INTEGER) in text
    assert not visitor.is_hacked()


def list_hostile_addresses() -> list[str]:
    """Return the pages of each hostile event, and searches for each of its fields."""
    addresses = []

    def add(path: str, /, **params: str) -> None:
        addresses.append(f"/console{path}?{urlencode({'tenant': 'acme', **params})}")

    for event in make_hostile_events():
        if event_id := event.get("event_id"):
            add("/event", id=event_id)
            add("/why", idempotency_key=event["idempotency_key"], producer_id=event["producer_id"])
            add("/events", causation_id=event["causation_id"], live="1")
            add("/events", correlation_id=event["correlation_id"], actor_id=event["actor_id"])
            add("/query", run="1", tags1=event["tags"][0], payload1=json.dumps(event["payload"]))
            add("/trace", id=event_id)
            add("/handler/entry", name=event_id, event_id=event_id)
            add("/projection", name=event_id)
            add("/projection/steps", name="aggregate_states", key=event_id)
            add("/job", id=event_id)
            add("/journal", affected=event_id)
            add("/access/revoke", token_id=event_id)
        stream = {"type": event["stream_type"], "id": event["stream_id"]}
        add("/stream", **stream, projection="aggregate_states")
        add("/events", types=event["event_type"], stream_type=stream["type"])
    return addresses


def test_hostile_contents_stay_text_on_every_page(visit: OPEN_VISIT) -> None:
    """N3: no page that shows or repeats hostile fields runs them, loads them, or makes elements.

    The visit fails if the content security policy reports a violation.
    """
    visitor = visit(errors=True)  # refused pages are errors of the browser
    for address in list_hostile_addresses():
        status = visitor.goto(address).status
        assert status in (200, 400, 404), (address, status)
        assert visitor.page.locator("h1").count() == 1, address
        assert visitor.page.locator("main img, main script, main b, main i").count() == 0, address
        assert all(href.startswith("/console/") for href in visitor.links()), address
        assert not visitor.is_hacked(), address
        assert visitor.overflow() == 0, address

    assert [problem for problem in visitor.problems if "Failed to load" not in problem] == []


def test_operators_texts_stay_text(visit: OPEN_VISIT) -> None:
    """N3: subjects, notes and reasons that operators write are displayed as text."""
    visitor = visit()
    page = visitor.page
    for number, text in enumerate(TEXTS):
        visitor.goto("/console/access?tenant=acme")
        page.get_by_label("Service, empty").fill(f"{text} {number}"[:100])
        page.locator("[name=token_tenant]").fill("acme")
        page.get_by_label("Note").fill(text)
        form = page.locator("form", has=page.get_by_role("button", name="Create token"))
        form.get_by_label("Reason").fill(text)
        form.get_by_role("button", name="Create token").click()
        expect(page.locator("#new-token")).to_be_visible()
        assert not visitor.is_hacked()
    for address in ("/console/access?tenant=acme", "/console/journal?tenant=acme"):
        visitor.goto(address)
        assert SCRIPT in page.locator("main").inner_text()
        assert page.locator("main img, main script, main b, main i").count() == 0
        assert not visitor.is_hacked()


def test_pages_stay_small(visit: OPEN_VISIT) -> None:
    """N1: events of 1 MiB and names of 10,000 characters do not make lists large."""
    visitor = visit()
    response = visitor.goto("/console/?tenant=acme")

    assert len(response.body()) < 100_000

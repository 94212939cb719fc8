"""Every page of the console in a browser, found by following links."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.console.browser.conftest import OPEN_VISIT
from tests.console.browser.hostile_events import LARGE_INTEGER
from tests.service.service_process import ServiceProcess

pytestmark = pytest.mark.slow
LOOKS: tuple[tuple[Literal["light", "dark"], tuple[int, int]], ...] = (
    ("dark", (360, 640)),
    ("light", (3840, 2160)),
)


def test_every_page_is_accessible(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N1, N3: each page passes the AA check in light and dark, and fits small and large screens."""
    visitor = visit()
    problems_by_page: dict[str, object] = {}
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

    assert len(addresses) >= 1


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


def test_pages_stay_small(visit: OPEN_VISIT) -> None:
    """N1: events of 1 MiB and names of 10,000 characters do not make lists large."""
    visitor = visit()
    response = visitor.goto("/console/?tenant=acme")

    assert len(response.body()) < 100_000

"""A search that no index answers, followed in a browser to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from seriatim import NewEvent
from seriatim.console import queries, search
from tests.console.browser.console_visit import Visit
from tests.console.test_events import append
from tests.fixtures.console import run_console

PART = 100
EVENTS = 350
RARE = 20  # the number of the event that matches


@pytest.fixture
def page(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A visitor of a log in which a page searches 100 positions."""
    monkeypatch.setattr(search, "BUDGET_S", 0.0)
    monkeypatch.setattr(search, "FIRST_POSITIONS", PART)
    monkeypatch.setattr(queries, "UNINDEXED_MAX", PART)
    with run_console(f"sqlite:///{tmp_path / 'log.db'}") as service:
        append(
            service,
            "acme",
            *[NewEvent("noted", {"rare": n == RARE, "text": "x" * 200}) for n in range(EVENTS)],
        )
        visitor = Visit(browser, f"http://127.0.0.1:{service.port}", java_script_enabled=False)
        visitor.sign_in(service.token(tenant_id="acme"))
        yield visitor.page
        visitor.close()
        assert visitor.problems == []


@pytest.mark.parametrize("label", ["Payload predicates in JSON", "Payload predicate in JSON"])
def test_a_rare_event_is_found_by_going_on(page: Page, label: str) -> None:
    """N1, N5: each page says what it has searched and found, and a link goes on to the end."""
    if label.startswith("Payload predicates"):
        page.goto("/console/query")
        page.get_by_label(label).first.fill('{"rare": true}')
        page.get_by_label("Order").select_option("newest")
        page.get_by_role("button", name="Run").click()
    else:
        page.goto("/console/events")
        page.get_by_label(label).fill('{"rare": true}')
        page.get_by_role("button", name="Filter", exact=True).click()
    notice = page.get_by_role("status")
    for until in (EVENTS, EVENTS - PART, EVENTS - 2 * PART):
        expect(notice).to_contain_text(
            f"Searched 100 positions, from {until - PART + 1} to {until}: nothing found yet"
        )
        expect(page.get_by_role("cell", name="No events.")).to_be_visible()
        notice.get_by_role("link", name=f"Go on before {until - PART + 1}").click()
    expect(page.locator("table.events tbody tr")).to_have_count(1)
    expect(page.locator("table.events tbody tr")).to_contain_text('{"rare":true')
    expect(notice).to_have_count(0)

"""The live tail of the console through a restart of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser.console_visit import Visit
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.processes import free_port
from tests.service.http_calls import Caller, make_event
from tests.service.service_process import run_service_process

SECOND = 1000


def append(caller: Caller, numbers: range) -> None:
    """Append one event for each number."""
    for number in numbers:
        response = caller.append(make_event("counted", {"number": number}))
        assert response.status == 201, response.body


def numbers_of(page: Page) -> list[str]:
    """Return the payloads of the displayed events, the oldest first."""
    return page.locator("#event-rows td.payload").all_inner_texts()[::-1]


def expect_numbers(page: Page, count: int) -> None:
    """Wait until the page shows so many events, and check that each is there once, in order."""
    expect(page.locator("#event-rows td.payload")).to_have_count(count, timeout=30 * SECOND)
    assert numbers_of(page) == [f'{{"number":{number}}}' for number in range(count)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a log on each backend."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'log.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    yield server.create_database("live_tail", request.getfixturevalue("postgres_template"))
    server.drop_database("live_tail")


def test_the_live_tail_survives_a_restart(browser: Browser, url: str) -> None:
    """N1, N5: a restart of the service and a pause neither lose nor repeat events."""
    port = str(free_port())
    with run_service_process(url, "--port", port) as first:
        caller = first.caller()
        append(caller, range(5))
        visit = Visit(browser, first.at)
        visit.sign_in(caller.token or "")
        visit.goto("/console/events?live=1")
        status = visit.page.get_by_role("status")
        expect(status).to_have_text("following")
        append(caller, range(5, 15))
        expect_numbers(visit.page, 15)
        first.terminate()
        expect(status).not_to_have_text("following")
    with run_service_process(url, "--port", port):
        append(caller, range(15, 25))
        expect_numbers(visit.page, 25)
        expect(status).to_have_text("following")
        visit.page.get_by_role("button", name="Pause").click()
        expect(status).to_have_text("paused")
        append(caller, range(25, 30))
        visit.page.wait_for_timeout(SECOND)
        assert len(numbers_of(visit.page)) == 25
        visit.page.get_by_role("button", name="Resume").click()
        expect_numbers(visit.page, 30)
        append(caller, range(30, 33))
        expect_numbers(visit.page, 33)
        visit.close()

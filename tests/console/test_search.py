"""Searches that no index answers: a part of the log for each page, and a link that goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from seriatim import NewEvent, PayloadIndex
from seriatim.console import pager, queries, search
from tests.console.test_events import append, link, rows, visit
from tests.fixtures.console import ConsoleService, PageResponse, Visitor, run_console
from tests.fixtures.postgres_server import PostgresServer

PART = 100
EVENTS = 450
RARE = (7, 203, 204)  # numbers of events


@pytest.fixture(params=["sqlite", "postgres"])
def console(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ConsoleService]:
    """A console that searches 100 positions for a page."""
    monkeypatch.setattr(search, "BUDGET_S", 0.0)
    monkeypatch.setattr(search, "FIRST_POSITIONS", PART)
    monkeypatch.setattr(queries, "UNINDEXED_MAX", PART)
    if request.param == "sqlite":
        with run_console(f"sqlite:///{tmp_path / 'log.db'}") as service:
            yield service
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database("searches", request.getfixturevalue("postgres_template"))
    with run_console(url) as service:
        yield service
    server.drop_database("searches")


def fill(console: ConsoleService) -> list[int]:
    """Append events of which a few have a rare payload; return the positions of these."""
    events = [NewEvent("noted", {"n": n, "rare": n in RARE}) for n in range(EVENTS)]
    positions = append(console, "acme", *events)
    return [positions[n] for n in RARE]


def continue_link(page: PageResponse) -> str | None:
    """Return the address that goes on with a search."""
    match = re.search(r'<a class="button" href="([^"]*)">Go on', page.text)
    return None if match is None else unescape(match[1])


def follow(reader: Visitor, address: str) -> list[PageResponse]:
    """Load a page, and all that follow it."""
    pages = [reader.get(address)]
    while following := continue_link(pages[-1]) or link(pages[-1], "next"):
        pages.append(reader.get(following))
        assert len(pages) <= EVENTS // pager.PAGE_EVENTS + 2
    assert {page.status for page in pages} == {200}
    return pages


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("path", ["query?run=1&payload1", "events?payload"])
def test_a_rare_predicate_is_searched_in_parts(
    console: ConsoleService, path: str, order: str
) -> None:
    """N1, E1: a page searches a part, says what it has searched, and links to the next part."""
    rare = fill(console)
    reader = visit(console, tenant_id="acme")

    pages = follow(reader, f"/console/{path}=%7B%22rare%22:true%7D&order={order}")

    assert len(pages) == -(-EVENTS // PART)
    found = [position for page in pages for position in rows(page)]
    assert found == (rare if order == "oldest" else rare[::-1])
    for page in pages[:-1]:
        assert f"Searched {PART} positions, from " in page.text
        assert ("nothing found yet" in page.text) == (not rows(page))
    assert "Searched" not in pages[-1].text.partition('role="status"')[2]


def test_a_rare_type_of_a_busy_actor_is_searched_in_parts(console: ConsoleService) -> None:
    """N1, E7: no index has both the actor and the type, so a page searches a part."""
    events = [
        NewEvent("rare" if n in RARE else "noted", {"n": n}, actor_id="eve") for n in range(EVENTS)
    ]
    positions = append(console, "acme", *events)
    reader = visit(console, tenant_id="acme")
    pages = follow(reader, "/console/events?actor_id=eve&types=rare")
    found = [position for page in pages for position in rows(page)]
    assert found == [positions[n] for n in reversed(RARE)]
    assert len(pages) == -(-EVENTS // PART)
    assert len(rows(reader.get("/console/events", actor_id="eve"))) == pager.PAGE_EVENTS


def test_a_full_page_of_a_search_has_a_next_page(console: ConsoleService) -> None:
    """N1, N5: a search ends when a page is full; the pages back have the same events."""
    fill(console)
    reader = visit(console, tenant_id="acme")
    for path in ("query?run=1&payload1", "events?payload"):
        pages = follow(reader, f"/console/{path}=%7B%22rare%22:false%7D&order=oldest")
        assert sum(len(rows(page)) for page in pages) == EVENTS - len(RARE)
        assert len(rows(pages[0])) == pager.PAGE_EVENTS
        assert continue_link(pages[0]) is None
    back = reader.get(link(pages[1], "prev") or "")
    assert rows(back) == rows(pages[0])


def test_the_context_version_of_a_search_is_bounded(console: ConsoleService) -> None:
    """D1, N1: the version is exact if its event is among the last positions, else a bound."""
    rare = fill(console)
    reader = visit(console, tenant_id="acme")
    body = {"run": "1", "payload1": '{"rare": true}'}

    unknown = reader.get("/console/query", **body)
    [last] = append(console, "acme", NewEvent("noted", {"rare": True}))
    known = reader.get("/console/query", **body)
    whole = reader.get("/console/query", run="1", types1="noted")

    bound = rare[0] - RARE[0] + EVENTS - PART - 1
    assert f'<div class="value">at most {bound}</div>' in unknown.text
    assert f'<div class="value">{last}</div><div class="label">context version' in known.text
    assert "positions searched" in known.text
    assert "positions searched" not in whole.text
    assert "events read to find them" in whole.text


def test_only_queries_without_an_index_are_searched(console: ConsoleService) -> None:
    """N1: a query that indexes answer is answered whole, whatever the size of the log."""
    console.service.log.declare(PayloadIndex("indexed", "n"))
    fill(console)
    actor = {"types": ["indexed"], "actor_id": "eve"}
    event = NewEvent("indexed", {"n": 1}, actor_id="eve", tags=("t",))
    [position] = append(console, "acme", event)
    reader = visit(console, tenant_id="acme")
    whole: list[dict[str, Any]] = [
        {"types": ["indexed"]},
        {"tags": ["t"]},
        {"actor_id": "eve"},
    ]
    for event_filter in whole:
        query = json.dumps({"filters": [event_filter]})
        page = reader.get("/console/query", run="1", query=query)
        assert rows(page) == [position]
        assert "positions searched" not in page.text
    for event_filter in (actor, {"tags": ["t"], "payload": [{"n": 1}]}):
        query = json.dumps({"filters": [event_filter]})
        page = reader.get("/console/query", run="1", query=query, order="newest")
        assert rows(page) == [position]
        assert "positions searched" in page.text


def test_reads_of_a_search_grow_while_they_are_fast(
    console: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: a search goes on until its time is over, and its reads are bounded in positions."""
    monkeypatch.setattr(search, "BUDGET_S", 60.0)
    monkeypatch.setattr(search, "FIRST_POSITIONS", 4)
    monkeypatch.setattr(search, "POSITIONS_MAX", 200)
    rare = fill(console)
    page = visit(console, tenant_id="acme").get("/console/events", payload='{"rare": true}')
    assert rows(page) == rare[::-1]
    assert continue_link(page) is None
    assert search._next_size(100, 0.0) == 200
    assert search._next_size(100, 0.5) == 100
    assert search._next_size(100, 2.0) == 25

"""Pages about decision traces: the list, the timeline and the drawn graph."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

import seriatim
from tests.console.console_service import ConsoleService, run_console
from tests.console.trace_samples import (
    DEAL_DESK,
    DEAL_ID,
    append_step,
    finish_trace,
    observe_entity,
    start_trace,
)
from tests.fixtures.postgres_server import PostgresServer

HOSTILE = "<script>alert(1)</script>\u202e\" onload='x' javascript:alert(1)"
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleService]:
    """A console on a log with traces of two tenants."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('traces')}/log.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"console_traces_{next(_numbers)}"
        url = server.create_database(name, request.getfixturevalue("postgres_template"))
    with seriatim.open(url) as log:
        for envelope in DEAL_DESK:
            log.traces.append_event(envelope)
        start_trace(log, "open-1", title="Still open")
        start_trace(log, "lost-1", title="Given up")
        finish_trace(log, "lost-1", 1, "abandoned")
    with seriatim.open(url, tenant_id="acme") as log:
        start_trace(log, "acme-1", title="Of acme")
    with run_console(url) as service:
        yield service
    if request.param == "postgres":
        server.drop_database(name)


def test_list_has_outcome_and_workflow(console: ConsoleService) -> None:
    """N1: traces are listed with outcome and workflow, newest first, of one tenant."""
    page = console.sign_in().get("/traces")

    titles = ["Given up", "Still open", "Healthcare customer discount approval"]
    assert [page.html.index(title) for title in titles] == sorted(map(page.html.index, titles))
    assert re.findall(r'class="mark[^"]*">([a-z ]+)<', page.html) == [
        "abandoned",
        "open",
        "success",
    ]
    assert "deal_approval" in page.text
    assert "Of acme" not in page.text


@pytest.mark.parametrize(
    ("filters", "titles"),
    [
        ({"workflow": "refund"}, {"Given up", "Still open"}),
        ({"outcome": "open"}, {"Still open"}),
        ({"outcome": "success"}, {"Healthcare customer discount approval"}),
        ({"text": "HEALTHCARE"}, {"Healthcare customer discount approval"}),
        ({"text": "lost-1"}, {"Given up"}),
        ({"workflow": "none"}, set()),
    ],
)
def test_filters_select_traces(
    console: ConsoleService, filters: dict[str, str], titles: set[str]
) -> None:
    """N5: the filters of the address select the listed traces."""
    page = console.sign_in().get("/traces", **filters)
    all_titles = {"Given up", "Still open", "Healthcare customer discount approval"}

    assert {title for title in all_titles if title in page.text} == titles
    assert ("No traces." in page.text) == (not titles)


def test_tenants_see_their_own_traces(console: ConsoleService) -> None:
    """N2: the token of a tenant sees only the traces of that tenant."""
    acme = console.sign_in(tenant_id="acme", rights=["read"], subject=None)

    text = acme.get("/traces").text
    assert "Of acme" in text
    assert "Still open" not in text
    assert acme.get("/trace", id="acme-1").status == 200
    assert acme.get("/trace", id=DEAL_ID).status == 404
    assert acme.get("/traces", tenant="default").status == 403


def test_a_trace_has_a_timeline_a_graph_and_a_table(console: ConsoleService) -> None:
    """N1: the page has a timeline, a graph, the same graph as a table, and linked precedents."""
    page = console.sign_in().get("/trace", id=DEAL_ID)

    assert page.status == 200
    assert page.html.count('<rect class="node') == 10
    assert page.html.count('<path class="edge"') == 8
    assert "policy · allow" in page.text
    assert "approved exception exc:healthcare_extra_discount, by person" in page.text
    assert "exception exc:healthcare_extra_discount decided by this" in page.text
    precedent = page.link("<title>trace eeeeeeee")
    assert "/console/trace?" in precedent
    assert "id=eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee" in precedent
    for event in DEAL_DESK:
        assert f"id={event['event_id']}" in page.html


def test_an_unknown_trace_is_not_found(console: ConsoleService) -> None:
    """N1: an unknown trace is not found, and an address without an id is refused."""
    visitor = console.sign_in()

    assert visitor.get("/trace", id="none").status == 404
    assert visitor.get("/trace").status == 400
    assert visitor.get("/traces", until="x").status == 400


def test_a_token_for_some_types_sees_a_part_of_a_trace(console: ConsoleService) -> None:
    """K4, N2: a token for some event types sees only events of these types, and no outcome."""
    restricted = console.sign_in(rights=["read"], types=["PolicyEvaluated", "PrecedentCited"])
    first = console.sign_in(rights=["read"], types=["TraceStarted"])

    page = restricted.get("/trace", id=DEAL_ID)
    trace_list = first.get("/traces")

    assert "The first event of this trace is not among" in page.text
    assert "Healthcare" not in page.text
    assert page.html.count('<rect class="node') == 3
    assert "Healthcare" in trace_list.text
    assert "not visible" in trace_list.text
    assert "success" not in re.sub(r"<select.*?</select>", "", trace_list.html, flags=re.DOTALL)


@pytest.fixture
def empty_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleService]:
    """A console on an empty SQLite log."""
    with run_console(f"sqlite:///{tmp_path_factory.mktemp('empty_console')}/log.db") as service:
        yield service


def test_hostile_contents_are_text(empty_console: ConsoleService) -> None:
    """N3: markup, quotes and long names are displayed as text in every field."""
    log = empty_console.service.log
    trace_id = "t<i>\"'&javascript:alert(1)"
    start_trace(log, trace_id, HOSTILE, HOSTILE + "x" * 10_000)
    observe_entity(log, trace_id, 1, HOSTILE)
    cited = {"cited_trace_id": "javascript:alert(1)<b>", "reason": HOSTILE * 1000}
    append_step(log, trace_id, 2, "PrecedentCited", cited)
    visitor = empty_console.sign_in()

    trace_list = visitor.get("/traces")
    page = visitor.get(trace_list.link("&lt;script&gt;"))

    for visited in (trace_list, page):
        assert visited.status == 200
        assert "<script>alert" not in visited.html
        assert not re.search(r"<[^>]* onload", visited.html)
        assert not re.search(r"(href|action)=\"javascript:", visited.html)
        assert " style=" not in visited.html
        assert len(visited.html) < 100_000
    assert "&lt;script&gt;alert(1)" in page.html
    assert page.html.count('<rect class="node') == 5


def test_large_traces_are_bounded(empty_console: ConsoleService) -> None:
    """N1: drawing, timeline and table are bounded, and further pages show the rest."""
    log = empty_console.service.log
    start_trace(log, "large")
    for number in range(1, 610):
        observe_entity(log, "large", number, f"i-{number}")
    visitor = empty_console.sign_in()

    page = visitor.get("/trace", id="large")
    timeline = visitor.get("/trace", id="large", step=600)
    last = visitor.get("/trace", id="large", node=600)

    assert page.html.count('<rect class="node') == 500
    assert "The drawing has the first 500 nodes; 112 more are in the table." in page.text
    assert page.html.count("<tr>") == 2 + 2 * 100
    assert timeline.html.count("<tr>") == 2 + 100 + 10
    assert last.html.count("<tr>") == 2 + 100 + 12
    assert "related item i-100, 0 facts" in visitor.get(page.link("Next")).text


def test_long_lists_have_pages(empty_console: ConsoleService) -> None:
    """N1, N5: a page lists 50 traces; its link to older ones continues without gap or repeat."""
    log = empty_console.service.log
    for number in range(120):
        start_trace(log, f"t-{number:03}", "even" if number % 2 == 0 else "odd")
    visitor = empty_console.sign_in()

    page = visitor.get("/traces")
    trace_ids = re.findall(r"<bdi>(t-\d+)</bdi>", page.html)
    while "Older" in page.html:
        page = visitor.get(page.link("Older"))
        trace_ids += re.findall(r"<bdi>(t-\d+)</bdi>", page.html)
    odd = visitor.get("/traces", workflow="odd")
    more = visitor.get(odd.link("Older"))

    assert trace_ids == [f"t-{number:03}" for number in reversed(range(120))]
    assert odd.html.count("<tr>") == 1 + 50
    assert re.findall(r"<bdi>(t-\d+)</bdi>", more.html) == [
        f"t-{number:03}" for number in range(19, 0, -2)
    ]

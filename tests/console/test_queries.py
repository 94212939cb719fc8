"""The page of queries: the form, results, access paths, and equivalent calls."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from typer.testing import CliRunner

import seriatim
from seriatim import NewEvent, PayloadIndex
from seriatim.cli.app import app
from seriatim.console.pager import PAGE_EVENTS
from seriatim.console.queries import parse_query_form
from seriatim.core.errors import InvalidArgument
from tests.console.test_events import append, link, rows, visit
from tests.fixtures.console import ConsoleService, run_console
from tests.service.http_calls import Caller

BIG = 2**63 + 1


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleService]:
    """A service with a console on SQLite."""
    with run_console(f"sqlite:///{tmp_path_factory.mktemp('queries') / 'log.db'}") as service:
        yield service


def calls_of(page: str) -> dict[str, str]:
    """Return the texts that can be copied: JSON, curl, command line, Python."""
    matches = re.findall(r'<pre[^>]* id="(call-\d|query-json)"[^>]*>([^<]*)</pre>', page)
    return {name: unescape(text) for name, text in matches}


def test_the_form_makes_a_query() -> None:
    """D2: each filter has types, tags, streams and predicates; empty ones are left out."""
    form = {
        "types1": "seat.*\r\norder.placed",
        "tags1": "customer:4",
        "streams3": "order/7/8",
        "payload3": '{"n": 123456789012345678901234567890}\n\n{"seat": "1A"}',
        "min_position": "1,000",
    }
    assert parse_query_form(form) == {
        "filters": [
            {"types": ["seat.*", "order.placed"], "tags": ["customer:4"]},
            {
                "streams": [["order", "7/8"]],
                "payload": [{"n": 123456789012345678901234567890}, {"seat": "1A"}],
            },
        ],
        "min_position": 1000,
    }
    assert parse_query_form({"query": '{"filters": []}', "types1": "x"}) == {"filters": []}
    assert parse_query_form({}) == {}


@pytest.mark.parametrize(
    "form",
    [
        {"payload1": "{"},
        {"payload2": '{"a": 1, "a": 2}'},
        {"streams1": "order"},
        {"min_position": "-1"},
        {"query": "[]"},
        {"query": "nope"},
    ],
)
def test_a_malformed_field_is_named_beside_the_form(
    console: ConsoleService, form: dict[str, str]
) -> None:
    """D6: the malformed field is named beside the form, and no query is run."""
    with pytest.raises(InvalidArgument):
        parse_query_form(form)
    page = visit(console).get("/console/query", run="1", **form)
    assert page.status == 400
    assert f'role="alert">{next(iter(form))} ' in page.text
    assert "context version" not in page.text


@pytest.mark.parametrize("form", [{"query": '{"filters": 7}'}, {"types1": "a\x07b"}])
def test_an_invalid_query_is_explained_beside_the_form(
    console: ConsoleService, form: dict[str, str]
) -> None:
    """D6: the error of the log is displayed beside the form, with its status."""
    page = visit(console).get("/console/query", run="1", **form)
    assert page.status in (400, 422)
    assert 'role="alert"' in page.text


def test_results_have_their_access_paths(console: ConsoleService) -> None:
    """D1, N1: the page shows the matches, the context version, the head, and the indexes used."""
    console.service.log.declare(PayloadIndex("seat.taken", "n"))
    positions = append(
        console,
        "acme",
        NewEvent("seat.taken", {"n": BIG}, tags=("t",)),
        NewEvent("seat.freed", {"n": 1}, ("seat", "1A")),
        NewEvent("other", {"n": 2}),
    )
    reader = visit(console, tenant_id="acme")

    page = reader.get(
        "/console/query",
        run="1",
        types1="seat.taken",
        payload1=json.dumps({"n": BIG}),
        types2="seat.freed",
        streams3="seat/1A",
    )

    assert rows(page) == positions[:2]
    assert f'<div class="value">{positions[1]:,}</div><div class="label">context' in page.text
    paths = page.text.partition("Access paths")[2]
    assert re.findall(r'<td class="number">(\d)</td><td>(\w+)</td>', paths) == [
        ("1", "payload"),
        ("2", "type"),
        ("3", "stream"),
    ]
    assert "all match" in paths
    read = re.search(r'<div class="value">(\d+)</div><div class="label">events read', page.text)
    assert read is not None
    assert 2 <= int(read[1]) <= 3
    everything = reader.get("/console/query", run="1", order="newest")
    assert rows(everything) == positions[::-1]
    nothing = reader.get("/console/query", run="1", query='{"filters": [{"types": []}]}')
    assert ">none<" in nothing.text
    assert "No filter can match" in nothing.text


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_pages_continue_in_one_snapshot(console: ConsoleService, order: str) -> None:
    """D1, N5: the next page continues in the same snapshot."""
    tenant = f"snapshot-{order}"
    positions = append(console, tenant, *[NewEvent("n", {"n": n}) for n in range(PAGE_EVENTS + 5)])
    reader = visit(console, tenant_id=tenant)

    first = reader.get("/console/query", run="1", types1="n", order=order)
    append(console, tenant, NewEvent("n", {}))
    address = link(first, "next")
    assert address is not None
    second = reader.get(address)

    expected = positions if order == "oldest" else positions[::-1]
    assert rows(first) + rows(second) == expected
    assert link(second, "next") is None


def test_equivalent_calls_select_the_same_events(console: ConsoleService) -> None:
    """N1: the JSON, curl, CLI and Python calls select the events of the page, with any text."""
    odd = "it's $HOME `id` \\ \" €"
    [position] = append(console, "odd ones", NewEvent("noted", {"n": BIG, "text": odd}))
    append(console, "odd ones", NewEvent("noted", {"n": BIG}))
    page = visit(console).get(
        "/console/query", tenant="odd ones", run="1", payload1=json.dumps({"text": odd})
    )
    calls = calls_of(page.text)
    token = console.token()

    assert rows(page) == [position]
    query = json.loads(calls["query-json"])
    assert query == {"filters": [{"payload": [{"text": odd}]}]}
    curl = shlex.split(calls["call-1"])
    body = curl[curl.index("--data-raw") + 1]
    response = Caller(console.port, token, "odd ones")("POST", "/v1/query", body.encode())
    assert "Seriatim-Tenant: odd ones" in curl
    assert [record["position"] for record in response.json["records"]] == [position]
    command = shlex.split(calls["call-2"])[1:]
    result = CliRunner().invoke(app, [*command, "--json"], env={"SERIATIM_TOKEN": token})
    assert json.loads(result.stdout)["context_version"] == position
    scope: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERIATIM_TOKEN", token)
        exec(compile(calls["call-3"], "call", "exec"), scope)  # noqa: S102 - the displayed code
    assert [record.position for record in scope["result"].records] == [position]
    assert token not in page.text
    assert seriatim.Query.from_mapping(query).filters is not None


@pytest.mark.parametrize("explain", [True, False])
def test_access_paths_are_returned_on_request(console: ConsoleService, explain: bool) -> None:
    """D1: the route of queries adds access paths only on request."""
    caller = Caller(console.port, console.token())
    body = {"query": {"filters": [{"tags": ["t"]}]}, "explain": explain}
    result = caller("POST", "/v1/query", body).json
    assert ("access" in result) == ("events_read" in result) == explain
    if explain:
        [path] = result["access"]
        assert (path["filter"], path["index"], path["exact"]) == (0, "tag", True)
        assert path["until"] == result["head"]

"""The pages of events: filters, places, the live tail, and one event with its surroundings."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from seriatim import NewEvent
from seriatim.console.pager import PAGE_EVENTS
from seriatim.core.handler import Delivery, handler
from seriatim.factory import open_registry, registry_url
from tests.fixtures.console import TIMEOUT_S, ConsoleService, PageResponse, Visitor, run_console
from tests.fixtures.postgres_server import PostgresServer
from tests.service.http_calls import OpenTail

HUGE = 2**70 + 1
SCRIPT = "<script>alert(1)</script>"
MAILER = handler("mailer", effect="keyed")(lambda _event, _context: None)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleService]:
    """A service with a console on each backend."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('console') / 'log.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database("console_events", request.getfixturevalue("postgres_template"))
    with run_console(url) as service:
        yield service
    if request.param == "postgres":
        server.drop_database("console_events")


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A tenant of this test only."""
    return re.sub(r"\W", "-", request.node.name)[:100]


def visit(console: ConsoleService, **token: object) -> Visitor:
    """Return a visitor with a new token."""
    visitor = Visitor(console.port)
    assert visitor.sign_in(console.token(**token)).status == 303
    return visitor


@pytest.fixture
def visitor(console: ConsoleService, tenant: str) -> Visitor:
    """A visitor with a token of the tenant."""
    return visit(console, tenant_id=tenant)


def append(console: ConsoleService, tenant: str, *events: NewEvent) -> list[int]:
    """Append events together, and return their positions."""
    result = console.service.view(tenant).append(list(events))
    return list(range(result.first_position, result.last_position + 1))


def rows(page: PageResponse) -> list[int]:
    """Return the positions in the first table of events."""
    assert page.status == 200, page.text
    table = page.text.partition('<table class="events">')[2].partition("</table>")[0]
    matches = re.findall(r'<td class="number"><a href="[^"]*">([\d,]+)</a>', table)
    return [int(text.replace(",", "")) for text in matches]


def link(page: PageResponse, rel: str) -> str | None:
    """Return the address of a link to a neighbouring page."""
    match = re.search(rf'<a rel="{rel}" href="([^"]*)"', page.text)
    return None if match is None else unescape(match[1])


def notes(count: int, start: int = 0, event_type: str = "noted") -> list[NewEvent]:
    """Return events with a number."""
    return [NewEvent(event_type, {"n": n}) for n in range(start, start + count)]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_are_complete_in_both_directions(
    console: ConsoleService, visitor: Visitor, tenant: str, order: str
) -> None:
    """N5, E7: following the links of pages visits every event once, in both directions."""
    expected: list[int] = []
    for _ in range(5):
        expected += append(console, tenant, *notes(PAGE_EVENTS // 2))
        append(console, "another", *notes(3))
    if order == "newest":
        expected.reverse()

    forwards, pages = [], [visitor.get("/console/events", order=order)]
    assert link(pages[0], "prev") is None
    while address := link(pages[-1], "next"):
        pages.append(visitor.get(address))
    for page in pages:
        forwards += rows(page)
    back, page = [rows(pages[-1])], pages[-1]
    while address := link(page, "prev"):
        page = visitor.get(address)
        back.insert(0, rows(page))

    assert forwards == expected
    assert [position for part in back for position in part] == expected


def test_filters_select_events(console: ConsoleService, visitor: Visitor, tenant: str) -> None:
    """E1, E7, N5: each filter of the address selects its events."""
    stream = ("order", "a/b c&d")
    [one] = append(console, tenant, NewEvent("order.placed", {}, stream, correlation_id="c 1"))
    [two] = append(console, tenant, NewEvent("seat.taken", {}, causation_id="why?", actor_id="eve"))

    positions = {
        name: rows(visitor.get("/console/events", **params))
        for name, params in {
            "all": {},
            "type": {"types": "seat.taken"},
            "pattern": {"types": "order.*"},
            "stream": {"stream_type": stream[0], "stream_id": stream[1]},
            "correlation": {"correlation_id": "c 1"},
            "causation": {"causation_id": "why?"},
            "actor": {"actor_id": "eve"},
            "nothing": {"types": "unknown"},
        }.items()
    }

    assert positions == {
        "all": [two, one],
        "type": [two],
        "pattern": [one],
        "stream": [one],
        "correlation": [one],
        "causation": [two],
        "actor": [two],
        "nothing": [],
    }


def test_a_jump_leads_to_a_position_or_a_time(
    console: ConsoleService, visitor: Visitor, tenant: str
) -> None:
    """N5: a jump leads to the page of a position or time, and a time window selects its events."""
    positions = append(console, tenant, *notes(3))
    log = console.service.view(tenant)
    middle = log.event(next(log.read()).event_id).recorded_at
    later: list[int] = []
    while not later or next(log.read(after=later[0] - 1)).recorded_at == middle:
        later = append(console, tenant, *notes(2))
    append(console, "another", *notes(4))

    def jump(**params: str) -> list[int]:
        response = visitor.get("/console/events", **params)
        assert response.status == 303
        return rows(visitor.get(response.location))

    everything = rows(visitor.get("/console/events", order="oldest"))
    at = everything.index(positions[1])
    assert jump(position=f"{positions[1]:,}") == everything[at::-1]
    assert jump(position=str(positions[1]), order="oldest") == everything[at:]
    assert jump(time=middle) == positions[::-1]
    assert jump(time=middle, order="oldest") == everything[3:]
    assert jump(time="2001-01-01") == []
    assert jump(time="2001-01-01 10:30", order="oldest") == everything
    window = visitor.get("/console/events", recorded_after=middle, order="oldest")
    assert rows(window) == everything[3:]
    assert rows(visitor.get("/console/events", recorded_until=middle)) == positions[::-1]
    assert rows(visitor.get("/console/events", recorded_until="2001-01-01")) == []


@pytest.mark.parametrize(
    "params",
    [
        {"position": "-1"},
        {"position": "9" * 30},
        {"time": "yesterday"},
        {"recorded_after": "2026-99-01"},
        {"until": "x"},
        {"stream_type": "order"},
        {"types": "a\x07b"},
        {"recorded_after": "2026-02-01", "recorded_until": "2026-01-01"},
    ],
)
def test_errors_are_shown_beside_the_form(visitor: Visitor, params: dict[str, str]) -> None:
    """E3, N1: a malformed filter is explained on the page, with the status of the problem."""
    page = visitor.get("/console/events", **params)

    assert page.status in (400, 422), page.text
    assert 'role="alert"' in page.text
    assert '<form method="get" action="/console/events"' in page.text


HOSTILE = [
    SCRIPT,
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "\u202egnp.exe",
    "x" * 10_000,
    "' onmouseover='alert(1)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_contents_are_shown_as_text(
    console: ConsoleService, visitor: Visitor, tenant: str, text: str
) -> None:
    """N3: the contents of an event are displayed as text, and encoded in links, on every page."""
    name = text[:400]
    hostile = NewEvent(
        name,
        {name: text, "big": "y" * 1_000_000},
        (name, name),
        event_id=name,
        actor_id=text[:200],
        correlation_id=name,
        causation_id=name,
        tags=(text[:200],),
        metadata={"note": name},
    )
    [position] = append(console, tenant, hostile)

    pages = [
        visitor.get("/console/events"),
        visitor.get("/console/events", types=name, stream_type=name, stream_id=name),
        visitor.get("/console/event", id=name),
        visitor.get("/console/event", position=str(position)),
        visitor.get("/console/stream", type=name, id=name, projection="aggregate_states"),
        visitor.get("/console/query", run="1", types1=name, tags1=text[:200]),
    ]

    for page in pages:
        assert page.status == 200, page.text[:2000]
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "onmouseover='" not in page.text
        assert not re.search(r'(href|action|src)="\s*javascript:', page.text, re.IGNORECASE)
    assert text in unescape(pages[2].text)


def test_an_event_has_a_page(console: ConsoleService, visitor: Visitor, tenant: str) -> None:
    """N1, A2: the page shows envelope, payload, hash, append, neighbours and equivalent calls."""
    stream = ("order", "7")
    first = NewEvent("order.placed", {"huge": HUGE}, stream, event_id="it's first")
    append(console, tenant, NewEvent("order.created", {}, stream, event_id="before"))
    [one, two] = append(console, tenant, first, NewEvent("mail.sent", event_id="with it"))
    append(console, tenant, NewEvent("order.paid", {}, stream, event_id="after"))

    page = visitor.get("/console/event", id="it's first")
    text = unescape(page.text)

    assert page.status == 200
    assert str(HUGE) in text
    assert "hash matches" in text
    assert rows(page) == [one, two]
    assert (link(page, "prev"), link(page, "next")) == (
        "/console/event?id=before",
        "/console/event?id=after",
    )
    assert visitor.get("/console/event", position=str(one)).text == page.text
    calls = [
        unescape(call) for call in re.findall(r'<pre id="call-\d"[^>]*>([^<]*)</pre>', page.text)
    ]
    assert shlex.split(calls[1])[:2] == ["seriatim", "read"]
    assert "--event-id=it's first" in shlex.split(calls[1])
    assert "$SERIATIM_TOKEN" in calls[0]
    compile(calls[2], "call", "exec")


def test_an_altered_payload_is_reported(
    tmp_path: Path,
) -> None:
    """A2, N1: a payload that does not match its hash is marked."""
    import sqlite3  # the log itself refuses to store such an event

    with run_console(f"sqlite:///{tmp_path / 'log.db'}") as console:
        append(console, "default", NewEvent("noted", {"n": 1}, event_id="one"))
        with sqlite3.connect(tmp_path / "log.db") as database:
            for (trigger,) in database.execute(
                "select name from sqlite_master where type = 'trigger'"
            ).fetchall():
                database.execute(f'drop trigger "{trigger}"')
            database.execute("update events set payload = '{\"n\":2}'")
        page = visit(console).get("/console/event", id="one")

    assert page.status == 200
    assert "hash differs" in page.text


@pytest.mark.parametrize("params", [{"id": "none"}, {"position": "999999999"}, {}])
def test_an_unknown_event_is_not_found(visitor: Visitor, params: dict[str, str]) -> None:
    """N1: the page of an unknown event has the status of the error."""
    assert visitor.get("/console/event", **params).status in (400, 404)


def test_causes_and_effects_are_a_tree(
    console: ConsoleService, visitor: Visitor, tenant: str
) -> None:
    """N1, E7: the tree goes from the first cause to the last effect, also with a cycle."""
    chain = ["a", "b", "c", "d"]
    for cause, effect in zip([None, *chain], chain, strict=False):
        event = NewEvent(
            f"type-{effect}", {}, event_id=effect, causation_id=cause, correlation_id="k"
        )
        append(console, tenant, event)
    append(console, tenant, NewEvent("loop", {}, event_id="x", causation_id="y"))
    append(console, tenant, NewEvent("loop", {}, event_id="y", causation_id="x"))
    append(console, tenant, NewEvent("odd", {}, event_id="odd", causation_id="no such event"))

    tree = visitor.get("/console/event", id="b").text
    tree = tree.partition('<ul class="tree">')[2].partition("<h2>")[0]
    order = re.findall(r">type-(\w)<", tree)
    assert order == chain
    assert tree.index("this event") > tree.index("type-b")
    assert visitor.get("/console/event", id="x").status == 200
    assert "is not an event that you may read" in visitor.get("/console/event", id="odd").text
    drawing = visitor.get("/console/event", id="b").text.partition("<svg")[2].partition("</svg>")[0]
    assert drawing.count("<circle") == 4
    assert drawing.count('class="edge"') == 3


def test_a_large_tree_is_bounded(console: ConsoleService, visitor: Visitor, tenant: str) -> None:
    """N1: the tree and the swimlanes display a bounded number of events."""
    append(console, tenant, NewEvent("root", {}, event_id="root", correlation_id="k"))
    for part in range(4):
        leaves = [
            NewEvent("leaf", {}, ("s", str(n)), causation_id="root", correlation_id="k")
            for n in range(part * 50, part * 50 + 50)
        ]
        append(console, tenant, *leaves)

    page = visitor.get("/console/event", id="root")

    assert page.status == 200
    tree = page.text.partition('<ul class="tree">')[2].partition("<h2>")[0]
    assert tree.count("<li>") == 21
    assert "All effects of this event" in tree
    assert page.text.count("<circle") == 100
    assert "other streams" in page.text


def test_consumers_have_passed_an_event_or_not(tmp_path: Path) -> None:
    """N1, I2, G3: the page shows which consumers have processed an event, and its dead letters."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with run_console(url) as console:
        append(console, "default", NewEvent("noted", {}, event_id="one"))
        log = console.service.view("default")
        for batch in log.subscribe("early", idle_timeout=0.0):
            assert len(batch) == 1
        append(console, "default", NewEvent("noted", {}, event_id="two"))
        with closing(open_registry(registry_url(url))) as registry:
            registry.declare(MAILER)
            delivery = Delivery.of(log.event("two"), log=log.identity())
            [claim] = registry.claim_all(MAILER, [delivery])
            registry.mark_failed(MAILER, claim, f"no {SCRIPT}")
            done = Delivery.of(log.event("one"), log=log.identity())
            registry.mark_done(MAILER, registry.claim_all(MAILER, [done]))
        operator, reader = visit(console), visit(console, rights=["read"])
        first, second = (operator.get("/console/event", id=name).text for name in ("one", "two"))
        plain = reader.get("/console/event", id="two").text

    assert re.search(r"early</td>\s*<td><span class=\"mark good\">passed", first)
    assert re.search(r"early</td>\s*<td><span class=\"mark warn\">not passed", second)
    assert re.search(r"mailer</a></td>\s*<td><span class=\"mark good\">passed", first)
    assert "done, attempts: 1" in first
    assert re.search(r"mailer</a></td>\s*<td><span class=\"mark warn\">not passed", second)
    assert "dead letter: no &lt;script&gt;" in second
    assert "early" not in plain


def test_a_token_sees_only_its_tenant_and_types(console: ConsoleService, tenant: str) -> None:
    """N2, K2: a token sees only its tenant and types; a token for all tenants names a tenant."""
    append(console, tenant, NewEvent("open", {}, ("s", "1"), event_id="seen", correlation_id="k"))
    secret = NewEvent(
        "secret", {}, ("s", "1"), event_id="unseen", causation_id="seen", correlation_id="k"
    )
    append(console, tenant, secret)
    restricted = visit(console, tenant_id=tenant, rights=["read"], types=("open",), subject="r")
    foreign = visit(console, tenant_id="somebody", rights=["read"])
    everybody = visit(console)

    for path, params in (
        ("/console/events", {}),
        ("/console/event", {"id": "seen"}),
        ("/console/stream", {"type": "s", "id": "1", "projection": "aggregate_states"}),
        ("/console/query", {"run": "1", "streams1": "s/1"}),
    ):
        page = restricted.get(path, **params)
        assert page.status == 200, page.text
        assert "unseen" not in page.text
        assert "secret" not in page.text
    assert restricted.get("/console/event", id="unseen").status == 404
    assert foreign.get("/console/event", id="seen").status == 404
    assert rows(foreign.get("/console/events")) == []
    assert foreign.get("/console/events", tenant=tenant).status == 403
    assert len(rows(everybody.get("/console/events", tenant=tenant))) == 2


def test_tags_and_predicates_select_events(
    console: ConsoleService, visitor: Visitor, tenant: str
) -> None:
    """D2, E7, N5: tags and predicates select events, alone and with every other filter."""
    stream = ("order", "7")
    events = [
        NewEvent("a", {"n": n % 3}, stream if n % 2 else None, tags=(f"t:{n % 2}",), actor_id="eve")
        for n in range(2 * PAGE_EVENTS + 10)
    ]
    appended = append(console, tenant, *events, NewEvent("b", {"n": [1]}, correlation_id="c 1"))
    tagged = [
        position for position, event in zip(appended, events, strict=False) if "t:1" in event.tags
    ]

    pages = [visitor.get("/console/events", tag="t:1")]
    while address := link(pages[-1], "next"):
        pages.append(visitor.get(address))
    back = visitor.get(link(pages[1], "prev") or "")
    first = visitor.get("/console/events", tag="t:1", order="oldest")
    few = {"tag": "t:1", "payload": '{"n": 0}', "stream_type": "order", "stream_id": "7"}
    several = rows(visitor.get("/console/events", types="a", actor_id="eve", **few))
    window = {"recorded_after": "2020-01-01", "recorded_until": "2020-01-02"}

    assert [position for page in pages for position in rows(page)] == tagged[::-1]
    assert rows(back) == rows(pages[0])
    assert rows(first) == tagged[:PAGE_EVENTS]
    expected = [position for position in tagged if (position - appended[0]) % 3 == 0]
    assert several == expected[::-1][:PAGE_EVENTS]
    assert rows(visitor.get("/console/events", payload='{"n": [1]}')) == appended[-1:]
    assert rows(visitor.get("/console/events", tag="t:1", correlation_id="c 1")) == []
    assert rows(visitor.get("/console/events", tag="t:1", **window)) == []
    assert (
        rows(visitor.get("/console/events", tag="t:1", recorded_after="2020-01-01"))
        == (tagged[: -PAGE_EVENTS - 1 : -1])
    )
    for wrong in ({"payload": "{"}, {"tag": "t:1", "stream_id": "7"}):
        assert visitor.get("/console/events", **wrong).status == 400


def test_types_complete_the_filter(console: ConsoleService, visitor: Visitor, tenant: str) -> None:
    """N1, K2: the filter by type offers the tenant's types with their number of events."""
    append(console, tenant, NewEvent("order.paid"), NewEvent("order.paid"), NewEvent("seat.*"))
    append(console, f"{tenant}-x", NewEvent("order.secret"))

    page = visitor.get("/console/events").text
    of_orders = visitor.get("/console/events", types="order.*").text

    assert '<input name="types"' in page
    assert 'list="types"' in page
    offered = re.findall(r'<option value="([^"]*)" label="([^"]*)">', page)
    assert offered == [("order.paid", "events: 2"), (r"seat.\*", "events: 1")]
    assert re.findall(r'<option value="([^"]*)" label', of_orders) == ["order.paid"]
    assert "order.secret" not in page


def test_a_scope_of_types_offers_none(console: ConsoleService, tenant: str) -> None:
    """K2, K4: a token for some event types sees the page, without counts of the others."""
    append(console, tenant, NewEvent("order.paid"), NewEvent("seat.held"))
    page = visit(console, tenant_id=tenant, rights=["read"], types=["seat.held"]).get(
        "/console/events"
    )

    assert len(rows(page)) == 1
    assert "<datalist" not in page.text
    assert "order.paid" not in page.text


# -- the live tail


@contextmanager
def open_live(
    visitor: Visitor, headers: dict[str, str] | None = None, **params: str
) -> Iterator[OpenTail]:
    """Open the live tail as a browser does."""
    connection = http.client.HTTPConnection("127.0.0.1", visitor._port, timeout=TIMEOUT_S)
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    try:
        target = f"/console/events/live?{urlencode(params)}"
        connection.request("GET", target, headers={"cookie": cookie, **(headers or {})})
        yield OpenTail(connection.getresponse())
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


def live_rows(tail: OpenTail) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield the id and the rows of each message that has some."""
    for fields in tail.events():
        if fields.get("event") == "rows":
            yield fields["id"], json.loads(fields["data"])


def test_the_live_tail_continues_without_loss_or_duplicate(
    console: ConsoleService, visitor: Visitor, tenant: str
) -> None:
    """E5, N1: a new connection with the last id receives exactly the events after it."""
    start = append(console, tenant, *notes(1))[0]
    keys: list[str] = []
    with open_live(visitor, after=str(start)) as tail:
        assert tail.headers["content-type"] == "text/event-stream"
        appended = append(console, tenant, *notes(2))
        last, received = next(live_rows(tail))
        keys += [row["key"] for row in received]

    def load() -> None:
        for _ in range(20):
            appended.extend(append(console, tenant, *notes(1)))

    loader = threading.Thread(target=load)
    loader.start()
    with open_live(visitor, {"last-event-id": last}, after=str(start)) as tail:
        for _, received in live_rows(tail):
            keys += [row["key"] for row in received]
            if len(keys) == 22:
                break
    loader.join()

    assert keys == [str(position) for position in appended]


def test_the_live_tail_has_every_filter(
    console: ConsoleService, visitor: Visitor, tenant: str
) -> None:
    """E7, N1: live rows match all filters, and the position advances past other events."""
    matching: dict[str, Any] = {
        "correlation_id": "c 1",
        "causation_id": "why",
        "actor_id": "eve",
        "tags": ("t:1",),
    }
    filters: dict[str, Any] = {
        "types": "a.*",
        "payload": '{"n": 1}',
        "tag": "t:1",
        "recorded_after": "2020-01-01",
    }
    ids = ("correlation_id", "causation_id", "actor_id")
    filters |= {name: str(matching[name]) for name in ids}
    changes: list[dict[str, Any]] = [*({name: None} for name in ids), {"tags": ()}]
    others = [NewEvent("a.b", {"n": 1}, **(matching | change)) for change in changes]
    others += [NewEvent("b", {"n": 1}, **matching), NewEvent("a.b", {"n": 2}, **matching)]
    with open_live(visitor, after="0", keep_alive_s="0.05", **filters) as tail:
        append(console, tenant, *others)
        [expected] = append(console, tenant, NewEvent("a.b", {"n": 1}, **matching))
        last = append(console, tenant, *others)[-1]
        received: list[dict[str, str]] = []
        position = 0
        for fields in tail.events():
            received += json.loads(fields["data"]) if fields.get("event") == "rows" else []
            position = int(fields["data"]) if fields.get("event") == "position" else position
            if position >= last:
                break

    assert [row["key"] for row in received] == [str(expected)]
    with open_live(visitor, after="0", recorded_until="2020-01-01", keep_alive_s="0.05") as tail:
        messages = [json.loads(next(tail.events())["data"]) for _ in range(2)]
    assert not [row for part in messages if isinstance(part, list) for row in part]


def test_live_rows_are_exact_texts(console: ConsoleService, visitor: Visitor, tenant: str) -> None:
    """N3, A2: live rows have integers of any size as exact text, and large payloads shortened."""
    with open_live(visitor, types="noted", after="0") as tail:
        append(console, tenant, NewEvent("other", {"n": 0}))
        hostile = NewEvent("noted", {"huge": HUGE, "s": SCRIPT}, (SCRIPT, "a b"), event_id="e 1")
        append(console, tenant, hostile, NewEvent("noted", {"s": "x" * 1_000_000}))
        _, [row, large] = next(live_rows(tail))

    assert row["payload"] == f'{{"huge":{HUGE},"s":"{SCRIPT}"}}'
    assert row["address"] == "/console/event?id=e+1"
    assert row["stream"] == f"{SCRIPT[:23]}… / a b"
    assert len(large["payload"]) == 160


def test_the_live_tail_ends_with_its_token(console: ConsoleService, tenant: str) -> None:
    """N2: the live tail ends when the token is revoked, and not before."""
    text, token = console.service.access.create(
        subject="tester", tenant_id=tenant, rights=("read",)
    )
    visitor = Visitor(console.port)
    visitor.sign_in(text)
    with open_live(visitor, after="0", keep_alive_s="0.05") as tail:
        append(console, tenant, *notes(1))
        messages = tail.events()
        assert [next(messages).get("event") for _ in range(5)].count("problem") == 0
        console.service.access.revoke(token.token_id)
        last = [fields for fields in messages if "event" in fields][-1]

    assert last["event"] == "problem"
    assert json.loads(last["data"])["code"] == "unauthorized"


def test_following_is_offered_where_it_is_possible(
    console: ConsoleService, visitor: Visitor, tenant: str
) -> None:
    """N5: pages that can follow the log name their tail and the head at which it starts."""
    [position] = append(console, tenant, *notes(1))

    page = visitor.get("/console/events", live="1", types="noted")
    assert f'data-after="{position}" data-newest="{position}"' in page.text
    assert 'data-live="/console/events/live?types=noted"' in page.text
    related = visitor.get("/console/events", live="1", correlation_id="x", tag="t")
    assert 'data-live="/console/events/live?correlation_id=x&amp;tag=t"' in related.text
    past = {"recorded_until": "2020-01-01"}
    for params in ({"order": "oldest"}, past, {"until": str(position)}):
        assert "data-live=" not in visitor.get("/console/events", live="1", **params).text


def test_styles_and_scripts_are_small() -> None:
    """N1: the script has at most 30 KB, and the styles have at most 40 KB."""
    static = Path(__file__).parents[2] / "src/seriatim/console/static"
    assert (static / "console.js").stat().st_size <= 30_000
    assert (static / "console.css").stat().st_size <= 40_000

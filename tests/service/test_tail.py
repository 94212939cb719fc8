"""The live tail: no event missed or repeated, one append at a time."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import seriatim
from seriatim import Filter, NewEvent, Query
from seriatim.factory import open_read_model, read_model_url
from seriatim.log.batches import PAGE_EVENTS
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.integration.readmodel_support import make_step, seat_rows, seats
from tests.service.http_calls import Caller, OpenTail, make_caller, make_event, open_tail


@pytest.fixture
def caller(service: RunningService, request: pytest.FixtureRequest) -> Caller:
    """A caller of a tenant that no other test uses."""
    return make_caller(service, tenant_id=request.node.name[:400])


def batches(count: int, seed: int) -> list[list[dict[str, Any]]]:
    """Make appends of one to five events, of two types."""
    draw = random.Random(seed)
    return [
        [
            make_event(draw.choice(["a", "b"]), {"n": n}, tags=[f"t{n % 3}"])
            for _ in range(draw.randint(1, 5))
        ]
        for n in range(count)
    ]


def positions_by_message(lines: Iterator[dict[str, Any]], last: int) -> list[list[int]]:
    """Return the positions of each message, up to a position."""
    found = []
    for line in lines:
        if "records" in line:
            found.append([record["position"] for record in line["records"]])
        if line["position"] >= last:
            return found
    raise AssertionError("the tail ended")


def collect_positions(tail: OpenTail, seen: list[list[int]]) -> None:
    """Collect the positions of each message until the last event."""
    for line in tail.lines():
        if "records" in line:
            if line["records"][0]["event_type"] == "last":
                return
            seen.append([record["position"] for record in line["records"]])


@pytest.mark.parametrize("seed", range(3))
def test_catch_up_and_live_join_without_gap_or_duplicate(
    service: RunningService, caller: Caller, seed: int
) -> None:
    """E5: tails opened during appends receive each later append once and whole."""
    noise = make_caller(service, tenant_id="noise")
    expected: list[list[int]] = []

    def load(given: list[list[dict[str, Any]]]) -> None:
        for batch in given:
            response = caller.append(*batch).json
            expected.append(list(range(response["first_position"], response["last_position"] + 1)))
            if seed:
                noise.append(make_event())

    load(batches(20, seed))
    loader = threading.Thread(target=load, args=(batches(60, seed + 100),))
    starts = [0, expected[7][-1], expected[-1][-1]]
    seen: dict[int, list[list[int]]] = {after: [] for after in starts}

    with (
        open_tail(caller, after=starts[0]) as first,
        open_tail(caller, after=starts[1]) as second,
        open_tail(caller, after=starts[2]) as third,
    ):
        readers = [
            threading.Thread(target=collect_positions, args=(tail, seen[after]))
            for after, tail in zip(starts, (first, second, third), strict=True)
        ]
        for thread in (loader, *readers):
            thread.start()
        loader.join(60)
        caller.append(make_event("last"))
        for thread in readers:
            thread.join(60)

    for after in starts:
        assert seen[after] == [one for one in expected if one[0] > after]


def test_server_sent_events_continue_after_the_last_id(caller: Caller) -> None:
    """E5: an event's id is the last position of its append; Last-Event-ID continues after it."""
    ends = [caller.append(*batch).json["last_position"] for batch in batches(4, 1)]
    with open_tail(caller, lines=False, after=ends[0] - 1) as tail:
        events = [one for one, _ in zip(tail.events(), range(3), strict=False)]
    assert [int(event["id"]) for event in events] == ends[:3]
    assert {event["event"] for event in events} == {"append"}
    headers = {"last-event-id": events[1]["id"]}
    with open_tail(caller, lines=False, headers=headers, after=0) as tail:
        again = [one for one, _ in zip(tail.events(), range(2), strict=False)]

    assert [int(one["id"]) for one in again] == ends[2:]
    assert json.loads(again[0]["data"])["position"] == ends[2]


def test_a_large_append_is_one_message(caller: Caller) -> None:
    """E5: an append larger than a page is one message, from the past and live."""
    size = PAGE_EVENTS + 500
    with open_tail(caller, after=0) as live:
        lines = live.lines()
        next(lines)
        last = caller.append(*(make_event("big") for _ in range(size))).json["last_position"]
        [while_there] = positions_by_message(lines, last)
    with open_tail(caller, after=0) as late:
        [afterwards] = positions_by_message(late.lines(), last)

    assert while_there == afterwards
    assert len(afterwards) == size


FILTERS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
    "types": ({"types": ["a"]}, lambda one: one["event_type"] == "a"),
    "tags": ({"tags": ["t1"]}, lambda one: "t1" in one["tags"]),
    "stream": (
        {"stream_type": "s", "stream_id": "1"},
        lambda one: one.get("stream_id") == "1",
    ),
    "query": (
        {"query": json.dumps({"filters": [{"payload": [{"n": 3}]}, {"types": ["b"]}]})},
        lambda one: one["payload"]["n"] == 3 or one["event_type"] == "b",
    ),
}


@pytest.mark.parametrize("kind", FILTERS)
def test_a_tail_applies_filters_and_queries(caller: Caller, kind: str) -> None:
    """D2: filters and queries apply to stored and new events alike."""
    params, wanted = FILTERS[kind]
    events = [
        make_event(
            "a" if n % 2 else "b",
            {"n": n},
            tags=[f"t{n % 3}"],
            stream_type="s",
            stream_id=f"{n % 2}",
        )
        for n in range(6)
    ]
    end = {"tags": ["t1"], "stream_type": "s", "stream_id": "1", "event_id": "end"}

    def until_end(lines: Iterator[dict[str, Any]]) -> list[int]:
        found: list[int] = []
        for line in lines:
            for record in line.get("records", ()):
                found.append(record["payload"]["n"])
                if record["event_id"] == "end":
                    return found
        raise AssertionError("the tail ended")

    with open_tail(caller, after=0, **params) as live:
        lines = live.lines()
        next(lines)
        for one in events:
            caller.append(one)
        caller.append(make_event("a", {"n": 3}, **end))
        while_there = until_end(lines)
    with open_tail(caller, after=0, **params) as late:
        afterwards = until_end(late.lines())

    assert (
        while_there
        == afterwards
        == [*(event["payload"]["n"] for event in events if wanted(event)), 3]
    )


LONG = Query(
    [
        Filter(payload=[{"n": 64 * one + other, "filler": "x" * 16} for other in range(21)])
        for one in range(64)
    ]
)


def test_a_query_of_maximum_length_is_followed(caller: Caller, service: RunningService) -> None:
    """K3: tails and subscriptions accept a query that is too long for a URL."""
    with seriatim.open(service.url, token=caller.token) as log:
        wanted = [{"n": n, "filler": "x" * 16} for n in (0, 4052)]
        for payload in (*wanted, {"n": 4096, "filler": "x" * 16}):
            log.append([NewEvent("x", payload)])
        tail = log.tail(LONG, after=0, idle_timeout=0.0)
        durable = log.subscribe("s", LONG, idle_timeout=0.0)
        ways = [
            [json.loads(one.payload_json) for batch in way for one in batch]
            for way in (tail, durable)
        ]

    assert ways == [wanted, wanted]


def test_a_tail_by_post_takes_the_same_parameters(caller: Caller) -> None:
    """E5: POST takes the parameters of GET, the query as an object, and Last-Event-ID."""
    for n in range(3):
        last = caller.append(make_event("a" if n else "b", {"n": n})).json["last_position"]
    ways: list[dict[str, Any]] = [
        {"types": ["a"]},
        {"query": {"filters": [{"types": ["a"]}]}},
        {"query": {"filters": [{"payload": [{"n": 1}, {"n": 2}]}]}, "keep_alive_s": 1},
    ]
    for body in ways:
        with open_tail(caller, {**body, "after": last - 3}) as tail:
            assert [len(one) for one in positions_by_message(tail.lines(), last)] == [1, 1]
    headers = {"last-event-id": str(last - 1)}
    with open_tail(caller, {}, lines=False, headers=headers) as tail:
        assert int(next(tail.events())["id"]) == last


def test_a_tail_without_matches_advances_its_position(caller: Caller) -> None:
    """E5: the id of a tail advances although its filter matches nothing."""
    with open_tail(caller, lines=False, types=["never"], keep_alive_s=0.05, after=0) as tail:
        events = tail.events()
        first = int(next(events)["id"])
        last = caller.append(make_event(), make_event()).json["last_position"]
        ids = [first]
        while ids[-1] < last:
            ids.append(int(next(events)["id"]))

    assert ids == sorted(ids)
    assert ids[-1] >= last


def test_a_raised_epoch_ends_tails(serving: Callable[..., RunningService]) -> None:
    """F8: a raised epoch ends a tail with a problem; a tail with the old epoch is refused."""
    service = serving()
    caller = make_caller(service)
    caller.append(make_event())
    known = caller("GET", "/v1/log").json
    with open_tail(caller, lines=False, keep_alive_s=0.05) as tail:
        events = tail.events()
        next(events)
        caller("POST", "/v1/log/epoch", {})
        last = [event for event in events if "event" in event][-1]
    with open_tail(caller, log_id=known["log_id"], epoch=known["epoch"]) as old:
        refused = json.loads(old.response.read())

    assert last["event"] == "problem"
    assert json.loads(last["data"])["code"] == "log_identity_changed"
    assert (old.status, refused["code"]) == (409, "log_identity_changed")


def test_a_tail_that_fell_behind_catches_up(serving: Callable[..., RunningService]) -> None:
    """E5: a client that does not read for a while receives all events in order, once."""
    service = serving(tail_buffer=3)
    caller = make_caller(service)
    with open_tail(caller) as tail:
        lines = tail.lines()
        next(lines)
        for n in range(200):
            last = caller.append(make_event(payload={"n": n, "a": "x" * 20_000})).json[
                "last_position"
            ]
        found = positions_by_message(lines, last)

    assert found == [[n] for n in range(1, 201)]


def test_a_long_poll_waits_for_an_event(service: RunningService, caller: Caller) -> None:
    """E1: a long poll returns when an event is appended, or empty when its time is over."""
    head = caller("GET", "/v1/log").json["head"]
    began = time.monotonic()
    empty = caller("GET", "/v1/events", after=head, wait_s=0.3).json
    waited = time.monotonic() - began
    timer = threading.Timer(0.2, lambda: caller.append(make_event("late")))
    timer.start()
    found = caller("GET", "/v1/events", after=head, wait_s=30).json
    moved = caller("GET", "/v1/log", after=head, wait_s=30).json
    timer.join()

    assert (empty["records"], waited >= 0.29) == ([], True)
    assert [record["event_type"] for record in found["records"]] == ["late"]
    assert moved["head"] > head
    assert time.monotonic() - began < 20
    for path in ("/v1/events", "/v1/log"):
        assert caller("GET", path, after=10**6, wait_s=61).status == 400


def test_waiting_for_a_projection(service: RunningService, shared_url: str) -> None:
    """I6: a wait ends when the projection has passed the position, else with a specific error."""
    caller = make_caller(service, tenant_id="writer")
    log = service.service.view("writer")
    last = caller.append(make_event("seat.taken")).json["last_position"]
    with closing(open_read_model(read_model_url(shared_url, "writer"))) as model:
        model.create_projection(seats, "writer", log.identity())
        token = model.claim("seats", "runner", 60) or 0

        def pass_on() -> None:
            step = make_step(0, last, state_rows=seat_rows({"1a": 1}, last, "writer"))
            step.last_event_id = log.store.event_id_at(last) or ""
            model.commit(seats, step, token=token)

        wait = ("GET", "/v1/projections/wait")
        assert caller(*wait, name="none", position=last).code == "not_found"
        assert (
            caller(*wait, name="seats", position=last, timeout_s=0.05).code == "projection_timeout"
        )
        stale = caller(*wait, name="seats", position=last, timeout_s=0)
        assert (stale.status, stale.code) == (409, "projection_out_of_date")
        beyond = caller(*wait, name="seats", position=10**9, timeout_s=0)
        assert (beyond.status, beyond.code) == (400, "invalid_argument")
        timer = threading.Timer(0.2, pass_on)
        timer.start()
        passed = caller(*wait, name="seats", position=last, timeout_s=30)
        timer.join()

    assert (passed.status, passed.json["position"]) == (200, last)


def test_tails_are_bounded(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: a tail over the bound of open tails is refused with `limit_exceeded`."""
    service = serving()
    caller = make_caller(service)
    monkeypatch.setattr(service.service.hub, "open_tails", 10_000)
    with open_tail(caller) as refused:
        assert refused.status == 413
        assert json.loads(refused.response.read())["details"]["limit"] == "subscriptions"
    service.service.hub.open_tails = 0
    with open_tail(caller) as taken:
        assert taken.status == 200
        next(taken.lines())
    wait_until(lambda: service.service.hub.open_tails == 0, "none")


@pytest.mark.parametrize("by", ["correlation_id", "causation_id", "actor_id"])
@pytest.mark.parametrize("live", [False, True])
def test_ids_filter_stored_and_new_events(caller: Caller, by: str, *, live: bool) -> None:
    """E7, E5: a tail by an id skips other events, moves its position, and continues after it."""
    expected: list[int] = []

    def load() -> int:
        for n in range(30):
            more = {by: "x" if n % 3 == 0 else "y"} if n % 3 < 2 else {}
            position = caller.append(make_event("a", {"n": n}, **more)).json["first_position"]
            expected.extend([position] if n % 3 == 0 else [])
        return int(caller.append(make_event("last")).json["last_position"])

    last = 0 if live else load()
    filters: dict[str, Any] = {by: "x", "types": ["a"], "keep_alive_s": 0.05}
    seen: list[list[int]] = []
    with open_tail(caller, after=0, **filters) as tail:
        lines = tail.lines()
        last = load() if live else last
        while len(seen) < 4:
            seen += [[record["position"] for record in next(lines).get("records", [])]]
            seen = [message for message in seen if message]
    with open_tail(caller, after=seen[-1][-1], **filters) as tail:
        seen += positions_by_message(tail.lines(), last)

    assert seen == [[position] for position in expected]

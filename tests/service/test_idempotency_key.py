"""Duplicates with the same Idempotency-Key run once and receive the first response."""

from __future__ import annotations

import http.client
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from seriatim.access.stored_responses import IdempotentCommand, Reservation, StoredResponse
from seriatim.api.routes import ROUTES, Route
from seriatim.core.errors import IdempotencyKeyReuse
from seriatim.factory import access_url
from tests.faults.support import wait_until
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import RunningService, run_service
from tests.service.http_calls import Caller, ServiceResponse, make_caller, make_event
from tests.service.service_process import run_service_process
from tests.service.tenant_data import REQUESTS, fill

DUPLICATES = 64
APPENDS = ["/v1/events", "/v1/append-if", "/v1/appends"]
OTHERS = [route for route in ROUTES if route.writes and route.path not in APPENDS]

_keys = itertools.count(1)


@pytest.fixture(scope="module")
def service(shared_url: str) -> Iterator[RunningService]:
    """A service with data of two tenants."""
    with run_service(shared_url) as service:
        fill(service, shared_url)
        yield service


def key() -> dict[str, str]:
    """Return an unused key."""
    return {"idempotency-key": f"key-{next(_keys)}"}


def body_of(path: str, *events: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an append."""
    given: dict[str, Any] = {"events": list(events)}
    if path == "/v1/append-if":
        return {**given, "query": {"filters": [{"types": ["never"]}]}}
    return {"appends": [given, given]} if path == "/v1/appends" else given


def at_once(count: int, ask: Callable[[int], ServiceResponse]) -> list[ServiceResponse]:
    """Send a number of concurrent requests."""
    barrier = threading.Barrier(count)

    def one(number: int) -> ServiceResponse:
        barrier.wait(60)
        return ask(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("path", APPENDS)
def test_concurrent_duplicates_of_an_append_are_one_append(
    service: RunningService, path: str
) -> None:
    """C5: 64 concurrent duplicates are stored once, and all receive the same bytes."""
    caller, headers = make_caller(service, tenant_id="duplicates"), key()
    body = body_of(path, make_event("paid", {"path": path}), make_event("sent"))
    before = caller("GET", "/v1/log").json["head"]

    responses = at_once(DUPLICATES, lambda _: caller("POST", path, body, headers=headers))
    stored = 4 if path == "/v1/appends" else 2

    assert len({response.body for response in responses}) == 1, {
        response.body for response in responses
    }
    assert {response.status for response in responses} == {200 if path == "/v1/appends" else 201}
    assert caller("GET", "/v1/log").json["head"] == before + stored
    if path != "/v1/appends":
        first = [response for response in responses if "seriatim-replayed" not in response.headers]
        assert len(first) == 1


@pytest.mark.parametrize("path", APPENDS)
def test_another_body_is_refused(service: RunningService, path: str) -> None:
    """C5: a key belongs to one request; other spellings of the same JSON are the same request."""
    caller, headers = make_caller(service, tenant_id="duplicates"), key()
    body = body_of(path, make_event("paid", {"a": 1, "b": 2}))
    first = caller("POST", path, body, headers=headers)
    other = caller("POST", path, body_of(path, make_event("paid", {"a": 2})), headers=headers)
    respelled = caller("POST", path, _respelled(body), headers=headers)

    assert respelled.body == first.body
    assert respelled.headers["seriatim-replayed"] == "true"
    assert (other.status, other.code) == (409, "idempotency_key_reuse")


def test_several_appends_under_a_key_are_one_request(service: RunningService) -> None:
    """C5: one append more or fewer makes another request, of which nothing is stored."""
    caller, headers = make_caller(service, tenant_id="duplicates"), key()
    one, two, three = ({"events": [make_event("paid", {"n": n})]} for n in range(3))
    first = caller("POST", "/v1/appends", {"appends": [one, two]}, headers=headers)
    head = caller("GET", "/v1/log").json["head"]
    more = caller("POST", "/v1/appends", {"appends": [one, two, three]}, headers=headers)
    fewer = caller("POST", "/v1/appends", {"appends": [one]}, headers=headers)

    assert first.status == 200
    assert [response.code for response in (more, fewer)] == ["idempotency_key_reuse"] * 2
    assert caller("GET", "/v1/log").json["head"] == head


def test_a_key_is_free_if_no_append_of_several_was_stored(service: RunningService) -> None:
    """C5: a key stays free if no append of the request was stored; a lone surrogate is an error."""
    caller, headers = make_caller(service, tenant_id="duplicates"), key()
    wrong = caller(
        "POST", "/v1/appends", {"appends": [{"events": [make_event("")]}]}, headers=headers
    )
    right = caller(
        "POST", "/v1/appends", {"appends": [{"events": [make_event("x")]}]}, headers=headers
    )
    half = b'{"appends": [{"events": [{"event_type": "a", "payload": {"a": "\\ud800"}}]}]}'
    broken = caller("POST", "/v1/appends", half, headers=key())

    assert wrong.json["outcomes"][0]["problem"]["code"] == "invalid_event"
    assert right.json["outcomes"][0]["receipt"]
    assert (broken.status, broken.code) == (400, "invalid_argument")


def _respelled(value: Any) -> bytes:
    import json

    return json.dumps(json.loads(json.dumps(value, sort_keys=True)), indent=2).encode()


def test_a_key_belongs_to_one_caller_and_endpoint(service: RunningService) -> None:
    """C5: another actor, tenant or endpoint has keys of its own."""
    headers = key()
    body = body_of("/v1/events", make_event("paid"))
    callers = [
        make_caller(service, subject=subject, tenant_id=tenant)
        for subject in ("one", "two")
        for tenant in ("a", "b")
    ]

    responses = [caller("POST", "/v1/events", body, headers=headers) for caller in callers]
    responses.append(
        callers[0]("POST", "/v1/append-if", body_of("/v1/append-if", make_event()), headers=headers)
    )

    assert not any("seriatim-replayed" in response.headers for response in responses)
    assert {response.status for response in responses} == {201}


def test_a_refused_request_leaves_its_key_free(service: RunningService) -> None:
    """C5: a request that failed may be corrected and sent again with the same key."""
    caller, headers = make_caller(service, tenant_id="duplicates"), key()
    wrong = caller("POST", "/v1/events", {"events": [make_event("")]}, headers=headers)
    right = caller("POST", "/v1/events", {"events": [make_event("x")]}, headers=headers)
    lease = {"name": "l", "owner": "o", "seconds": -1}
    refused = caller("POST", "/v1/leases", lease, headers=headers)
    held = caller("POST", "/v1/leases", {**lease, "seconds": 1}, headers=headers)

    assert [one.status for one in (wrong, right, refused, held)] == [400, 201, 400, 200]


@pytest.mark.parametrize("bad", ["", "x" * 201, " "])
@pytest.mark.parametrize("path", ["/v1/events", "/v1/leases"])
def test_malformed_keys_are_refused(service: RunningService, path: str, bad: str) -> None:
    """C1: an empty, blank or too long key is `invalid_argument`."""
    body = {"events": [make_event()], "name": "l", "owner": "o", "seconds": 1}
    wanted = {k: v for k, v in body.items() if (k == "events") == (path == "/v1/events")}
    response = make_caller(service)("POST", path, wanted, headers={"idempotency-key": bad})

    assert (response.status, response.code) == (400, "invalid_argument")


@pytest.mark.parametrize("route", OTHERS, ids=lambda route: route.endpoint)
def test_duplicates_of_every_other_write_run_once(service: RunningService, route: Route) -> None:
    """C5: leases, cursors, declarations and operator requests run once, with one response."""
    caller = Caller(service.port, service.token(), "acme")
    wanted, headers = REQUESTS[route.endpoint](service, "acme"), key()
    if route.path == "/v1/tokens/revoke":
        wanted.body["token_id"] = service.token().split("_")[1]
    elif route.path == "/v1/jobs":
        wanted.body["projection"] = "activity"
    epoch = service.service.log.identity().epoch

    responses = at_once(8, lambda _: caller(route.method, route.path, wanted.body, headers=headers))
    other = {**wanted.body, "x": 1}
    refused = caller(route.method, route.path, other, headers=headers)

    assert {response.status for response in responses} == {route.status}, responses[0]
    assert len({response.body for response in responses}) == 1
    assert sum("seriatim-replayed" not in response.headers for response in responses) == 1
    assert refused.status in (400, 409)  # 400 where an unknown field is refused first
    if route.path == "/v1/log/epoch":
        assert service.service.log.identity().epoch == epoch + 1


def lease(caller: Caller, name: str, headers: dict[str, str]) -> ServiceResponse:
    """Claim a lease."""
    body = {"name": name, "owner": "me", "seconds": 60}
    return caller("POST", "/v1/leases", body, headers=headers)


def test_stored_responses_of_a_tenant_are_bounded(serving: Callable[..., RunningService]) -> None:
    """C5: over the bound new keys get 429, while known keys and other tenants are served."""
    bounded = serving(tenant_answers=25)
    caller, other = (make_caller(bounded, tenant_id=tenant) for tenant in ("a", "b"))
    keys = [key() for _ in range(25)]
    for number, one in enumerate(keys):
        assert lease(caller, f"l{number}", one).status == 200
    refused = lease(caller, "more", key())
    details = refused.json["details"]

    assert (refused.status, refused.code, refused.json["retryable"]) == (
        429,
        "limit_exceeded",
        True,
    )
    assert (details["limit"], details["bound"]) == ("tenant_answers", 25)
    assert lease(caller, "l7", keys[7]).headers["seriatim-replayed"] == "true"
    assert lease(caller, "more", {}).status == 200
    assert lease(other, "more", key()).status == 200
    assert bounded.service.access.purge_responses(-1) == 26
    wait_until(lambda: lease(caller, "more", key()).status == 200, "free again", within_s=3.0)


def test_a_large_response_is_not_stored(serving: Callable[..., RunningService]) -> None:
    """C5: a response over the bound is not stored, and its duplicate runs again."""
    caller = make_caller(serving(answer_bytes=5000))
    small, large = key(), key()
    kinds = [{"name": f"kind-{n}"} for n in range(100)]

    def declare(headers: dict[str, str], count: int) -> ServiceResponse:
        return caller("POST", "/v1/declarations", {"kinds": kinds[:count]}, headers=headers)

    first, again = declare(small, 1), declare(small, 1)
    larger = [declare(large, 100) for _ in range(2)]

    assert len(first.body) < 5000 < len(larger[0].body)
    assert again.headers["seriatim-replayed"] == "true"
    assert {one.status for one in larger} == {200}
    assert not any("seriatim-replayed" in one.headers for one in larger)


def test_blocked_commands_do_not_delay_authentication(tmp_path: Path) -> None:
    """K4: while the access store is locked, tokens of other tenants are still authenticated."""
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service(url) as service:
        loud = make_caller(service, tenant_id="loud")
        assert lease(loud, "l", key()).status == 200
        calm = [make_caller(service, tenant_id=f"calm-{n}") for n in range(4)]
        with (
            closing(sqlite3.connect(urlsplit(access_url(url)).path, isolation_level=None)) as db,
            ThreadPoolExecutor(8) as pool,
        ):
            db.execute("begin immediate")
            waiting = [pool.submit(lease, loud, f"l{n}", key()) for n in range(8)]
            time.sleep(0.5)  # until they wait for the lock of the file
            began = time.monotonic()
            statuses = {caller("GET", "/v1/log").status for caller in calm}
            took = time.monotonic() - began
            assert not any(one.done() for one in waiting)
            db.execute("rollback")
            late = {one.result().status for one in waiting}

    assert statuses == late == {200}
    assert took < 1.0


def test_a_waiting_duplicate_writes_nothing(quick: RunningService) -> None:
    """C5: a duplicate of a running command gets no reservation until the command has failed."""
    access, command = quick.service.access, IdempotentCommand("t", "key", "hash")
    first = access.reserve(command, 10)
    assert isinstance(first, Reservation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "_run_in_background", None)
        assert [access.reserve(command, 10) for _ in range(3)] == [None] * 3
        with pytest.raises(IdempotencyKeyReuse):
            access.reserve(IdempotentCommand("t", "key", "other"), 10)
    access.release_reservation(first)
    second = access.reserve(command, 10)
    assert isinstance(second, Reservation)
    access.store_response(second, StoredResponse(200, "x"))

    assert access.reserve(command, 10) == StoredResponse(200, "x")


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_another_process_returns_the_response_of_a_killed_one(
    request: pytest.FixtureRequest, tmp_path: Any, backend: str
) -> None:
    """C5: if a process is killed before it responds, another one returns the stored response."""
    url = f"sqlite:///{tmp_path}/log.db"
    if backend == "postgres":
        url = request.getfixturevalue("postgres_url")
    body, headers = body_of("/v1/events", make_event("paid", {"n": 1}), make_event("sent")), key()
    with run_service_process(url) as first, TcpProxy(first.at) as proxy:
        token = first.caller(tenant_id="t").token
        swallowed = proxy.drop_replies_after(b"paid", ends=b"")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            Caller(proxy.port, token)("POST", "/v1/events", body, headers=headers)
        swallowed.wait()
        first.kill9()
    with run_service(url) as second:
        caller = Caller(second.port, token)
        responses = [caller("POST", "/v1/events", body, headers=headers) for _ in range(3)]
        page = caller("GET", "/v1/events").json["records"]

    assert [record["position"] for record in page] == [1, 2]
    assert {response.status for response in responses} == {201}
    assert len({response.body for response in responses}) == 1
    assert all(response.headers["seriatim-replayed"] == "true" for response in responses)
    assert [event["position"] for event in responses[0].json["events"]] == [1, 2]


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_duplicates_in_several_processes_are_stored_once(
    request: pytest.FixtureRequest, tmp_path: Any, backend: str
) -> None:
    """C5: two processes at one address, and a third at another, store one append."""
    url = f"sqlite:///{tmp_path}/log.db"
    if backend == "postgres":
        url = request.getfixturevalue("postgres_url")
    body, headers = body_of("/v1/events", make_event("paid")), key()
    with run_service_process(url, "--processes", "2") as both, run_service(url) as third:
        callers = [both.caller(tenant_id="t"), make_caller(third, tenant_id="t")]
        responses = at_once(
            DUPLICATES, lambda n: callers[n % 2]("POST", "/v1/events", body, headers=headers)
        )
        lease = {"name": "l", "owner": "o", "seconds": 60}
        claims = at_once(16, lambda n: callers[n % 2]("POST", "/v1/leases", lease, headers=headers))
        head = callers[0]("GET", "/v1/log").json["head"]

    assert len({response.body for response in responses}) == 1
    assert {response.status for response in responses} == {201}
    assert len({response.body for response in claims}) == 1
    assert head == 1

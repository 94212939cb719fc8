"""One tenant cannot stop the service by its use of memory, processor time, quotas or shutdown."""

from __future__ import annotations

import gc
import gzip
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from seriatim.api import app as app_module
from seriatim.api import tail_endpoints, tail_matcher
from seriatim.api.memory_budget import MemoryBudget
from seriatim.api.request_queue import RequestQueue
from seriatim.api.tail_buffer import TailBuffer, TailChunk
from seriatim.core.query import Query
from tests.faults.support import wait_until
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event, open_tail
from tests.service.service_process import ServiceProcess, run_service_process
from tests.service.test_processes import workers_of
from tests.service.test_service_faults import head, raw

MIB = 1024 * 1024
BODY = 17 * MIB - 1024
BUDGET = 128 * MIB
SLACK = 64 * MIB


def rss(service: ServiceProcess) -> int:
    """Return the resident memory of a service process."""
    return psutil.Process(service.process.pid).memory_info().rss


@contextmanager
def many_links(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open connections with small receive buffers."""
    with ExitStack() as stack:
        links = []
        for _ in range(count):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.settimeout(60)
            link.connect(("127.0.0.1", port))
            links.append(link)
        yield links


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service in a separate process, whose memory can be measured."""
    folder = tmp_path_factory.mktemp("apart")
    access = f"sqlite:///{folder}/access.db"
    url = "memory:" if request.param == "memory" else f"sqlite:///{folder}/log.db"
    with run_service_process(url, "--access", access, access=access) as service:
        yield service


# -- memory


def test_unfinished_bodies_are_bounded(apart: ServiceProcess) -> None:
    """K3: a hundred unfinished bodies take the budget and little more; others are served."""
    loud, calm = (apart.caller(tenant_id=one) for one in ("loud-bodies", "calm"))
    assert loud.append(make_event()).status == calm.append(make_event()).status == 201
    before = rss(apart)
    responses: list[bytes] = []
    sent = head(loud, "/v1/events", f"content-length: {BODY}")
    filler = b" " * MIB

    def send(link: socket.socket) -> None:
        try:
            link.sendall(sent)
            for _ in range(16):
                link.sendall(filler)
        except OSError:
            return

    with many_links(apart.port, 100) as links:
        senders = [threading.Thread(target=send, args=(link,)) for link in links]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(120)
        grown = rss(apart) - before
        other = calm.append(make_event())
        refused = loud.append(make_event())
        for link in links:
            link.settimeout(0.05)
            try:
                responses.append(link.recv(4096))
            except OSError:
                continue
    refusals = [response for response in responses if response]

    assert other.status == 201
    assert grown <= BUDGET + SLACK, grown / MIB
    assert len(refusals) >= 100 - BUDGET // BODY
    for text in refusals:
        assert text.startswith(b"HTTP/1.1 429"), text[:100]
        assert b"retry-after: " in text
        assert b'"code":"limit_exceeded"' in text
        assert b'"limit":"tenant_memory_bytes"' in text
    assert refused.status in (201, 429)
    wait_until(lambda: loud.append(make_event()).status == 201, "served again", within_s=60)


def test_memory_for_clients_that_do_not_read_is_bounded(apart: ServiceProcess) -> None:
    """K3: eighty clients that do not read use at most their tenant's budget; others are served."""
    loud, calm = (apart.caller(tenant_id=one) for one in ("loud-reads", "calm"))
    filler = "x" * 1_000_000
    for n in range(40):
        assert loud.append(make_event("big", {"n": n, "a": filler})).status == 201
    calm.append(make_event())
    before = rss(apart)
    with many_links(apart.port, 80) as links:
        for number, link in enumerate(links):
            path = ("/v1/events", "/v1/tail?after=0")[number % 4 == 3]
            link.sendall(head(loud, path, method="GET"))
        seen: list[int] = []
        for _ in range(10):
            time.sleep(0.3)
            seen.append(rss(apart))
        other = calm("GET", "/v1/events")

    assert other.status == 200
    assert max(seen) - before <= BUDGET + SLACK, (max(seen) - before) / MIB
    wait_until(lambda: loud("GET", "/v1/events").status == 200, "served again", within_s=60)


def test_memory_for_tails_of_large_events_is_bounded(apart: ServiceProcess) -> None:
    """K3: eighty tails that do not read use at most the budget, also if a page exceeds its size."""
    loud, calm = (apart.caller(tenant_id=one) for one in ("loud-tails", "calm"))
    for _ in range(3):
        assert loud.append(*[make_event("small")] * 64).status == 201
    filler = "é" * 500_000
    for n in range(40):
        assert loud.append(make_event("large", {"n": n, "a": filler})).status == 201
    assert calm.append(make_event()).status == 201
    before = rss(apart)
    with many_links(apart.port, 80) as links:
        for number, link in enumerate(links):
            link.sendall(head(loud, f"/v1/tail?after={number}", method="GET"))
        seen: list[int] = []
        for _ in range(12):
            time.sleep(0.3)
            seen.append(rss(apart))
        other = calm("GET", "/v1/events")

    assert other.status == 200
    assert max(seen) - before <= BUDGET + SLACK, (max(seen) - before) / MIB
    wait_until(lambda: loud("GET", "/v1/events").status == 200, "served again", within_s=60)


def test_a_stalled_response_is_aborted(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: a response that its client does not read is aborted, and its memory is released."""
    monkeypatch.setattr(app_module, "STALLED_CLIENT_S", 0.5)
    service = serving()
    caller = make_caller(service, tenant_id="t")
    for n in range(8):
        caller.append(make_event("big", {"n": n, "a": "x" * 1_000_000}))
    memory = service.service.memory
    with many_links(service.port, 3) as links:
        for link in links:
            link.sendall(head(caller, method="GET"))
        wait_until(lambda: memory.used("t") > 0, "a response is counted")
        wait_until(lambda: not memory.used("t"), "all are aborted", within_s=30)
        wait_until(lambda: not service._server.server_state.connections, "closed", within_s=30)
    metrics = make_caller(service)("GET", "/metrics").body

    assert b'seriatim_http_bounds_met_total{limit="stalled_s",tenant="t"} 3.0' in metrics


def test_no_memory_is_counted_after_requests_have_ended(
    serving: Callable[..., RunningService],
) -> None:
    """K3: no byte of the memory budget is in use after requests of all kinds have ended."""
    service = serving(tenant_memory_bytes=4 * MIB)
    caller = make_caller(service, tenant_id="t")
    big = {"events": [make_event(payload={"a": "x" * 900_000}) for _ in range(3)]}
    assert caller("POST", "/v1/events", big).status == 201
    assert caller("POST", "/v1/events", {"events": 3}).status == 400
    zipped = gzip.compress(json.dumps(big).encode())
    assert caller("POST", "/v1/events", zipped, headers={"content-encoding": "gzip"}).status == 201
    with open_tail(caller, after=0) as tail:
        assert len([next(tail.lines()) for _ in range(3)]) == 3
        caller.append(make_event())
        next(tail.lines())
    raw(service.port, head(caller, "/v1/events", "content-length: 9"), b"{}", timeout_s=0.2)

    wait_until(lambda: not service.service.memory._tenants, "no memory is counted", within_s=40)


def count_retained_chunks() -> int:
    """Return the number of encoded appends that the tails of this process retain."""
    return sum(1 for object_ in gc.get_objects() if type(object_) is TailChunk and object_.records)


def test_a_tail_retains_no_sent_events(serving: Callable[..., RunningService]) -> None:
    """K3: a tail that has sent everything retains no encoded append."""
    caller = make_caller(serving(), tenant_id="t")
    caller.append(make_event(payload={"a": "x" * 100_000}))
    with open_tail(caller, after=0, keep_alive_s=60) as tail:
        assert len([next(tail.lines()) for _ in range(2)]) == 2
        wait_until(lambda: not count_retained_chunks(), "the stored events are released")
        caller.append(make_event(payload={"a": "x" * 100_000}))
        next(tail.lines())
        wait_until(lambda: not count_retained_chunks(), "the last append is released")


async def test_a_tail_releases_a_page_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: a tail releases the page that it has sent before it reads the next one."""
    kept: list[int] = []

    async def read(*_: Any) -> Any:
        kept.append(count_retained_chunks())
        return (
            [TailChunk(one, b"{}") for one in (2 * len(kept) - 1, 2 * len(kept))],
            2 * len(kept),
            0,
        )

    async def run_for(_: str, act: Callable[[], int]) -> int:
        return act()

    monkeypatch.setattr(tail_endpoints, "_read_page_in_memory", read)
    log = SimpleNamespace(head=lambda: 6, identity=lambda: None)
    hub, memory = SimpleNamespace(stopped=False), MemoryBudget(1)
    service: Any = SimpleNamespace(log=log, hub=hub, memory=memory, run_for_tenant=run_for)
    identity: Any = None
    sent = 0
    async for piece in tail_endpoints._read_stored(
        service, TailBuffer("t", Query(), 0, 10), identity
    ):
        sent += len(piece.records)
        del piece

    assert sent == 12
    assert kept == [0, 0, 0]


def test_unauthenticated_connections_are_bounded(serving: Callable[..., RunningService]) -> None:
    """K3: connections without a token are bounded in number and bytes, and others are served."""
    service = serving(unauthenticated_connections=20, unauthenticated_bytes=MIB)
    caller = make_caller(service, tenant_id="t")
    app: Any = service._config.loaded_app
    with many_links(service.port, 60) as links:
        wait_until(lambda: len(app.unauthenticated) <= 20, "bounded")
        assert caller.append(make_event()).status == 201
        for link in links:
            try:
                link.sendall(b"POST /v1/events HTTP/1.1\r\nx: " + b"a" * 90_000)
            except OSError:
                continue
        assert caller.append(make_event()).status == 201
        wait_until(lambda: app.unauthenticated.bytes <= MIB, "bounded bytes")
    metrics = make_caller(service)("GET", "/metrics").body

    for limit in (b"unauthenticated_connections", b"unauthenticated_bytes"):
        assert b'seriatim_http_bounds_met_total{limit="%b",tenant=""}' % limit in metrics


def test_a_request_without_a_token_is_refused_before_its_body(
    serving: Callable[..., RunningService],
) -> None:
    """K3: a request without a valid token is refused before its body arrives."""
    service = serving()
    sent = b"POST /v1/events HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"

    assert raw(service.port, sent, b" " * 1000).startswith(b"HTTP/1.1 401")


# -- quotas


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"events": 3, "pad": "x" * 60_000}, 400),
        ({"events": [make_event(payload={"password": "hunter2-" + "x" * 60_000})]}, 422),
        ({"events": [make_event("", {"a": "x" * 60_000})]}, 400),
        (
            {
                "events": [make_event(payload={"a": "x" * 60_000})],
                "conditions": [{"stream": ["s", "1"], "seq": 7}],
            },
            409,
        ),
        ({"events": [make_event(event_id="e-1", payload={"a": "y" * 60_000})]}, 409),
    ],
)
def test_refused_appends_are_charged(
    serving: Callable[..., RunningService], body: dict[str, Any], status: int
) -> None:
    """K4: refused appends are charged to the quota, until the response is 429."""
    service = serving(bytes_per_s=50_000.0)
    caller = make_caller(service, tenant_id="t")
    assert caller.append(make_event(event_id="e-1", payload={"a": 1})).status == 201
    responses = [caller("POST", "/v1/events", body) for _ in range(6)]
    statuses = [response.status for response in responses]

    assert statuses[0] == status, responses[0]
    assert 429 in statuses
    assert statuses.count(status) <= 3  # two seconds of the quota, and one append into debt
    late = next(response for response in responses if response.status == 429)
    assert late.json["details"]["limit"] == "bytes_per_s"
    assert int(late.headers["retry-after"]) >= 1
    assert make_caller(service, tenant_id="other").append(make_event()).status == 201


def test_a_body_over_the_quota_is_not_read(serving: Callable[..., RunningService]) -> None:
    """K4: a tenant over its quota gets 429 before its body has arrived."""
    service = serving(bytes_per_s=1000.0)
    caller = make_caller(service, tenant_id="t")
    assert caller.append(make_event(payload={"a": "x" * 10_000})).status == 201
    response = raw(service.port, head(caller, "/v1/events", "content-length: 1000000"), b"{")

    assert response.startswith(b"HTTP/1.1 429"), response[:200]


def test_a_body_that_did_not_arrive_is_not_charged(serving: Callable[..., RunningService]) -> None:
    """K4: declared bytes that did not arrive are not charged."""
    service = serving(bytes_per_s=100_000.0, body_timeout_s=0.2)
    caller = make_caller(service, tenant_id="t")
    for _ in range(5):
        late = raw(service.port, head(caller, "/v1/events", "content-length: 900000"), b"{")
        assert late.startswith(b"HTTP/1.1 504"), late[:100]

    assert caller.append(make_event()).status == 201


# -- processor time


def hostile(values: int) -> dict[str, Any]:
    """Return a query whose predicate compares many values with an array."""
    return {"filters": [{"payload": [{"a": [f"v{n}" for n in range(values)]}]}]}


def test_requests_of_tenants_are_queued(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: requests of a tenant pass through the request queue; a health check does not."""
    queued: list[str] = []
    charged: list[tuple[str, float]] = []
    run, charge = RequestQueue.run, RequestQueue.charge

    async def noted_run(queue: RequestQueue, tenant_id: str, act: Any) -> Any:
        queued.append(tenant_id)
        return await run(queue, tenant_id, act)

    def noted_charge(queue: RequestQueue, tenant_id: str, seconds: float) -> None:
        charged.append((tenant_id, seconds))
        charge(queue, tenant_id, seconds)

    monkeypatch.setattr(RequestQueue, "run", noted_run)
    monkeypatch.setattr(RequestQueue, "charge", noted_charge)
    service = serving()
    loud = make_caller(service, tenant_id="loud")
    charged.clear()
    assert loud.append(make_event(payload={"text": "x" * 500_000})).status == 201
    assert loud("GET", "/v1/events").status == 200
    assert Caller(service.port)("GET", "/health").status == 200

    assert queued == ["loud", "loud"]
    assert {tenant_id for tenant_id, _ in charged} == {"loud"}
    assert sum(seconds for _, seconds in charged) > 0


def test_a_tail_is_matched_outside_the_event_loop(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3, A1: while a tail's predicates are evaluated, `/health` and other appends are served."""
    service = serving()
    caller = make_caller(service, tenant_id="t")
    begun, go = threading.Event(), threading.Event()
    real = tail_matcher._matches

    def slow(*given: Any) -> bool:
        begun.set()
        assert go.wait(60)
        return real(*given)

    monkeypatch.setattr(tail_matcher, "_matches", slow)
    with open_tail(caller, {"query": hostile(3)}) as tail:
        next(tail.lines())
        caller.append(make_event(payload={"a": ["v0", "v1", "v2"]}))
        assert begun.wait(30)
        assert Caller(service.port)("GET", "/health").status == 200
        assert make_caller(service, tenant_id="other").append(make_event()).status == 201
        go.set()
        assert len(next(tail.lines())["records"]) == 1


def test_a_tail_over_its_matching_time_ends(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: a tail over its budget of matching time ends with a problem that names the limit."""
    monkeypatch.setattr(tail_matcher, "MATCH_BURST_S", -1.0)
    service = serving()
    caller = make_caller(service, tenant_id="t")
    with open_tail(caller, {"query": hostile(3)}) as tail:
        lines = tail.lines()
        next(lines)
        caller.append(make_event(payload={"a": ["v0"]}))
        problem = next(line["problem"] for line in lines if "problem" in line)
        assert next(lines, None) is None

    assert (problem["code"], problem["details"]["limit"]) == ("limit_exceeded", "tail_match_s")
    assert not service.service.hub._channels


def test_a_tail_over_the_bound_of_match_steps_ends_alone(
    serving: Callable[..., RunningService],
) -> None:
    """K3: a tail over the bound of match steps ends; other tails of its tenant continue."""
    service = serving()
    caller = make_caller(service, tenant_id="t")
    terms = {"x": [{"p": 1, "q": 2}, {"p": 2, "q": 1}], "z": list(range(400))}
    alike = [{**terms, "n": n} for n in range(200)] + [{**terms, "x": [{"p": 1, "q": 1}]}]
    wanted = [{"x": [{"p": 1, "q": 1}], "z": [n]} for n in range(400)]
    costly = {"filters": [{"payload": [{"a": wanted}]}]}
    with open_tail(caller, {"query": costly}) as tail, open_tail(caller, {}) as other:
        lines, others = tail.lines(), other.lines()
        next(lines)
        next(others)
        assert caller.append(make_event(payload={"a": alike})).status == 201
        problem = next(line["problem"] for line in lines if "problem" in line)
        assert next(lines, None) is None
        assert caller.append(make_event(payload={"n": 2})).status == 201
        received: list[Any] = []
        while len(received) < 2:
            received += next(others).get("records", [])

    assert (problem["code"], problem["details"]["limit"]) == ("limit_exceeded", "match_steps")
    assert received[1]["payload"] == {"n": 2}


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_read_ends_with_its_request(
    serving: Callable[..., RunningService], tmp_path: Path, backend: str
) -> None:
    """K3, B13: a read stops when its client has disconnected or its time is over."""
    url = "memory:" if backend == "memory" else f"sqlite:///{tmp_path}/log.db"
    service = serving(url, request_timeout_s=1.0)
    caller = make_caller(service, tenant_id="t")
    # One event costs about a millisecond; the whole scan would take minutes.
    payload = {"a": [f"w{n}" for n in range(2000)]}
    for _ in range(40):
        caller.append(*[make_event(payload=payload) for _ in range(100)])
    predicates = [{"a": [{"b": [n, "w1"]}]} for n in range(60)]
    query = {"query": {"filters": [{"payload": predicates}]}}
    threads = service.service._threads
    response = caller("POST", "/v1/query", query)
    assert response.status in (200, 504), response
    wait_until(lambda: not threads.busy, "the thread has ended", within_s=10)
    body = json.dumps(query).encode()
    with socket.create_connection(("127.0.0.1", service.port)) as link:
        link.sendall(head(caller, "/v1/query", f"content-length: {len(body)}") + body)
        wait_until(lambda: threads.busy == 1, "it runs", within_s=10)
    wait_until(lambda: not threads.busy, "it has ended", within_s=10)


# -- shutdown

STUCK = """
import sys, threading, time
from seriatim.api import read_endpoints

def forever(*_: object) -> None:
    while True:
        time.sleep(0.01)

read_endpoints.read_first_records = forever
from seriatim.cli import main
main()
"""


def test_unread_responses_do_not_delay_the_shutdown(tmp_path: Path) -> None:
    """K3: after SIGTERM unread responses are aborted long before the grace period is over."""
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(url, "--grace-s", "60") as service:
        caller = service.caller(tenant_id="t")
        for n in range(12):
            assert caller.append(make_event("large", {"n": n, "a": "x" * 1_000_000})).status == 201
        with many_links(service.port, 6) as links:
            for number, link in enumerate(links):
                path = ("/v1/events", "/v1/tail?after=0")[number % 2]
                link.sendall(head(caller, path, method="GET"))
            for link in links:
                assert link.recv(1)
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            service.process.wait(50)
            took = time.monotonic() - began

    assert took < 40  # the deadline is at 60
    assert not any("Exception in ASGI" in line for line in service.text)


def test_a_stuck_thread_does_not_prevent_the_shutdown(tmp_path: Path) -> None:
    """K3: SIGTERM ends the process within the grace period even if a thread hangs."""
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(url, "--grace-s", "4", script=STUCK) as service:
        caller = service.caller(tenant_id="t")
        caller.append(make_event())
        with socket.create_connection(("127.0.0.1", service.port)) as link:
            link.sendall(head(caller, method="GET"))
            time.sleep(1.0)
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            service.process.wait(25)
            took = time.monotonic() - began
        wait_until(
            lambda: any("ending the process" in line for line in service.text),
            "the forced end is logged",
        )

    assert took < 20  # without a deadline it never ends


def test_a_suspended_process_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    """K3: a suspended process of several is killed when the grace period is over."""
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(url, "--grace-s", "4", "--processes", "2") as service:
        caller = service.caller(tenant_id="t")
        wait_until(lambda: caller.append(make_event()).status == 201, "served")
        workers = workers_of(service.process.pid)
        psutil.Process(workers[0]).suspend()
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(30)
        wait_until(lambda: not any(map(psutil.pid_exists, workers)), "all ended")


# -- readiness


@pytest.fixture
def own_server(own_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    """A Postgres server that may be stopped."""
    return own_postgres(fsync=False)


def test_readiness_without_a_database(
    own_server: PostgresServer, serving: Callable[..., RunningService]
) -> None:
    """F5: `/ready` is 503 within seconds while the database hangs or is stopped, then 200 again."""
    service = serving(own_server.create_database("log"))
    anybody = Caller(service.port)
    assert anybody("GET", "/ready").status == 200

    def check() -> None:
        for _ in range(3):
            began = time.monotonic()
            response = anybody("GET", "/ready")
            took = time.monotonic() - began
            assert (response.status, response.code) == (503, "backend_failure")
            assert took < 3  # a second, on a machine that is not busy; it was ten
            assert anybody("HEAD", "/health").status == 200

    with own_server.paused():
        check()
    wait_until(lambda: anybody("GET", "/ready").status == 200, "ready again", within_s=30)
    own_server.stop(immediate=True)
    check()
    own_server.start()
    wait_until(lambda: anybody("GET", "/ready").status == 200, "ready again", within_s=30)

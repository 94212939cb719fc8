"""Faults: invalid requests, slow and lost readers, shutdowns and outages."""

from __future__ import annotations

import resource
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import seriatim
from seriatim import BackendFailure, NewEvent
from seriatim.api import app as app_module
from seriatim.api import connection
from tests.faults.support import wait_until
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event, open_tail
from tests.service.service_process import run_service_process

MIB = 1024 * 1024


@pytest.fixture
def caller(quick: RunningService) -> Caller:
    """A caller with every right."""
    return make_caller(quick)


def raw(port: int, *pieces: bytes, timeout_s: float = 20.0) -> bytes:
    """Send bytes and return the response, up to its end or that of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as link:
        for piece in pieces:
            try:
                link.sendall(piece)
            except OSError:
                break  # the service has refused the request and closed
        found = b""
        try:
            while piece := link.recv(65536):
                found += piece
                head, _, body = found.partition(b"\r\n\r\n")
                if b"content-length: %d" % len(body) in head.lower():
                    break
        except (ConnectionResetError, TimeoutError):
            pass
        return found


def head(caller: Caller, path: str = "/v1/events", *more: str, method: str = "POST") -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {caller.token}"]
    return "\r\n".join([*lines, "content-type: application/json", *more, "", ""]).encode()


# -- malformed requests


NONSENSE: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "nothing": (b"", (400,)),
    "no JSON": (b"{", (400,)),
    "invalid UTF-8": (b'{"events":[{"event_type":"x","payload":{"a":"\xff"}}]}', (400, 422)),
    "invalid UTF-8 around": (b'{"events":[{"event_type":"\xff"}]}', (400,)),
    "UTF-16": ('{"events":[]}'.encode("utf-16"), (400,)),
    "deep payload": (
        b'{"events":[{"event_type":"x","payload":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}]}",
        (400, 413, 422),
    ),
    "very deep": (b"[" * MIB, (400,)),
    "deep closed": (b"[" * 100_000 + b"]" * 100_000, (400,)),
    "deep condition": (
        b'{"events":[],"conditions":[{"query":' + b"[" * 9999 + b"]" * 9999 + b"}]}",
        (400,),
    ),
    "long number": (
        b'{"events":[{"event_type":"x","payload":{"a":' + b"1" * 5000 + b"}}]}",
        (201, 400),
    ),
    "huge float": (b'{"events":[{"event_type":"x","payload":{"a":1e999}}]}', (400,)),
    "a key twice": (b'{"events":[{"event_type":"x","payload":{"a":1,"a":2}}]}', (400,)),
    "a key twice around": (b'{"events":[{"event_type":"x"}],"events":[]}', (400,)),
    "a key of an event twice": (b'{"events":[{"event_type":"x","event_type":"y"}]}', (400,)),
    "a key twice, spaced": (b'{"events": [{"event_type": "x", "event_type": "y"}]}', (400,)),
    "nan": (b'{"events":[{"event_type":"x","payload":{"a":NaN}}]}', (400,)),
    "half a pair": (b'{"events":[{"event_type":"x","payload":{"a":"\\ud800"}}]}', (400, 422)),
}


@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("path", ["/v1/events", "/v1/appends", "/v1/query", "/v1/leases"])
def test_malformed_bodies_are_refused(caller: Caller, path: str, kind: str) -> None:
    """L3: a malformed body is reported as the caller's error, and nothing is stored."""
    body, statuses = NONSENSE[kind]
    before = caller("GET", "/v1/log").json["head"]
    response = caller("POST", path, body)

    assert response.status in (statuses if path == "/v1/events" else (200, 400, 413)), response
    assert response.json
    stored = response.status == 201 and len(response.json["events"])
    assert caller("GET", "/v1/log").json["head"] == before + stored


@pytest.mark.parametrize("kind", ["text/plain", "application/jsonp", "", "multipart/form-data"])
def test_another_content_type_is_refused(caller: Caller, kind: str) -> None:
    """L3: a POST with a content type other than JSON is refused."""
    body = {"events": [make_event()]}

    assert caller("POST", "/v1/events", body, headers={"content-type": kind}).status == 400
    for good in ("application/json", "Application/JSON; charset=utf-8"):
        assert caller("POST", "/v1/events", body, headers={"content-type": good}).status == 201


def test_large_bodies_are_refused_before_they_are_read(
    serving: Callable[..., RunningService],
) -> None:
    """K3: a body over the bound is refused by its declared length, or when its bytes exceed it."""
    service = serving(request_bytes=MIB)
    caller = make_caller(service)
    announced = raw(service.port, head(caller, "/v1/events", f"content-length: {10**12}"))
    chunk = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
    started = head(caller, "/v1/events", "transfer-encoding: chunked")
    chunked = raw(service.port, started, *[chunk] * 40)
    body = caller("POST", "/v1/events", {"events": [make_event(payload={"a": "x" * MIB})]})

    for response in (announced, chunked):
        assert response.startswith(b"HTTP/1.1 413"), response[:200]
        assert b'"limit":"request_bytes"' in response
    assert body.code == "limit_exceeded"
    assert caller.append(make_event()).status == 201


def test_request_heads_are_bounded(quick: RunningService, caller: Caller) -> None:
    """K3: an endless header, too many headers and a too long path are refused."""
    endless = raw(quick.port, b"GET /v1/log HTTP/1.1\r\nx: ", *[b"a" * 65536] * 64)
    many = raw(quick.port, b"GET /v1/log HTTP/1.1\r\n", *[b"x: " + b"a" * 60 + b"\r\n"] * 20_000)
    path = raw(quick.port, b"GET /", *[b"a" * 65536] * 64)
    long = caller("GET", "/v1/event", event_id="x" * 100_000)

    for response in (endless, many, path):
        assert response.startswith((b"HTTP/1.1 4", b"")), response[:100]
        assert b"200 OK" not in response
    assert (long.status, long.code) == (414, "limit_exceeded")
    assert caller("GET", "/v1/log").status == 200


def test_an_incomplete_head_times_out(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13: clients that send no complete head are disconnected; others are served."""
    monkeypatch.setattr(connection.HttpConnection, "head_s", 0.2)
    service = serving()
    caller = make_caller(service)
    with (
        socket.create_connection(("127.0.0.1", service.port)) as silent,
        socket.create_connection(("127.0.0.1", service.port)) as slow,
    ):
        slow.sendall(b"GET /v1/log HTTP/1.1\r\nhost: ")
        for link in (silent, slow):
            link.settimeout(20.0)
            assert link.recv(1) == b""  # closed

    assert caller("GET", "/v1/log").status == 200


def test_an_incomplete_body_times_out(
    serving: Callable[..., RunningService],
) -> None:
    """B13: an incomplete body gets 504, or ends with its client; nothing is stored."""
    service = serving(body_timeout_s=0.3)
    caller = make_caller(service)
    response = raw(service.port, head(caller, "/v1/events", "content-length: 100"), b'{"events":')
    with socket.create_connection(("127.0.0.1", service.port)) as link:
        link.sendall(head(caller, "/v1/events", "content-length: 100") + b'{"events":[')

    assert response.startswith(b"HTTP/1.1 504"), response
    assert b'"code":"timeout"' in response
    assert caller("GET", "/v1/log").json["head"] == 0


def test_data_that_is_not_http_is_refused(quick: RunningService, caller: Caller) -> None:
    """L1: data that is not HTTP is refused, without effect on others."""
    for garbage in (b"\x16\x03\x01\x02\x00" * 20, b"GET\r\n\r\n", b"\r\n" * 100 + b"x y z\r\n\r\n"):
        assert not raw(quick.port, garbage, timeout_s=5).startswith(b"HTTP/1.1 5")
    assert caller("GET", "/v1/log").status == 200


# -- slow and lost readers


def open_unread_tail(caller: Caller, port: int) -> socket.socket:
    """Open a tail without reading its response."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(30)
    link.connect(("127.0.0.1", port))
    link.sendall(head(caller, "/v1/tail?after=0", "accept: application/x-ndjson", method="GET"))
    return link


def test_tails_that_are_not_read_are_bounded_and_disconnected(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: tails that are not read use bounded memory and are disconnected; others are served."""
    monkeypatch.setattr(app_module, "STALLED_CLIENT_S", 2.0)
    monkeypatch.setattr(connection, "TCP_USER_TIMEOUT_MS", 2000)
    service = serving()
    caller = make_caller(service)
    hub = service.service.hub
    stuck = [open_unread_tail(caller, service.port) for _ in range(4)]
    wait_until(lambda: hub.open_tails == 4, "four tails")
    before = psutil.Process().memory_info().rss
    with open_tail(caller) as tail:
        lines = tail.lines()
        next(lines)
        seen = 0
        for _ in range(12):
            caller.append(*(make_event(payload={"a": "x" * 60_000}) for _ in range(50)))
            seen += len(next(lines)["records"])
        used = psutil.Process().memory_info().rss - before
        wait_until(lambda: hub.open_tails == 1, "the stalled tails have ended", within_s=20)
        open_links = service._server.server_state.connections
        wait_until(lambda: len(open_links) == 1, "and their connections", within_s=20)
    for link in stuck:
        link.close()

    assert seen == 600
    assert used < 4 * 36 * MIB  # each stalled tail has 36 MiB of unread events


def test_tails_of_closed_connections_end(quick: RunningService, caller: Caller) -> None:
    """E5: tails whose clients have disconnected are closed."""
    hub = quick.service.hub
    for _ in range(20):
        open_unread_tail(caller, quick.port).close()
    with open_tail(caller) as tail:
        next(tail.lines())
        wait_until(lambda: hub.open_tails == 1, "only the open one")
    wait_until(lambda: not hub.open_tails and not hub._channels, "none")


def test_a_thousand_tails_receive_an_append(serving: Callable[..., RunningService]) -> None:
    """E5: each of a thousand open tails receives an append."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    service = serving()
    caller = make_caller(service)
    links = [open_unread_tail(caller, service.port) for _ in range(1000)]
    wait_until(lambda: service.service.hub.open_tails == 1000, "a thousand", within_s=60)
    caller.append(make_event("for.all"))
    got = 0
    for link in links:
        seen = b""
        while b"for.all" not in seen:
            piece = link.recv(65536)
            assert piece
            seen += piece
        got += 1
        link.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert got == 1000


# -- shutdown


def append_until_stopped(caller: Caller, done: threading.Event, number: int) -> list[str]:
    """Append until stopped or refused; return the ids that were acknowledged."""
    kept = []
    for n in range(100_000):
        if done.is_set():
            break
        event_id = f"{number}-{n}"
        try:
            response = caller.append(make_event("load", event_id=event_id))
        except OSError:
            break
        if response.status != 201:
            break
        kept.append(event_id)
    return kept


def test_sigterm_keeps_acknowledged_appends(postgres_url: str) -> None:
    """F5: acknowledged appends are stored, tails end cleanly, and the exit code is 0."""
    done = threading.Event()
    with run_service_process(postgres_url) as service, ThreadPoolExecutor(4) as pool:
        caller = service.caller(tenant_id="t")
        with open_tail(caller, lines=False) as tail:
            loads = [pool.submit(append_until_stopped, caller, done, n) for n in range(3)]
            lines = [tail.response.readline() for _ in range(200)]
            began = time.monotonic()
            code = service.terminate()
            took = time.monotonic() - began
            rest = tail.response.read()  # ends without a broken chunk
        done.set()
        acknowledged = [one for load in loads for one in load.result()]
    with seriatim.open(postgres_url, tenant_id="t") as log:
        stored = [record.event_id for record in log.read()]

    assert code == 0, service.text
    assert took < 15
    assert lines
    assert rest.endswith(b"\n\n")
    assert acknowledged
    assert set(acknowledged) <= set(stored)
    assert len(set(stored)) == len(stored)


# -- outages


@pytest.fixture
def own_url(own_postgres: Callable[..., PostgresServer]) -> tuple[PostgresServer, str]:
    """A Postgres server that may be stopped, and a log in it."""
    server = own_postgres(fsync=False)
    url = server.create_database("log")
    seriatim.open(url).close()
    return server, url


def test_postgres_restart_under_load(
    own_url: tuple[PostgresServer, str], serving: Callable[..., RunningService]
) -> None:
    """F5: while Postgres restarts appends are refused; acknowledged ones are stored once."""
    server, url = own_url
    service = serving(url)
    caller = make_caller(service, tenant_id="t")
    log = seriatim.open(service.url, token=caller.token)
    done = threading.Event()
    kept: list[str] = []

    def load() -> None:
        while not done.is_set():
            event = NewEvent("load", {"n": len(kept)}, event_id=f"e-{len(kept)}")
            log.append([event], timeout=60)
            kept.append(f"e-{len(kept)}")

    with ThreadPoolExecutor(1) as pool, log:
        loading = pool.submit(load)
        wait_until(lambda: len(kept) > 20, "some load")
        server.stop(immediate=True)
        refused = [caller.append(make_event()) for _ in range(3)]
        health = Caller(service.port)("GET", "/health")
        reached = len(kept)
        server.start()
        wait_until(lambda: len(kept) > reached + 20, "load goes on")
        done.set()
        loading.result(60)
        wait_until(lambda: caller.append(make_event("after")).status == 201, "as before")
        stored = [record.event_id for record in log.read(types=["load"])]

    assert {response.status for response in refused} <= {503, 504}
    assert all(response.code in ("backend_failure", "timeout") for response in refused)
    assert all("retry-after" in response.headers for response in refused if response.status == 503)
    assert health.status == 200
    assert stored == kept


def test_an_append_to_a_locked_database_times_out(
    serving: Callable[..., RunningService], tmp_path: Path
) -> None:
    """B13: an append with a short timeout ends while the database is locked, and is stored once."""
    service = serving(f"sqlite:///{tmp_path}/log.db")
    caller = make_caller(service)
    caller.append(make_event())
    with sqlite3.connect(tmp_path / "log.db", isolation_level=None) as holder:
        holder.execute("begin immediate")
        body = {"events": [make_event("late", event_id="late")]}
        headers = {"seriatim-timeout-s": "0.3"}
        response = caller("POST", "/v1/events", body, headers=headers)
        holder.execute("rollback")
    holder.close()
    again = caller("POST", "/v1/events", body)
    records = caller("GET", "/v1/events").json["records"]

    assert response.status in (503, 504), response
    assert response.code == "timeout" or response.json["details"]["ambiguous"] is True
    assert again.status == 201
    assert [record["event_id"] for record in records].count("late") == 1


def test_a_full_disk_is_a_backend_failure(tmp_path: Path) -> None:
    """L2: a full disk gives backend_failure; stored events remain, and appends work again later."""
    url = f"sqlite:///{tmp_path}/log.db"
    seriatim.open(url).close()
    with run_service_process(url, limit_bytes=2 * MIB) as service:
        caller = service.caller(tenant_id="t")
        kept, refused = fill_disk(caller)
        for _ in range(3):
            assert caller.append(make_event(payload={"a": "x" * 50_000})).code == "backend_failure"
        page = caller("GET", "/v1/events", limit=1000)
        psutil.Process(service.process.pid).rlimit(
            psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)
        )
        wait_until(lambda: caller.append(make_event("again")).status == 201, "room again")
        stored = caller("GET", "/v1/events", types=["fill"]).json["records"]

    assert (refused.status, refused.code) == (503, "backend_failure")
    assert page.status == 200
    assert kept
    assert [one["event_id"] for one in stored if one["event_id"] in set(kept)] == kept
    assert len({one["event_id"] for one in stored}) == len(stored)
    with seriatim.open(url) as log:
        assert not [finding for finding in log.store.verify() if finding.level == "error"]


def fill_disk(caller: Caller) -> tuple[list[str], Any]:
    """Append until the disk is full; return the acknowledged ids and the refusal."""
    kept: list[str] = []
    for n in range(1000):
        response = caller.append(make_event("fill", {"a": "x" * 50_000}, event_id=f"f-{n}"))
        if response.status != 201:
            return kept, response
        kept.append(f"f-{n}")
    raise AssertionError("the disk was never full")


def test_a_closed_log_is_a_backend_failure(serving: Callable[..., RunningService]) -> None:
    """L2: with a closed log reads, writes and `/ready` are 503 with `backend_failure`."""
    service = serving()
    caller = make_caller(service)
    service.service.log.close()

    ready = Caller(service.port)("GET", "/ready")
    for response in (
        ready,
        caller.append(make_event()),
        caller("GET", "/v1/events"),
        caller("GET", "/v1/log"),
    ):
        assert (response.status, response.code) == (503, "backend_failure"), response


def test_no_response_reveals_paths_of_files(
    serving: Callable[..., RunningService], tmp_path: Path
) -> None:
    """K2, L2: a missing file is reported without its directory, and /ready reports no details."""
    service = serving(f"sqlite:///{tmp_path}/log.db")
    caller = make_caller(service)
    (tmp_path / "log.db").rename(tmp_path / "elsewhere.db")
    ready = Caller(service.port)("GET", "/ready")
    body = {"appends": [{"events": [make_event()]}]}
    several = caller("POST", "/v1/appends", body)

    assert (ready.status, ready.json["detail"]) == (503, "the log's store does not respond")
    for response in (caller.append(make_event()), caller("GET", "/v1/events")):
        assert (response.status, response.code) == (503, "backend_failure")
        assert response.json["detail"].startswith("log.db was moved")
    for response in (caller.append(make_event()), caller("GET", "/v1/events"), several):
        assert str(tmp_path).encode() not in response.body


def test_an_unreachable_service_is_not_ambiguous(quick: RunningService) -> None:
    """B10: an unreachable service is backend_failure, not ambiguous, since nothing was sent."""
    settings = seriatim.Settings(timeout_s=0.5)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BackendFailure) as caught:
        seriatim.open(f"http://127.0.0.1:{port}", token="x", settings=settings)

    assert "ambiguous" not in caught.value.details

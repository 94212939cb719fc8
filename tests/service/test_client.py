"""The client: safe retries, requested delays, clear errors, TLS, forks, sync and async."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import BackendFailure, InvalidArgument, NewEvent, Settings, Unauthorized
from seriatim.client.http_client import HttpClient
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_caller, make_event
from tests.service.scripted_server import INFO, PROBLEM, ScriptedHandler, problem_body
from tests.service.service_process import run_service_process

QUICK = Settings(timeout_s=1.0, connect_timeout_s=1.0)


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A tenant of this test only."""
    return str(request.node.name)


@pytest.fixture
def proxy(quick: RunningService) -> Iterator[TcpProxy]:
    """A proxy before the service."""
    with TcpProxy(quick.url) as proxy:
        yield proxy


# -- opening


def test_the_token_determines_the_tenant(
    quick: RunningService, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: without a tenant a client works on that of `token` or of $SERIATIM_TOKEN."""
    token = quick.token(tenant_id=tenant)
    with seriatim.open(quick.url, token=token) as log:
        [record] = log.append([NewEvent("x", {})]).records
    monkeypatch.setenv("SERIATIM_TOKEN", token)
    monkeypatch.setenv("SERIATIM_URL", quick.url + "/")
    with seriatim.open() as log:
        assert [record.event_id for record in log.read()] == [record.event_id]

    assert (record.tenant_id, record.actor_id) == (tenant, "tester")


@pytest.mark.parametrize("token", ["wrong", "srt_0123456789abcdef_x", "", "ü", None])
def test_a_wrong_token_is_refused_without_retry(quick: RunningService, token: str | None) -> None:
    """K4: a wrong token is `unauthorized` at once, without retries."""
    began = time.monotonic()
    with pytest.raises(Unauthorized):
        seriatim.open(quick.url, token=token)

    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "url",
    ["http://", "http://user@host", "https://host?x=1", "http://host#x", "http://host:99999"],
)
def test_a_malformed_url_is_refused(url: str) -> None:
    """L3: a malformed URL, and a token for a local log, are `invalid_argument`."""
    with pytest.raises(InvalidArgument):
        seriatim.open(url, token="x")
    with pytest.raises(InvalidArgument):
        seriatim.open("memory:", token="x")


@pytest.mark.parametrize("body", [b"<html>", b'{"a":1}', b""])
def test_a_response_of_another_server_is_named(
    scripted: tuple[str, type[ScriptedHandler]], body: bytes
) -> None:
    """L2: a response of another server, good or bad, is a `backend_failure` that says so."""
    url, script = scripted
    for status, said in ((200, "format"), (404, "not a Seriatim service"), (500, "not a Seriatim")):
        script.replies[:] = [(status, {"content-type": "text/html"}, body)]
        with pytest.raises(BackendFailure, match=said):
            seriatim.open(url, token="x", settings=QUICK)


def test_the_client_waits_for_the_requested_delay(
    scripted: tuple[str, type[ScriptedHandler]],
) -> None:
    """K4: a retry waits for `retry_after_s`, or for Retry-After when that is absent."""
    url, script = scripted
    script.replies[:] = [
        (
            429,
            {**PROBLEM, "retry-after": "9"},
            problem_body(429, "limit_exceeded", retry_after_s=0.4),
        ),
        (503, {**PROBLEM, "retry-after": "1"}, problem_body(503, "backend_failure")),
        (200, {"content-type": "application/json"}, INFO),
    ]
    client = HttpClient(url, token="x")
    client.get("/v1/log", {})
    client.close()
    times = [at for at, _ in script.requests]

    assert 0.4 <= times[1] - times[0] < 0.9
    assert 1.0 <= times[2] - times[1] < 1.5


def test_permanent_errors_are_not_retried(
    scripted: tuple[str, type[ScriptedHandler]],
) -> None:
    """L1: an error that a retry cannot change is raised at once."""
    url, script = scripted
    script.replies[:] = [(403, PROBLEM, problem_body(403, "forbidden"))]
    with pytest.raises(seriatim.Forbidden):
        seriatim.open(url, token="x")

    assert len(script.requests) == 1


# -- retries


@pytest.mark.parametrize("style", ["sync", "aio"])
@pytest.mark.parametrize("seen", [True, False], ids=["stored", "lost"])
def test_an_append_over_a_lost_connection_is_stored_once(
    quick: RunningService, proxy: TcpProxy, tenant: str, style: str, *, seen: bool
) -> None:
    """B10: the client repeats an append whose request or response was lost; it is stored once."""
    with seriatim.open(proxy.url, token=quick.token(tenant_id=tenant)) as log:
        log.append([NewEvent("warm", {})])
        mark = b'"marked"'
        fault = proxy.drop_replies_after(mark, ends=b"") if seen else proxy.drop_requests_with(mark)
        events = [NewEvent("marked", {"n": 1})]
        result = log.append(events) if style == "sync" else asyncio.run(_awaited(log, events))
        fault.wait()
        stored = [record.event_id for record in log.read(types=["marked"])]

    assert [record.event_id for record in result.records] == stored
    assert (len(stored), result.replayed) == (1, False)


async def _awaited(log: Any, events: list[NewEvent]) -> Any:
    return await log.aio.append(events)


def test_an_unknown_outcome_is_marked_ambiguous(
    quick: RunningService, proxy: TcpProxy, tenant: str
) -> None:
    """B10: an append without a response in time is ambiguous; a repeat with its id resolves it."""
    token = quick.token(tenant_id=tenant)
    with seriatim.open(proxy.url, token=token, settings=QUICK) as log:
        log.append([NewEvent("warm", {})])
        event = NewEvent("marked", {"n": 1}, event_id="m")
        fault = proxy.drop_replies_after(b'"marked"', ends=b"")

        def refuse() -> None:
            fault.wait()
            proxy.cut(refuse=True)

        refusing = threading.Thread(target=refuse)
        refusing.start()
        with pytest.raises(BackendFailure) as caught:
            log.append([event], timeout=1.0)
        refusing.join()
        proxy.resume()
        again = log.append([event])

    assert caught.value.details["ambiguous"] is True
    assert again.replayed


def test_idle_connections_that_were_closed_are_replaced(
    quick: RunningService, proxy: TcpProxy, tenant: str
) -> None:
    """B10: a connection that was closed while idle causes no error."""
    with seriatim.open(proxy.url, token=quick.token(tenant_id=tenant)) as log:
        for _ in range(3):
            log.append([NewEvent("x", {})])
            proxy.cut()
            assert log.head() >= 1
            proxy.cut()
        assert len(list(log.read())) == 3


# -- life


def test_a_closed_client_refuses_calls(quick: RunningService, tenant: str) -> None:
    """B13: a closed client refuses appends and reads, and may be closed again."""
    log = seriatim.open(quick.url, token=quick.token(tenant_id=tenant))
    log.append([NewEvent("x", {})])
    log.close()
    log.close()
    with pytest.raises(BackendFailure, match="closed"):
        log.append([NewEvent("x", {})])
    with pytest.raises(BackendFailure, match="closed"):
        log.head()


def test_a_forked_process_has_its_own_connections(quick: RunningService, tenant: str) -> None:
    """B13: parent and child append concurrently over one log; responses are not mixed up."""
    with seriatim.open(quick.url, token=quick.token(tenant_id=tenant)) as log:
        log.append([NewEvent("before", {})])
        child = os.fork()
        if not child:
            try:
                for n in range(20):
                    assert log.append([NewEvent("child", {"n": n})]).records[0].payload_json
                os._exit(0)
            except BaseException:  # noqa: BLE001 - reported by the exit code
                os._exit(1)
        for n in range(20):
            log.append([NewEvent("parent", {"n": n})])
        assert os.waitpid(child, 0)[1] == 0
        types = [record.event_type for record in log.read()]

    assert (types.count("child"), types.count("parent")) == (20, 20)


async def test_the_async_client_appends_and_reads(quick: RunningService, tenant: str) -> None:
    """E5: concurrent awaited appends get distinct positions, and an awaited page returns them."""
    with seriatim.open(quick.url, token=quick.token(tenant_id=tenant)) as log:
        receipts = await asyncio.gather(
            *(log.aio.append([NewEvent("x", {"n": n})]) for n in range(20))
        )
        page = await log.aio.page(limit=100)
        with pytest.raises(seriatim.InvalidEvent):
            await log.aio.append([NewEvent("", {})])

    assert len({receipt.first_position for receipt in receipts}) == 20
    assert len(page.records) == 20


# -- TLS


def test_tls_certificates_are_verified(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """K2: a client connects with the trusted certificate, and fails without it."""
    cert, key = certificate
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(url, "--certificate", str(cert), "--key", str(key)) as service:
        assert service.at.startswith("https://")
        token = service.caller(tenant_id="t").token
        with seriatim.open(service.at, token=token, verify=str(cert)) as log:
            log.append([NewEvent("x", {})])
            assert [record.event_type for record in log.read()] == ["x"]
            closing = threading.Timer(0.5, log.close)
            closing.start()
            with pytest.raises(BackendFailure, match="closed"):
                list(log.tail(poll_s=15))
            closing.join()
        seriatim.open(service.at, token=token, verify=False).close()
        with pytest.raises(BackendFailure, match=r"(?i)certificate"):
            seriatim.open(service.at, token=token, settings=QUICK)
        plain = service.at.replace("https", "http")
        with pytest.raises(BackendFailure):
            seriatim.open(plain, token=token, settings=QUICK)

    assert ssl.OPENSSL_VERSION


def test_a_client_outlives_its_service(
    serving: Callable[..., RunningService], tmp_path: Path
) -> None:
    """B10: a client reconnects to a service that is restarted at the same address."""
    url = f"sqlite:///{tmp_path}/log.db"
    first = serving(url)
    with TcpProxy(first.url) as proxy:
        token = first.token(tenant_id="t")
        with seriatim.open(proxy.url, token=token) as log:
            log.append([NewEvent("x", {})])
            second = serving(url)
            proxy._target = ("127.0.0.1", second.port)
            proxy.cut()
            log.append([NewEvent("y", {})])
            assert [record.event_type for record in log.read()] == ["x", "y"]
            assert make_caller(second, tenant_id="t").append(make_event()).status == 201

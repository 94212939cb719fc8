"""The client with services that are unreachable or busy, or return cut or invalid responses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest

import seriatim
from seriatim import AppendResult, BackendFailure, Command, Log, NewEvent, Query, Settings, TimedOut
from seriatim.client.connection_pool import ConnectionPool
from seriatim.client.http_client import HttpClient
from seriatim.client.remote_log import RemoteTail
from seriatim.client.store import HttpStore, send_appends
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.core.request import AppendRequest
from seriatim.store.port import Outcome
from seriatim.testing.factories import BatchCollector
from tests.faults.support import wait_until
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import RunningService
from tests.service.scripted_server import (
    INFO,
    JSON,
    LOST,
    ScriptedHandler,
    ScriptedResponse,
    accepted_part,
    append_results,
    problem_response,
    refused_part,
)

AMPLE_S = 60.0  # more than any machine needs: such a call ends by its responses alone
QUICK = Settings(timeout_s=0.5, connect_timeout_s=0.5)
HTML = {"content-type": "text/html"}
Script = tuple[str, type[ScriptedHandler]]


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A tenant of this test only."""
    return str(request.node.name)


def connections(log: Log) -> ConnectionPool:
    """Return the connections of a log in a service."""
    return cast("HttpStore", log.store).http._connections


@contextmanager
def away(log: Log, proxy: TcpProxy) -> Iterator[None]:
    """Close the port of the service during the `with` block."""
    used = connections(log)
    port = used._port
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    used._port = closed
    proxy.cut()
    yield
    used._port = port


# -- following


def test_a_tail_outlives_a_closed_port(quick: RunningService, tenant: str) -> None:
    """E5: a tail retries while the service is unreachable, and continues after its last batch."""
    seen = BatchCollector()

    def follow() -> None:
        for batch in log.tail(after=0, poll_s=0.02):
            seen(batch)
            if batch[0].event_type == "last":
                return

    with (
        TcpProxy(quick.url) as proxy,
        seriatim.open(proxy.url, token=quick.token(tenant_id=tenant)) as log,
    ):
        log.append([NewEvent("first", {})])
        reader = threading.Thread(target=follow)
        reader.start()
        assert seen.next()[0].event_type == "first"
        with away(log, proxy):
            quick.service.view(tenant).append([NewEvent("last", {})])
            time.sleep(0.3)
        assert seen.next()[0].event_type == "last"
        reader.join(20)

    assert seen.empty


def test_a_subscription_outlives_a_closed_port(quick: RunningService, tenant: str) -> None:
    """E5: a subscription continues after an outage longer than the retry timeout."""
    seen = BatchCollector()
    token = quick.token(tenant_id=tenant)
    with TcpProxy(quick.url) as proxy, seriatim.open(proxy.url, token=token, settings=QUICK) as log:
        subscription = log.subscribe("s", poll_s=0.02, lease_s=1.0)
        thread = subscription.start(seen)
        log.append([NewEvent("first", {})])
        assert seen.next()[0].event_type == "first"
        with away(log, proxy):
            wait_until(lambda: isinstance(subscription.last_error, BackendFailure), "a failure")
        log.append([NewEvent("last", {})])
        while seen.next()[0].event_type != "last":  # the first may come again
            pass
        assert thread.is_alive()
        subscription.stop()
        thread.join(20)

    assert not thread.is_alive()


BUSY = {
    "timeout": problem_response(504, "timeout"),
    "limit": problem_response(429, "limit_exceeded", retry_after_s=0.2),
    "failure": problem_response(503, "backend_failure"),
    "gateway": (502, HTML, b"<html>"),
    "said on the way": (200, JSON, b'{"problem":%b}\n' % problem_response(504, "timeout")[2]),
}


DENIED = problem_response(403, "forbidden", retryable=False)


@pytest.mark.parametrize("kind", BUSY)
def test_a_tail_retries_temporary_failures(scripted: Script, kind: str) -> None:
    """E5: a tail retries a busy or full service, after the requested delay."""
    url, script = scripted
    good = (200, JSON, b'{"position":0}\n')
    script.replies[:] = [(200, JSON, INFO), (200, JSON, INFO), BUSY[kind], BUSY[kind], good]
    store = HttpStore(HttpClient(url, token="x"))
    tail = RemoteTail(store, "t", Query(), 0, idle_timeout=0.0)

    assert list(tail) == []
    times = [at for at, _ in script.requests]
    assert len(times) == 5
    assert kind != "limit" or min(times[3] - times[2], times[4] - times[3]) >= 0.2
    store.close()


@pytest.mark.parametrize("response", [BUSY["timeout"], BUSY["limit"], DENIED])
def test_a_tail_stops_retrying_at_its_timeout(scripted: Script, response: ScriptedResponse) -> None:
    """B13: a tail fails when the retry timeout is over, and at once on a permanent error."""
    url, script = scripted
    script.replies[:] = [(200, JSON, INFO), (200, JSON, INFO), response]
    store = HttpStore(HttpClient(url, token="x", timeout_s=0.5))
    tail = RemoteTail(store, "t", Query(), 0)
    began = time.monotonic()
    with pytest.raises(seriatim.SeriatimError) as caught:
        list(tail)

    assert caught.value.code in ("timeout", "limit_exceeded", "forbidden")
    assert time.monotonic() - began < 5
    assert (len(script.requests) > 3) == (response[0] != 403)
    store.close()


def test_closing_a_log_ends_its_tails_and_subscriptions(quick: RunningService, tenant: str) -> None:
    """B13: closing a log ends its tails and subscriptions within seconds; new tails are refused."""
    log = seriatim.open(quick.url, token=quick.token(tenant_id=tenant))
    ended: list[Exception] = []

    def until_closed(act: Any) -> None:
        try:
            act()
        except BackendFailure as error:
            ended.append(error)

    tail = log.tail(poll_s=15)
    subscription = log.subscribe("s", poll_s=15)
    acts = (lambda: list(tail), lambda: subscription.run(lambda _: None))
    threads = [threading.Thread(target=until_closed, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(connections(log)._streams) == 2, "both follow")
    began = time.monotonic()
    log.close()
    for thread in threads:
        thread.join(20)

    assert time.monotonic() - began < 10
    assert [str(error) for error in ended] == ["The log is closed: open it again."] * 2
    with pytest.raises(BackendFailure, match="closed"):
        list(tail)


# -- appends with an unknown outcome


def requests(count: int) -> list[AppendRequest]:
    """Prepare appends that are ready to be sent."""
    with seriatim.open("memory:", tenant_id="t") as log:
        store = HttpStore(HttpClient("http://127.0.0.1:1"))
        made = [
            log.appender.prepare_request(log.draft(LOG_PROFILE, [NewEvent("x", {})]))
            for _ in range(count)
        ]
        return [store.prepare_request(request, log.appender.rules) for request in made]


def sent(
    script: Script, *responses: ScriptedResponse, count: int = 1, seconds: float = AMPLE_S
) -> list[Outcome]:
    """Send appends to a service with scripted responses, and return their outcomes."""
    url, handler = script
    handler.replies[:] = responses
    http = HttpClient(url, token="x", timeout_s=seconds)
    try:
        return send_appends(http, requests(count), seconds)
    finally:
        http.close()


UNDECIDED = {
    "timeout": {"status": 504},
    "limit_exceeded": {"status": 413, "retryable": False},
    "unauthorized": {"status": 401, "retryable": False},
    "forbidden": {"status": 403, "retryable": False},
    # A delay longer than the timeout ends the call at once.
    "backend_failure": {"status": 503, "retry_after_s": 3600},
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "part"])
@pytest.mark.parametrize("code", UNDECIDED)
@pytest.mark.parametrize("first", ["lost", "unclear", "nonsense"])
def test_an_append_stays_ambiguous_after_an_undecided_retry(
    scripted: Script, code: str, first: str, *, whole: bool
) -> None:
    """B10: if an earlier attempt may be stored, a refused retry leaves the append ambiguous."""
    met: dict[str, Any] = {"code": code, **UNDECIDED[code]}
    firsts = {
        "lost": LOST,
        "unclear": append_results(refused_part(503, "backend_failure", ambiguous=True)),
        "nonsense": (500, HTML, b"<html>"),
    }
    last = problem_response(**met) if whole else append_results(refused_part(**met))
    [outcome] = sent(scripted, firsts[first], last)

    assert isinstance(outcome, BackendFailure)
    assert outcome.ambiguous
    assert "earlier attempt may have been stored" in outcome.message
    assert code in outcome.message


@pytest.mark.parametrize("code", UNDECIDED)
def test_a_refused_only_attempt_is_not_ambiguous(scripted: Script, code: str) -> None:
    """B10: an append whose only attempt was refused reports that error, not an ambiguous one."""
    met: dict[str, Any] = {"code": code, **UNDECIDED[code]}
    [outcome] = sent(scripted, append_results(refused_part(**met)))

    assert isinstance(outcome, seriatim.SeriatimError)
    assert outcome.code == code
    assert not outcome.details.get("ambiguous")


@pytest.mark.parametrize(
    "code", ["event_sequence_invalid", "idempotency_conflict", "invalid_event", "conflict"]
)
def test_a_decision_of_the_log_ends_ambiguity(scripted: Script, code: str) -> None:
    """B10: when the log refuses the retry by its rules, the append is not ambiguous."""
    [outcome] = sent(scripted, LOST, append_results(refused_part(409, code, retryable=False)))

    assert isinstance(outcome, seriatim.SeriatimError)
    assert (outcome.code, outcome.details) == (code, {})


def test_ambiguity_is_per_append(scripted: Script) -> None:
    """B10: of several appends in one request, only those that may be stored are ambiguous."""
    unclear = refused_part(503, "backend_failure", ambiguous=True)
    busy = refused_part(429, "limit_exceeded", retry_after_s=0.01)
    first, second, third = sent(
        scripted,
        append_results(accepted_part(), unclear, busy),
        problem_response(403, "forbidden", retryable=False),
        count=3,
    )

    assert not isinstance(first, Exception)
    assert isinstance(second, BackendFailure)
    assert second.ambiguous
    assert isinstance(third, seriatim.Forbidden)
    assert third.details == {}


@pytest.mark.parametrize("status", [500, 502, 504, 599])
def test_a_gateway_error_is_ambiguous(scripted: Script, status: int) -> None:
    """B10: after a gateway error an append is repeated, and is ambiguous if never decided."""
    nonsense = (status, HTML, b"<html>")
    [stored] = sent(scripted, nonsense, append_results(accepted_part()))
    [unknown] = sent(scripted, (status, {**HTML, "retry-after": "3600"}, b""))

    assert not isinstance(stored, Exception)
    assert isinstance(unknown, BackendFailure)
    assert (unknown.ambiguous, unknown.retryable) == (True, True)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"outcomes":[]}', b'{"outcomes":[{}]}'])
def test_an_unreadable_response_is_ambiguous(scripted: Script, body: bytes) -> None:
    """B10: an append with an unreadable response is ambiguous."""
    busy = problem_response(503, "backend_failure", retry_after_s=3600)
    [outcome] = sent(scripted, (200, JSON, body), busy)

    assert isinstance(outcome, BackendFailure)
    assert outcome.ambiguous


def test_the_shortest_timeout_sent_is_a_millisecond(scripted: Script) -> None:
    """B13: a remaining time below a millisecond is sent as a millisecond, not as zero."""
    url, script = scripted
    script.replies[:] = [(200, JSON, b"{}")]
    http = HttpClient(url, token="x")
    http.post("/v1/x", {}, timeout_s=1e-3)  # so that it is connected
    for _ in range(20):
        try:
            http.post("/v1/x", {}, timeout_s=4e-4)
        except TimedOut:  # the machine was busy with something else
            continue
    http.close()

    times = {head["seriatim-timeout-s"] for head in script.request_headers}
    assert times == {"0.001"}


OWN: dict[str, dict[str, Any]] = {
    "nothing given": {},
    "event key": {"event": {"idempotency_key": "k"}},
    "append key": {"idempotency_key": "k"},
    "event id": {"event": {"event_id": "e"}},
    "command": {"command": Command(actor="a", endpoint="/x", key="c", response={"n": 1})},
}


def _append_marked(log: Log, how: dict[str, Any]) -> AppendResult:
    given = {name: value for name, value in how.items() if name != "event"}
    return log.append([NewEvent("marked", {}, **how.get("event", {}))], **given)


@pytest.mark.parametrize("how", OWN)
def test_a_retry_of_the_same_call_is_no_replay(
    quick: RunningService, tenant: str, how: str
) -> None:
    """B10: an append stored by a lost attempt of the same call is not reported as a replay."""
    token = quick.token(tenant_id=tenant)
    with TcpProxy(quick.url) as proxy, seriatim.open(proxy.url, token=token) as log:
        fault = proxy.drop_replies_after(b'"marked"', ends=b"")
        receipt = _append_marked(log, OWN[how])
        fault.wait()
        stored = list(log.read())

    assert not receipt.replayed
    assert [record.position for record in stored] == [receipt.first_position]
    assert receipt.response == ({"n": 1} if how == "command" else None)


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("how", [how for how in OWN if how != "nothing given"])
def test_a_repeat_of_an_earlier_call_is_a_replay(
    quick: RunningService, tenant: str, how: str, opened: str
) -> None:
    """B10: an append stored by an earlier call is a replay, also when an attempt was lost."""
    token = quick.token(tenant_id=tenant)
    with ExitStack() as stack:
        first = stack.enter_context(seriatim.open(quick.url, token=token))
        proxy = stack.enter_context(TcpProxy(quick.url))
        if opened == "after":
            _append_marked(first, OWN[how])
        log = stack.enter_context(seriatim.open(proxy.url, token=token))
        if opened == "before":
            _append_marked(log, OWN[how])
        fault = proxy.drop_replies_after(b'"marked"', ends=b"")
        receipt = _append_marked(log, OWN[how])
        fault.wait()
        assert len(list(log.read())) == 1

    assert receipt.replayed

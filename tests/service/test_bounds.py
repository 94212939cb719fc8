"""Limits of the service: bodies, responses, waits, tails and headers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.api.read_endpoints import RESPONSE_BYTES, STREAMS_MAX
from seriatim.api.service import SMALL_BODY_BYTES
from seriatim.api.tenant_limiter import TenantLimiter
from seriatim.core.errors import TimedOut
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_caller, make_event, open_tail
from tests.service.test_service_faults import head, raw

MIB = 1024 * 1024


# -- bodies


def longest_pause(service: RunningService, act: Callable[[], Any]) -> float:
    """Run a function, and return the longest time for which the event loop was blocked."""
    pauses: list[float] = []
    done = threading.Event()

    async def look() -> None:
        while not done.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            pauses.append(time.perf_counter() - began)

    looking = asyncio.run_coroutine_threadsafe(look(), service._loop)
    try:
        act()
    finally:
        done.set()
        looking.result(60)
    return max(pauses)


def test_too_many_events_are_refused_before_validation(quick: RunningService) -> None:
    """K3, K4: a body of a million small events is refused at once and delays no other request."""
    caller = make_caller(quick, tenant_id="many")
    body = b'{"events":[' + b",".join([b'{"event_type":"a"}'] * 600_000) + b"]}"
    for path in ("/v1/events", "/v1/appends"):
        sent = body if path == "/v1/events" else b'{"appends":[' + body + b"]}"
        responses: list[Any] = []
        pause = longest_pause(quick, lambda: responses.append(caller("POST", path, sent)))  # noqa: B023
        assert (responses[0].status, responses[0].code) == (413, "limit_exceeded")
        assert responses[0].json["details"]["limit"] == "append_events"
        assert pause < 5.0  # on a quiet machine less than one; it was seven


def test_bodies_of_requests_other_than_appends_have_a_lower_bound(quick: RunningService) -> None:
    """K3: a query over the bound of small bodies is refused by its length."""
    caller = make_caller(quick)
    body = json.dumps({"query": {"filters": [{"types": ["x" * SMALL_BODY_BYTES]}]}}).encode()
    response = caller("POST", "/v1/query", body)
    assert (response.status, response.json["details"]["limit"]) == (413, "request_bytes")


def test_a_refused_append_is_charged(serving: Callable[..., RunningService]) -> None:
    """K4: the bytes of a refused append are charged to the quota."""
    service = serving(bytes_per_s=300_000.0)
    caller = make_caller(service, tenant_id="t")
    refused = caller.append(make_event(payload={"a": "x" * (MIB + 1)}))
    assert refused.status == 413
    assert caller.append(make_event()).status == 429


def test_a_used_quota_is_reported_before_the_body_is_parsed(
    serving: Callable[..., RunningService],
) -> None:
    """K4: a tenant over its quota gets 429, also for a body that is not JSON."""
    service = serving(events_per_s=0.5)
    caller = make_caller(service, tenant_id="t")
    caller.append(*[make_event() for _ in range(50)])
    response = caller("POST", "/v1/events", b"no JSON at all")
    assert (response.status, response.code) == (429, "limit_exceeded")


@pytest.mark.parametrize("length", ["0" * 5000 + "2", "9" * 5000])
def test_a_content_length_of_many_digits_is_no_service_error(
    quick: RunningService, length: str
) -> None:
    """L1: a content length of 5000 digits is answered with 400 or 413."""
    caller = make_caller(quick)
    response = raw(quick.port, head(caller, "/v1/events", f"content-length: {length}"), b"{}")
    assert response.split(b" ", 2)[1] in (b"400", b"413"), response[:200]


# -- responses


@pytest.fixture(scope="module")
def heavy(quick: RunningService) -> str:
    """A tenant whose events exceed the size of one response."""
    caller = make_caller(quick, tenant_id="heavy")
    filler = "x" * 1_000_000
    for n in range(24):
        assert caller.append(make_event("big", {"n": n, "a": filler}, tags=["big"])).status == 201
    return "heavy"


def test_responses_with_large_events_end_early(quick: RunningService, heavy: str) -> None:
    """K3, E1: page, query and selection end early; the page says where to continue."""
    caller = make_caller(quick, tenant_id=heavy)
    every = {"query": {"filters": [{"tags": ["big"]}]}}
    page = caller("GET", "/v1/events")
    query = caller("POST", "/v1/query", every)
    found = caller(
        "POST", "/v1/query/records", {**every, "after": 0, "until": 10**9, "limit": 1000}
    )

    for response in (page, query, found):
        assert len(response.body) < RESPONSE_BYTES + 4 * MIB  # one step of the read more
        assert 0 < len(response.json["records"]) < 24
    numbers = [record["payload"]["n"] for record in page.json["records"]]
    while page.json.get("cut"):
        page = caller("GET", "/v1/events", after=page.json["last_scanned"])
        numbers += [record["payload"]["n"] for record in page.json["records"]]
    assert numbers == list(range(24))


def test_a_page_of_large_events_takes_little_memory(serving: Callable[..., RunningService]) -> None:
    """K3: a page over hundreds of megabytes ends early, and memory stays bounded."""
    service = serving()
    caller = make_caller(service, tenant_id="heavy")
    for n in range(300):
        caller.append(make_event("big", {"n": n, "a": "x" * 500_000}))
    before = psutil.Process().memory_info().rss
    page = caller("GET", "/v1/events", limit=10_000)
    size = len(page.body)
    grown = psutil.Process().memory_info().rss - before

    assert page.json["cut"]
    assert size < 120 * MIB
    assert grown < 600 * MIB


def test_the_client_continues_responses_that_ended_early(quick: RunningService, heavy: str) -> None:
    """D6, E1: the client requests the rest of responses that ended early."""
    with seriatim.open(quick.url, token=quick.token(tenant_id=heavy)) as log:
        query = seriatim.Query([seriatim.Filter(tags=["big"])])
        assert [record.payload["n"] for record in log.read()] == list(range(24))
        assert len(log.query(query).records) == 24
        assert len(log.query(query, limit=20).records) == 20
        assert len(log.page(limit=23).records) == 23
        assert len(log.store.select(heavy, query, 0, log.head(), 1000)) == 24
        seen = [record for batch in log.tail(query, after=0, idle_timeout=0) for record in batch]
        assert len(seen) == 24


def test_the_client_requests_many_streams_in_parts(quick: RunningService) -> None:
    """K3: the number of streams per request is bounded; the client sends several requests."""
    caller = make_caller(quick, tenant_id="streams")
    streams = [["s", str(n)] for n in range(STREAMS_MAX + 1)]
    assert caller("POST", "/v1/streams/last", {"streams": streams}).status == 400
    with seriatim.open(quick.url, token=quick.token(tenant_id="streams")) as log:
        log.append([NewEvent("a", stream=("s", "7"))])
        found = log.store.last_of_streams("streams", [("s", str(n)) for n in range(250)])
    assert [at for at, record in enumerate(found) if record is not None] == [7]


# -- waiting


async def test_the_wait_for_a_slot_times_out() -> None:
    """B13: a request that waits too long for a slot times out and leaves the queue."""
    turns = TenantLimiter(alone=1, beside=1, waiting=10)
    await turns.acquire("t", 60)
    with pytest.raises(TimedOut, match="nothing was done"):
        await turns.acquire("t", 0.01)
    turns.release("t")
    await turns.acquire("t", 60)
    turns.release("t")
    assert not turns._tenants


def test_queued_appends_end_with_their_timeout(
    serving: Callable[..., RunningService], tmp_path: Path
) -> None:
    """B13: appends queued for a locked database end with their own timeout."""
    service = serving(f"sqlite:///{tmp_path}/log.db", tenant_in_flight=2)
    caller = make_caller(service, tenant_id="t")
    assert caller.append(make_event()).status == 201
    took: list[float] = []

    def ask() -> None:
        began = time.monotonic()
        response = caller(
            "POST", "/v1/events", {"events": [make_event()]}, headers={"seriatim-timeout-s": "1"}
        )
        assert response.status in (503, 504)
        took.append(time.monotonic() - began)

    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("begin immediate")
    try:
        asking = [threading.Thread(target=ask) for _ in range(12)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(60)
    finally:
        lock.execute("rollback")
        lock.close()

    assert len(took) == 12
    assert max(took) < 4  # far below six seconds: one per pair of slots, in turn


# -- tails


def test_tails_of_a_tenant_are_bounded(serving: Callable[..., RunningService]) -> None:
    """K3, K4: a tenant over its bound of tails is refused, while another tenant can open one."""
    service = serving(tenant_tails=1)
    loud, calm = (make_caller(service, tenant_id=tenant) for tenant in ("loud", "calm"))
    with open_tail(loud, after=0) as first, open_tail(calm, after=0) as other:
        assert next(first.lines())["position"] == next(other.lines())["position"] == 0
        response = loud("GET", "/v1/tail", after=0)
        assert (response.status, response.json["details"]["limit"]) == (413, "tenant_tails")
    wait_until(lambda: not service.service.hub.tails_of, "all tails have ended")


def test_a_large_batch_does_not_block_the_event_loop(quick: RunningService) -> None:
    """K4: an append of thousands of events blocks the event loop for less than two seconds."""
    caller = make_caller(quick, tenant_id="batch")
    body = {"events": [make_event(payload={"n": n, "a": "x" * 400}) for n in range(8000)]}
    sent = json.dumps(body).encode()
    responses: list[Any] = []
    pause = longest_pause(quick, lambda: responses.append(caller("POST", "/v1/events", sent)))

    assert responses[0].status == 201
    assert len(responses[0].json["events"]) == 8000
    assert pause < 2.0

"""Quotas and the tenant limiter: requests of an excessive tenant wait, those of others do not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import seriatim
from seriatim import LimitExceeded, NewEvent
from seriatim.access.quotas import Quota, QuotaMeter
from seriatim.api.tenant_limiter import TenantLimiter
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, ServiceResponse, make_caller, make_event, open_tail

# -- quotas


def refused_after(caller: Caller, size: int, most: int = 200) -> tuple[int, ServiceResponse]:
    """Append until refused; return the number of accepted appends, and the refusal."""
    for taken in range(most):
        response = caller.append(make_event(payload={"a": "x" * size}))
        if response.status != 201:
            return taken, response
    raise AssertionError("never refused")


@pytest.mark.parametrize(
    ("quota", "size", "limit"),
    [({"events_per_s": 5.0}, 1, "events_per_s"), ({"bytes_per_s": 5000.0}, 2000, "bytes_per_s")],
)
def test_a_quota_is_reported_with_its_delay(
    serving: Callable[..., RunningService], quota: dict[str, float], size: int, limit: str
) -> None:
    """K4: a request over the quota gets 429 with its delay; other tenants continue."""
    service = serving(**quota)
    caller, other = (make_caller(service, tenant_id=tenant) for tenant in ("loud", "calm"))
    taken, response = refused_after(caller, size)
    details = response.json["details"]

    assert 1 <= taken <= 20
    assert (response.status, response.code, response.json["retryable"]) == (
        429,
        "limit_exceeded",
        True,
    )
    assert details["limit"] == limit
    assert 0 < details["retry_after_s"] <= int(response.headers["retry-after"]) <= 10
    assert other.append(make_event()).status == 201
    assert caller("GET", "/v1/events").status == 200
    time.sleep(details["retry_after_s"])
    assert caller.append(make_event()).status == 201


def test_a_quota_takes_effect_without_restart(serving: Callable[..., RunningService]) -> None:
    """K4: a quota that is set or removed in the database takes effect within seconds."""
    service = serving()
    access, caller = service.service.access, make_caller(service, tenant_id="t")
    access.set_quota(Quota(tenant_id="t", events_per_s=1.0))
    wait_until(lambda: caller.append(make_event()).status == 429, "bounded", within_s=10)
    access.remove_quota("t")
    wait_until(
        lambda: all(caller.append(make_event()).status == 201 for _ in range(5)),
        "free",
        within_s=10,
    )


def test_the_quota_meter_counts_exactly() -> None:
    """K4: the meter grants two seconds of a rate; a large append passes and leaves a debt."""
    meter = QuotaMeter(Quota(tenant_id="*", events_per_s=10.0), processes=2)
    now = 100.0
    meter.charge("t", 10, 0, now)  # half of the rate is this process's, for two seconds
    with pytest.raises(LimitExceeded) as caught:
        meter.charge("t", 1, 0, now)
    wait = caught.value.details["retry_after_s"]
    with pytest.raises(LimitExceeded):
        meter.charge("t", 1, 0, now + wait - 0.002)
    meter.charge("t", 1000, 0, now + wait + 0.001)  # into debt
    with pytest.raises(LimitExceeded) as caught:
        meter.charge("t", 1, 0, now + wait + 1)
    assert caught.value.details["retry_after_s"] > 190
    meter.charge("other", 1, 0, now)


def test_the_client_waits_for_its_quota(serving: Callable[..., RunningService]) -> None:
    """K4: appends of a client over its quota are delayed, and all are stored."""
    service = serving(events_per_s=20.0)
    token = service.token(tenant_id="t")
    with seriatim.open(service.url, token=token) as log:
        began = time.monotonic()
        for n in range(60):
            log.append([NewEvent("x", {"n": n})])
        took = time.monotonic() - began
        stored = [record.payload_json for record in log.read()]

    assert len(stored) == 60
    assert took > 0.8  # 40 at once, the other 20 at 20 a second


def test_a_short_timeout_reports_the_quota(serving: Callable[..., RunningService]) -> None:
    """K4: if the delay exceeds the caller's timeout, the refusal is raised, marked retryable."""
    service = serving(events_per_s=0.5)
    with seriatim.open(service.url, token=service.token(tenant_id="t")) as log:
        log.append([NewEvent("x", {})] * 20)
        with pytest.raises(LimitExceeded) as caught:
            log.append([NewEvent("x", {})], timeout=0.5)

    assert caught.value.retryable
    assert caught.value.details["retry_after_s"] > 1


# -- slots


async def test_a_flood_leaves_slots_for_other_tenants() -> None:
    """K4: while one tenant queues 500 requests, another gets a slot within a few."""
    turns = TenantLimiter(alone=8, beside=2, waiting=1000)
    order: list[str] = []

    async def act(tenant: str) -> None:
        async with turns.slot(tenant, 60):
            await asyncio.sleep(0)
            order.append(tenant)

    flood = [asyncio.create_task(act("loud")) for _ in range(500)]
    await asyncio.sleep(0)
    places = []
    for _ in range(10):
        before = len(order)
        await act("calm")
        places.append(len(order) - before)
    await asyncio.gather(*flood)

    assert max(places) <= 1 + 8 + 2  # itself, those that run already, and the next few
    assert order.count("loud") == 500
    assert not turns._tenants


async def test_slots_are_granted_in_order_and_bounded() -> None:
    """B13: requests run in order of arrival; requests over the bound are refused at once."""
    turns = TenantLimiter(alone=1, beside=1, waiting=3)
    order: list[int] = []

    async def act(number: int) -> None:
        async with turns.slot("t", 60):
            order.append(number)
            await asyncio.sleep(0)

    async with turns.slot("t", 60):
        waiting = [asyncio.create_task(act(n)) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(LimitExceeded, match="queued already") as caught:
            await act(9)
        async with turns.slot("other", 60):
            pass
    await asyncio.gather(*waiting)

    assert order == [0, 1, 2]
    assert caught.value.retryable
    assert caught.value.details["bound"] == 3


async def test_a_cancelled_wait_releases_its_slot() -> None:
    """B13: a request cancelled before or just after it got a slot releases it."""
    turns = TenantLimiter(alone=1, beside=1, waiting=100)
    for given in (False, True):
        await turns.acquire("t", 60)
        first, second = (asyncio.create_task(turns.acquire("t", 60)) for _ in range(2))
        await asyncio.sleep(0)
        if given:
            turns.release("t")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        if not given:
            turns.release("t")
        await asyncio.wait_for(second, 5)
        turns.release("t")
    assert not turns._tenants


# -- one tenant's flood


def latencies(caller: Caller, count: int) -> list[float]:
    """Append a number of times, and return the sorted durations."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        assert caller.append(make_event()).status == 201
        took.append(time.perf_counter() - began)
    return sorted(took)


def run_during_flood(loud: Caller, act: Callable[[], Any], *, threads: int = 16) -> Any:
    """Run a function while a tenant floods the service."""
    done = threading.Event()

    def flood() -> None:
        while not done.is_set():
            loud.append(*(make_event(payload={"a": "x" * 200}) for _ in range(50)))

    flooding = [threading.Thread(target=flood) for _ in range(threads)]
    for thread in flooding:
        thread.start()
    try:
        return act()
    finally:
        done.set()
        for thread in flooding:
            thread.join(60)


def test_a_flood_of_one_tenant_does_not_starve_another(service: RunningService) -> None:
    """K4: appends of a tenant succeed in bounded time while another floods the service.

    Flood and service share this process, so times here are bounded loosely; the benchmark of the
    service measures them.
    """
    loud, calm = (make_caller(service, tenant_id=tenant) for tenant in ("loud", "calm"))
    quiet = latencies(calm, 40)
    during = run_during_flood(loud, lambda: latencies(calm, 40))

    assert len(quiet) == len(during) == 40
    assert during[-1] < 5.0


def test_a_flood_is_refused_with_a_delay(serving: Callable[..., RunningService]) -> None:
    """K4: a tenant over the bound of queued appends gets 429 with Retry-After; others do not."""
    service = serving(tenant_in_flight=1, tenant_waiting=2)
    loud, calm = (make_caller(service, tenant_id=tenant) for tenant in ("loud", "calm"))
    lock = service.service.append_limiter
    statuses: list[int] = []

    def ask() -> None:
        response = loud.append(make_event())
        statuses.append(response.status)
        if response.status == 429:
            assert response.headers["retry-after"] == "1"

    held = asyncio.run_coroutine_threadsafe(lock.acquire("loud", 60), service._loop)
    held.result(10)
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) == 4, "four are refused")
    assert calm.append(make_event()).status == 201
    service._loop.call_soon_threadsafe(lock.release, "loud")
    for thread in threads:
        thread.join(30)

    assert sorted(statuses) == [201, 201, 429, 429, 429, 429]


# -- one tenant's slow reads


class Gate:
    """Block the queries of one tenant until it is opened."""

    def __init__(
        self, service: RunningService, tenant_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.entered = 0
        self._opened = threading.Event()
        store = service.service.log.store
        select = store.select

        def held(tenant: str, *rest: Any, **order: Any) -> Any:
            if tenant == tenant_id:
                self.entered += 1
                self._opened.wait(60)
            return select(tenant, *rest, **order)

        monkeypatch.setattr(store, "select", held)

    def open(self) -> None:
        """Let all queries through."""
        self._opened.set()


def start_queries(caller: Caller, count: int) -> tuple[list[threading.Thread], list[int]]:
    """Run concurrent queries; return the threads, and the statuses of their responses."""
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(caller("POST", "/v1/query", {"query": {}}).status)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, statuses


def test_slow_reads_of_one_tenant_do_not_delay_others(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: while one tenant's reads occupy its slots, another appends, queries, reads and tails."""
    gate = Gate(service, "slow", monkeypatch)
    serving = service.service.settings
    slow = make_caller(service, tenant_id="slow")
    assert slow.append(make_event()).status == 201
    threads, statuses = start_queries(slow, serving.threads + 8)
    wait_until(lambda: gate.entered >= serving.tenant_reads, "the slots of the tenant are occupied")
    try:
        calm = make_caller(service, tenant_id="calm")  # with a token that is not cached yet
        assert calm.append(make_event(tags=["a"])).status == 201
        seen = calm("POST", "/v1/query", {"query": {"filters": [{"tags": ["a"]}]}}).json
        again = {"events": [make_event()], "query": {"filters": [{"tags": ["a"]}]}}
        again["expected_version"] = seen["context_version"]
        assert calm("POST", "/v1/append-if", again).status == 201
        assert calm("GET", "/v1/events").status == 200
        with open_tail(calm, after=0) as tail:
            assert next(iter(tail.lines()))["records"]
        assert slow.append(make_event()).status == 201  # appends have slots of their own
        assert gate.entered <= serving.tenant_reads
        assert not statuses
    finally:
        gate.open()
        for thread in threads:
            thread.join(60)
    assert statuses == [200] * len(threads)


def test_a_slot_lasts_until_the_read_has_ended(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: a read that timed out keeps its slot until its thread has ended."""
    service = serving(request_timeout_s=0.3, tenant_reads=1, tenant_reads_beside=1)
    gate = Gate(service, "t", monkeypatch)
    caller = make_caller(service, tenant_id="t")
    assert caller.append(make_event()).status == 201
    late = [caller("POST", "/v1/query", {"query": {}}) for _ in range(3)]
    entered = gate.entered
    gate.open()
    wait_until(
        lambda: caller("POST", "/v1/query", {"query": {}}).status == 200, "the slot is released"
    )

    assert [(one.status, one.code) for one in late] == [(504, "timeout")] * 3
    assert entered == 1

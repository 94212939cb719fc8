"""Appends that an event loop sends to a service: each has one outcome, also after failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import seriatim
from seriatim import BackendFailure, EventSequenceInvalid, NewEvent, Settings
from seriatim.client.connection_pool import ConnectionPool
from seriatim.client.store import HttpStore
from tests.faults.event_loops import close_during_appends, gather_outcomes, make_event
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import RunningService
from tests.service.service_process import run_service_process

APPENDS = b"/v1/appends"


def idle(log: seriatim.Log) -> list[Any]:
    """Return the idle connections."""
    return cast("HttpStore", log.store).http._connections._idle


async def warm_up(log: seriatim.Log) -> None:
    """Append concurrently until two connections are open and no thread is needed."""
    for _ in range(200):
        await asyncio.gather(*(log.aio.append([NewEvent("warm", {})]) for _ in range(60)))
        if len(idle(log)) > 1:
            return
    pytest.fail("no second connection was opened")


def run(url: str, token: str, act: Callable[[seriatim.Log], Awaitable[Any]], **options: Any) -> Any:
    """Run a function on a log with open connections, within one event loop."""

    async def whole() -> Any:
        with seriatim.open(url, token=token, **options) as log:
            await warm_up(log)
            return await act(log)

    return asyncio.run(whole())


def stored(service: RunningService, tenant: str) -> list[str]:
    """Return the sorted ids of the stored events."""
    return sorted(record.event_id for record in service.service.view(tenant).read(types=["placed"]))


def test_the_event_loop_sends_groups_without_threads(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B9: with open connections the event loop sends groups itself; receipts are the same."""

    async def act(log: seriatim.Log) -> list[Any]:
        monkeypatch.setattr(log.appender.submission.threads, "submit", pytest.fail)
        return await gather_outcomes(*(log.aio.append(make_event(f"e-{n}")) for n in range(50)))

    receipts = run(service.url, service.token(tenant_id="group"), act)
    records = [receipt.records[0] for receipt in receipts]

    assert not any(receipt.replayed for receipt in receipts)
    assert [record.event_id for record in records] == [f"e-{n}" for n in range(50)]
    assert {(record.actor_type, record.actor_id) for record in records} == {
        ("service_principal", "tester")
    }
    assert stored(service, "group") == sorted(f"e-{n}" for n in range(50))


def test_an_append_that_is_refused_fails_alone(service: RunningService) -> None:
    """B9, L2: an append that the service refuses fails alone."""

    async def act(log: seriatim.Log) -> list[Any]:
        good = [log.aio.append(make_event(f"e-{n}", stream=("s", "1"))) for n in range(10)]
        gap = [
            log.aio.append(make_event(f"g-{n}", stream=("s", str(n)), stream_seq=7)) for n in (2, 3)
        ]
        return await gather_outcomes(*good, *gap)

    found = run(service.url, service.token(tenant_id="bad"), act)

    assert [one.count for one in found[:10]] == [1] * 10
    assert [type(one) for one in found[10:]] == [EventSequenceInvalid] * 2


def test_tenants_share_a_client(service: RunningService) -> None:
    """B8, K2: concurrent appends of several tenants each go to their own tenant."""

    async def act(log: seriatim.Log) -> list[Any]:
        views = [log.for_tenant(name) for name in ("one", "two")]
        return await gather_outcomes(
            *(views[n % 2].aio.append(make_event(f"e-{n}")) for n in range(20))
        )

    found = run(service.url, service.token(), act)

    assert [one.count for one in found] == [1] * 20
    assert stored(service, "one") == sorted(f"e-{n}" for n in range(0, 20, 2))


@pytest.mark.parametrize("seen", [True, False])
def test_appends_over_a_lost_connection_are_stored_once(
    service: RunningService, seen: bool
) -> None:
    """B10: a lost request, received by the service or not, is sent again and stored once."""
    tenant = f"lost-{seen}"

    async def act(log: seriatim.Log) -> list[Any]:
        if seen:
            proxy.drop_replies_after(APPENDS, ends=b"")
        else:
            proxy.drop_requests_with(APPENDS)
        return await gather_outcomes(*(log.aio.append(make_event(f"e-{n}")) for n in range(6)))

    with TcpProxy(service.url) as proxy:
        found = run(proxy.url, service.token(tenant_id=tenant), act)

    assert [(one.count, one.replayed) for one in found] == [(1, False)] * 6
    assert stored(service, tenant) == [f"e-{n}" for n in range(6)]


def test_appends_to_a_silent_service_are_ambiguous(quick: RunningService) -> None:
    """B13: an append without a response is ambiguous; later appends use another connection."""

    async def act(log: seriatim.Log) -> tuple[list[Any], list[Any]]:
        proxy.pause()
        lost = await gather_outcomes(
            *(log.aio.append(make_event(f"e-{n}"), timeout=0.3) for n in range(4))
        )
        await asyncio.sleep(2.0)  # until the request itself has timed out
        proxy.resume()
        return lost, await gather_outcomes(
            *(log.aio.append(make_event(f"e-{n}")) for n in range(4))
        )

    settings = Settings(timeout_s=0.5)
    with TcpProxy(quick.url) as proxy:
        lost, again = run(proxy.url, quick.token(tenant_id="mute"), act, settings=settings)

    assert all(isinstance(one, BackendFailure) and one.ambiguous for one in lost)
    assert [one.count for one in again] == [1] * 4
    assert stored(quick, "mute") == [f"e-{n}" for n in range(4)]


def test_an_append_is_cancelled_while_in_flight(quick: RunningService) -> None:
    """B13: a cancelled append ends; its group completes, and a repeat finds the stored event."""

    async def act(log: seriatim.Log) -> tuple[Any, Any]:
        proxy.pause()
        sent = asyncio.create_task(log.aio.append(make_event("sent")))
        neighbour = asyncio.create_task(log.aio.append(make_event("neighbour")))
        await asyncio.sleep(0.05)
        sent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sent
        proxy.resume()
        return await neighbour, await log.aio.append(make_event("sent"))

    with TcpProxy(quick.url) as proxy:
        neighbour, again = run(proxy.url, quick.token(tenant_id="cancelled"), act)

    assert (neighbour.count, again.count) == (1, 1)
    assert stored(quick, "cancelled") == ["neighbour", "sent"]


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_closing_completes_appends_in_progress(quick: RunningService, where: str) -> None:
    """B13: closing completes accepted appends, whichever thread closes the log."""
    tenant = f"closing-{where}"

    async def act(log: seriatim.Log) -> list[Any]:
        return await close_during_appends(log, proxy, where)

    with TcpProxy(quick.url) as proxy:
        found = run(proxy.url, quick.token(tenant_id=tenant), act)

    assert [one.count for one in found] == [1] * 12
    assert stored(quick, tenant) == sorted(f"e-{n}" for n in range(12))


def test_appends_over_the_quota_are_delayed(serving: Callable[..., RunningService]) -> None:
    """K4: temporarily refused appends are repeated after the requested delay; all are stored."""
    service = serving(events_per_s=200.0)

    async def act(log: seriatim.Log) -> tuple[list[Any], float]:
        began = time.monotonic()
        found = await gather_outcomes(*(log.aio.append(make_event(f"e-{n}")) for n in range(600)))
        return found, time.monotonic() - began

    found, took = run(service.url, service.token(tenant_id="t"), act)

    assert [one.count for one in found] == [1] * 600
    assert took > 0.5


def test_a_log_works_after_its_event_loop_has_ended(quick: RunningService) -> None:
    """B13: appends of a loop that ended are abandoned, and the log works in another loop."""
    with (
        TcpProxy(quick.url) as proxy,
        seriatim.open(proxy.url, token=quick.token(tenant_id="ended")) as log,
    ):

        async def left() -> None:
            await warm_up(log)
            proxy.pause()
            task = asyncio.create_task(log.aio.append(make_event("left")))
            await asyncio.sleep(0.05)
            task.cancel()

        asyncio.run(left())
        proxy.resume()
        assert asyncio.run(log.aio.append(make_event("right"))).count == 1
        assert log.append(make_event("sync")).count == 1


def test_the_event_loop_sends_large_appends_over_tls(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """B9: concurrent appends of 40 kB each are stored over TLS."""
    cert, key = certificate
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(url, "--certificate", str(cert), "--key", str(key)) as service:
        token = service.caller().token
        assert token is not None

        async def act(log: seriatim.Log) -> list[Any]:
            big = "x" * 40_000
            appends = [NewEvent("placed", {"big": big}, event_id=f"e-{n}") for n in range(60)]
            return await gather_outcomes(*(log.aio.append([append]) for append in appends))

        found = run(service.at, token, act, verify=str(cert))

    assert [one.count for one in found] == [1] * 60


def test_appends_use_threads_when_responses_are_chunked(quick: RunningService) -> None:
    """E6: after a chunked response, as from a proxy, threads send the appends."""
    log = seriatim.open(quick.url, token=quick.token(tenant_id="pieces"))
    with log:
        used: ConnectionPool = cast("HttpStore", log.store).http._connections
        assert used.has_content_length
        connection = used.acquire_idle()
        assert connection is not None
        used.release(connection, {"transfer-encoding": "chunked"})
        assert not log.store.can_begin_append(cast("Any", type("R", (), {"encoded": b""})()))
        assert asyncio.run(log.aio.append(make_event("e"))).count == 1

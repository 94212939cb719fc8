"""Appends of the async committer: lost responses, timeouts, cancellation, ended loops."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.core.guard import Guard, ScannedEvent, Violation
from tests.faults.event_loops import close_during_appends, gather_outcomes, make_event
from tests.faults.support import check_log_complete
from tests.fixtures.proxy import TcpProxy

StartProxy = Callable[[str], TcpProxy]
PATIENCE_S = 20


async def warm_up(log: seriatim.Log) -> None:
    """Append concurrently until two connections are idle and no thread is needed."""
    writer = log.store._writer  # type: ignore[attr-defined]
    for _ in range(100):
        await asyncio.gather(*(log.aio.append([NewEvent("warm", {})]) for _ in range(60)))
        if len(writer._idle) > 1:
            return
    pytest.fail("no second connection was opened")


def run(
    url: str, act: Callable[[seriatim.Log], Awaitable[Any]], guard: Guard | str = "default"
) -> Any:
    """Run a function on a log with open connections, within one event loop."""

    async def whole() -> Any:
        with seriatim.open(url, guard=guard) as log:
            await warm_up(log)
            return await act(log)

    return asyncio.run(whole())


def test_event_loop_commits_without_threads(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B9: on a warm log the loop commits whole groups by itself, in order."""

    async def act(log: seriatim.Log) -> list[Any]:
        monkeypatch.setattr(log.appender.submission.threads, "submit", pytest.fail)
        return await gather_outcomes(*(log.aio.append(make_event(f"e-{n}")) for n in range(50)))

    receipts = run(postgres_url, act)

    first = min(
        receipt.first_position for receipt in receipts
    )  # two groups may be in flight at once
    assert sorted(receipt.first_position for receipt in receipts) == list(range(first, first + 50))
    check_log_complete(postgres_url)


def test_one_invalid_append_does_not_fail_the_group(postgres_url: str) -> None:
    """B9, L2: a group with a refused append is validated again; each append has its own outcome."""

    async def act(log: seriatim.Log) -> list[Any]:
        await log.aio.append(make_event("known"))
        good = [log.aio.append(make_event(f"e-{n}", stream=("s", "1"))) for n in range(10)]
        gap = [
            log.aio.append(make_event(f"g-{n}", stream=("s", str(n)), stream_seq=7)) for n in (2, 3)
        ]
        again = [
            log.aio.append(make_event("known")),
            log.aio.append(make_event("e-0", stream=("s", "1"))),
        ]
        return await gather_outcomes(*good, *gap, *again)

    found = run(postgres_url, act)

    assert [one.count for one in found[:10]] == [1] * 10
    assert {one.code for one in found[10:12]} == {"event_sequence_invalid"}
    assert found[12].replayed
    assert found[13].first_position == found[0].first_position
    assert sum(one.replayed for one in (found[0], found[13])) == 1
    check_log_complete(postgres_url)


SECRET = {"note": "AKIA" + "A1" * 8}


@pytest.mark.parametrize("filler", [0, 5000], ids=["one pass", "several passes"])
def test_the_guard_refuses_single_appends_of_a_group(postgres_url: str, filler: int) -> None:
    """K1, B9: of appends that are scanned together, only those with a secret are refused."""

    async def act(log: seriatim.Log) -> list[Any]:
        texts: list[dict[str, Any]] = [{"n": n, "text": "a" * filler} for n in range(30)]
        texts[7] = texts[29] = SECRET
        return await gather_outcomes(
            *(log.aio.append([NewEvent("noted", text)]) for text in texts),
            log.aio.append([NewEvent("noted", {}), NewEvent("noted", SECRET)]),
        )

    found = run(postgres_url, act)

    refused = {
        n: one.details
        for n, one in enumerate(found)
        if isinstance(one, seriatim.PiiPolicyViolation)
    }
    violation = {"guard": "default", "rule": "aws_key_id", "path": "$.note"}
    assert refused == {
        7: {**violation, "index": 0},
        29: {**violation, "index": 0},
        30: {**violation, "index": 1},
    }
    assert count_noted(postgres_url) == 28
    check_log_complete(postgres_url)


def count_noted(url: str) -> int:
    """Return how many events of the type `noted` are stored."""
    with seriatim.open(url) as log:
        return sum(record.event_type == "noted" for record in log.read())


@pytest.mark.parametrize(
    "settings",
    [seriatim.Settings(), seriatim.Settings(numbered_by="caller")],
    ids=["log", "caller"],
)
def test_what_the_guard_rejects_is_reported_before_later_checks(
    settings: seriatim.Settings,
) -> None:
    """B4: of two problems an event loop reports the same one as a thread: that of the guard."""
    secret = NewEvent("noted", SECRET, stream=("s", "1"), event_id="same")
    appends = [[secret, NewEvent("noted", {}, stream=("s", "1"), event_id="same")], [secret]]

    with seriatim.open("memory:", settings=settings) as log:
        for events in appends:
            with pytest.raises(seriatim.PiiPolicyViolation):
                log.append(events)
            with pytest.raises(seriatim.PiiPolicyViolation):
                asyncio.run(log.aio.append(events))


class FailingGuard:
    """A guard with a defect: it fails for the payload that asks for it."""

    name = "failing"

    def scan(self, event: ScannedEvent) -> Violation | None:
        """Fail for one payload."""
        if "fail" in event.payload_text:
            raise ZeroDivisionError
        return None


def test_a_failing_guard_fails_its_append_alone(postgres_url: str) -> None:
    """K1, L2: the error of a custom guard reaches its caller, and no other append hangs."""

    async def act(log: seriatim.Log) -> list[Any]:
        good = [log.aio.append([NewEvent("noted", {"n": n})]) for n in range(5)]
        bad = log.aio.append([NewEvent("noted", {"fail": True})])
        return await asyncio.wait_for(
            asyncio.gather(*good, bad, return_exceptions=True), PATIENCE_S
        )

    found = run(postgres_url, act, guard=FailingGuard())

    assert [type(one) for one in found] == [seriatim.AppendResult] * 5 + [ZeroDivisionError]
    check_log_complete(postgres_url)


def test_queued_appends_are_scanned_before_close_commits_them(postgres_url: str) -> None:
    """K1, B13: closing commits what is queued, but nothing that the guard rejects."""

    async def act(log: seriatim.Log) -> list[Any]:
        tasks = [
            asyncio.ensure_future(log.aio.append([NewEvent("noted", payload)]))
            for payload in ({"n": 1}, SECRET, {"n": 2})
        ]
        before = asyncio.get_running_loop().call_soon
        before(log.close)  # after the tasks have queued their appends, before they are sent
        return await gather_outcomes(*tasks)

    found = run(postgres_url, act)

    assert [type(one) for one in found] == [
        seriatim.AppendResult,
        seriatim.PiiPolicyViolation,
        seriatim.AppendResult,
    ]
    assert count_noted(postgres_url) == 2
    check_log_complete(postgres_url)


def test_a_lost_response_is_ambiguous_for_all(proxy_to: StartProxy, postgres_url: str) -> None:
    """B10, L2: all appends of a lost group are ambiguous, and all repeats resolve."""
    proxy = proxy_to(postgres_url)

    async def act(log: seriatim.Log) -> tuple[list[Any], list[Any], int]:
        before = log.head()
        proxy.drop_replies_after(b"append_events")
        lost = await gather_outcomes(*(log.aio.append(make_event(f"e-{n}")) for n in range(6)))
        again = await gather_outcomes(*(log.aio.append(make_event(f"e-{n}")) for n in range(6)))
        return lost, again, before

    lost, again, before = run(proxy.url, act)

    assert all(isinstance(one, seriatim.BackendFailure) and one.ambiguous for one in lost)
    assert sorted(one.first_position - before for one in again) == [1, 2, 3, 4, 5, 6]
    assert check_log_complete(postgres_url) == before + 6


def test_timeout_before_and_after_the_send(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: a timeout before the send is `timeout`, one after it ambiguous; repeats store once."""
    proxy = proxy_to(postgres_url)

    async def act(log: seriatim.Log) -> list[Any]:
        proxy.pause()
        flying = [asyncio.create_task(log.aio.append(make_event("a"), timeout=0.5))]
        await asyncio.sleep(0.1)
        flying.append(asyncio.create_task(log.aio.append(make_event("b"), timeout=0.4)))
        await asyncio.sleep(0.1)
        late = log.aio.append(make_event("late"), timeout=0.1)
        found = await gather_outcomes(late, *flying)
        proxy.resume()
        await gather_outcomes(*(log.aio.append(make_event(name)) for name in ("a", "b", "late")))
        stored = [record.event_id async for record in log.aio.read(types=["placed"])]
        return [*found, sorted(stored)]

    late, first, second, stored = run(proxy.url, act)

    assert isinstance(late, seriatim.TimedOut)
    assert (first.ambiguous, second.ambiguous) == (True, True)
    assert stored == ["a", "b", "late"]
    check_log_complete(postgres_url)


def test_cancelled_append_after_the_send(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: a cancelled append that was sent may be stored; a repeat finds its one copy."""
    proxy = proxy_to(postgres_url)

    async def act(log: seriatim.Log) -> tuple[Any, Any]:
        proxy.pause()
        sent = asyncio.create_task(log.aio.append(make_event("sent")))
        await asyncio.sleep(0.05)
        neighbour = asyncio.create_task(log.aio.append(make_event("neighbour")))
        await asyncio.sleep(0.05)
        sent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sent
        proxy.resume()
        return await neighbour, await log.aio.append(make_event("sent"))

    neighbour, again = run(proxy.url, act)

    assert not neighbour.replayed
    assert again.count == 1
    assert check_log_complete(postgres_url) == max(neighbour.last_position, again.last_position)
    check_log_complete(postgres_url)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_close_completes_appends_in_flight(
    proxy_to: StartProxy, postgres_url: str, where: str
) -> None:
    """B13: close completes accepted appends, in whichever thread it is called."""
    proxy = proxy_to(postgres_url)

    async def act(log: seriatim.Log) -> list[Any]:
        found = await close_during_appends(log, proxy, where)
        with pytest.raises(seriatim.BackendFailure) as caught:
            await log.aio.append(make_event("late"))
        assert not caught.value.retryable
        return found

    found = run(proxy.url, act)

    assert [one.count for one in found] == [1] * 12
    check_log_complete(postgres_url)


def test_ended_loop_releases_its_connection(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: a loop that ends during an append is released, and the log works in another loop."""
    proxy = proxy_to(postgres_url)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def begin(log: seriatim.Log) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await warm_up(log)
        proxy.pause()
        asyncio.get_running_loop().create_task(log.aio.append(make_event("sent")))
        await asyncio.sleep(0.05)

    with seriatim.open(proxy.url) as log:
        asyncio.run(begin(log))
        gc.collect()
        proxy.resume()
        assert loops[0]() is None
        assert log.append(make_event("sent")).count == 1
        assert asyncio.run(log.aio.append(make_event("sent"))).replayed

    check_log_complete(postgres_url)

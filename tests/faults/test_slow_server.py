"""A server that does not respond: timeouts, cancellation, a full queue, and close."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import seriatim
from seriatim import Limits, NewEvent, Settings
from tests.faults.support import check_log_complete, wait_until
from tests.fixtures.proxy import TcpProxy

StartProxy = Callable[[str], TcpProxy]
ONE_WRITER = Settings(writers=1)


def event(name: str) -> list[NewEvent]:
    """Make an append that a repeat finds again."""
    return [NewEvent("placed", {"name": name}, event_id=name)]


def taken(log: seriatim.Log) -> bool:
    """Tell whether the writer has taken all that waited."""
    return not log.appender.committer._queue


class Stuck:
    """A log whose one writer is in the middle of an append that the server does not answer."""

    def __init__(self, proxy: TcpProxy, settings: Settings = ONE_WRITER) -> None:
        self.log = seriatim.open(proxy.url, settings=settings)
        self.log.append(event("first"))
        self.pool = ThreadPoolExecutor(16)
        proxy.pause()
        self.sent: Future[Any] = self.pool.submit(self.log.append, event("sent"))
        time.sleep(0.1)
        wait_until(lambda: taken(self.log), "the writer to take the append")

    def ids(self) -> list[str]:
        """Return the ids of all stored events."""
        return [record.event_id for record in self.log.read()]

    def close(self) -> None:
        """Let go of everything."""
        self.pool.shutdown()
        self.log.close()


def test_timeout_before_the_send_leaves_nothing(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: an append whose time runs out in the queue is withdrawn: `timeout`, nothing stored."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    with pytest.raises(seriatim.TimedOut) as timed_out:
        stuck.log.append(event("queued"), timeout=0.3)
    proxy.resume()
    stuck.sent.result(timeout=10)
    stuck.log.append(event("last"))

    assert (timed_out.value.code, timed_out.value.retryable) == ("timeout", True)
    assert stuck.ids() == ["first", "sent", "last"]
    stuck.close()


def test_timeout_after_the_send_is_ambiguous(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: sent but not answered in time is ambiguous, and the repeat resolves to one copy."""
    proxy = proxy_to(postgres_url)
    with seriatim.open(proxy.url, settings=ONE_WRITER) as log:
        log.append(event("first"))
        proxy.pause()
        started = time.monotonic()
        with pytest.raises(seriatim.BackendFailure) as failed:
            log.append(event("sent"), timeout=0.5)
        took = time.monotonic() - started
        proxy.resume()
        receipt = log.append(event("sent"))

    assert failed.value.ambiguous
    assert took < 3.0
    assert receipt.replayed
    assert check_log_complete(postgres_url) == 2


async def test_cancelled_await(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: cancelled before the send leaves nothing; after it, a repeat resolves to one copy."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    queued = asyncio.create_task(stuck.log.aio.append(event("queued")))
    await asyncio.sleep(0.2)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    proxy.resume()
    await asyncio.wrap_future(stuck.sent)
    proxy.pause()
    sent = asyncio.create_task(stuck.log.aio.append(event("cancelled")))
    await asyncio.sleep(0.3)
    assert taken(stuck.log)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent
    proxy.resume()
    await stuck.log.aio.append(event("cancelled"))

    assert await asyncio.to_thread(stuck.ids) == ["first", "sent", "cancelled"]
    await asyncio.to_thread(stuck.close)


async def test_awaited_timeouts(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: the awaited append has the same timeouts: clear in the queue, ambiguous once sent."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    with pytest.raises(seriatim.TimedOut):
        await stuck.log.aio.append(event("queued"), timeout=0.3)
    proxy.resume()
    await asyncio.wrap_future(stuck.sent)
    proxy.pause()
    with pytest.raises(seriatim.BackendFailure) as failed:
        await stuck.log.aio.append(event("late"), timeout=0.5)
    proxy.resume()
    await stuck.log.aio.append(event("late"))

    assert failed.value.ambiguous
    assert await asyncio.to_thread(stuck.ids) == ["first", "sent", "late"]
    await asyncio.to_thread(stuck.close)


def test_full_queue_refuses_at_once(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: a full queue refuses with a retryable `limit_exceeded`; accepted appends are stored."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy, Settings(writers=1, limits=Limits(queue_events=3)))
    queued = [stuck.pool.submit(stuck.log.append, event(f"q-{number}")) for number in range(3)]
    wait_until(lambda: len(stuck.log.appender.committer._queue) == 3, "three in the queue")
    with pytest.raises(seriatim.LimitExceeded) as refused:
        stuck.log.append(event("too many"))
    proxy.resume()
    for future in (stuck.sent, *queued):
        future.result(timeout=10)
    stuck.log.append(event("last"))

    assert (refused.value.retryable, refused.value.details["limit"]) == (True, "queue_events")
    assert sorted(stuck.ids()) == sorted(["first", "sent", "q-0", "q-1", "q-2", "last"])
    stuck.close()


def test_close_drains_what_was_accepted(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: closing waits for all that was accepted, and refuses what comes later."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    queued = [stuck.pool.submit(stuck.log.append, event(f"q-{number}")) for number in range(10)]
    wait_until(lambda: len(stuck.log.appender.committer._queue) == 10, "ten in the queue")
    closing = stuck.pool.submit(stuck.log.close)
    time.sleep(0.2)
    assert not closing.done()
    with pytest.raises(seriatim.BackendFailure) as refused:
        stuck.log.append(event("too late"))
    proxy.resume()
    for future in (stuck.sent, *queued):
        future.result(timeout=10)
    closing.result(timeout=10)

    assert (refused.value.retryable, refused.value.ambiguous) == (False, False)
    assert check_log_complete(postgres_url) == 12
    stuck.pool.shutdown()

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


def make_append(name: str) -> list[NewEvent]:
    """Make an append that a repeat finds."""
    return [NewEvent("placed", {"name": name}, event_id=name)]


def queue_is_empty(log: seriatim.Log) -> bool:
    """Return whether the writer has taken all queued appends."""
    return not log.appender.submission.threads.queued


class Stuck:
    """A log whose one writer is in the middle of an append that the server does not answer."""

    def __init__(self, proxy: TcpProxy, settings: Settings = ONE_WRITER) -> None:
        self.log = seriatim.open(proxy.url, settings=settings)
        self.log.append(make_append("first"))
        self.pool = ThreadPoolExecutor(16)
        proxy.pause()
        self.sent: Future[Any] = self.pool.submit(self.log.append, make_append("sent"))
        time.sleep(0.1)
        wait_until(lambda: queue_is_empty(self.log), "the writer to take the append")

    def ids(self) -> list[str]:
        """Return the ids of all stored events."""
        return [record.event_id for record in self.log.read()]

    def close(self) -> None:
        """Close the log and its threads."""
        self.pool.shutdown()
        self.log.close()


def test_timeout_before_the_send_stores_nothing(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: an append that times out in the queue is withdrawn: `timeout`, nothing stored."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    with pytest.raises(seriatim.TimedOut) as timed_out:
        stuck.log.append(make_append("queued"), timeout=0.3)
    proxy.resume()
    stuck.sent.result(timeout=10)
    stuck.log.append(make_append("last"))

    assert (timed_out.value.code, timed_out.value.retryable) == ("timeout", True)
    assert stuck.ids() == ["first", "sent", "last"]
    stuck.close()


def test_timeout_after_the_send_is_ambiguous(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: an append without a response in time is ambiguous, and its repeat is a replay."""
    proxy = proxy_to(postgres_url)
    with seriatim.open(proxy.url, settings=ONE_WRITER) as log:
        log.append(make_append("first"))
        proxy.pause()
        started = time.monotonic()
        with pytest.raises(seriatim.BackendFailure) as failed:
            log.append(make_append("sent"), timeout=0.5)
        took = time.monotonic() - started
        proxy.resume()
        receipt = log.append(make_append("sent"))

    assert failed.value.ambiguous
    assert took < 3.0
    assert receipt.replayed
    assert check_log_complete(postgres_url) == 2


async def test_cancelled_await(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: an append cancelled in the queue is not stored; one cancelled later is stored once."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    queued = asyncio.create_task(stuck.log.aio.append(make_append("queued")))
    await asyncio.sleep(0.2)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    proxy.resume()
    await asyncio.wrap_future(stuck.sent)
    proxy.pause()
    sent = asyncio.create_task(stuck.log.aio.append(make_append("cancelled")))
    await asyncio.sleep(0.3)
    assert queue_is_empty(stuck.log)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent
    proxy.resume()
    await stuck.log.aio.append(make_append("cancelled"))

    assert await asyncio.to_thread(stuck.ids) == ["first", "sent", "cancelled"]
    await asyncio.to_thread(stuck.close)


async def test_awaited_timeouts(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: an awaited append times out in the queue, and is ambiguous after the send."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    with pytest.raises(seriatim.TimedOut):
        await stuck.log.aio.append(make_append("queued"), timeout=0.3)
    proxy.resume()
    await asyncio.wrap_future(stuck.sent)
    proxy.pause()
    with pytest.raises(seriatim.BackendFailure) as failed:
        await stuck.log.aio.append(make_append("late"), timeout=0.5)
    proxy.resume()
    await stuck.log.aio.append(make_append("late"))

    assert failed.value.ambiguous
    assert await asyncio.to_thread(stuck.ids) == ["first", "sent", "late"]
    await asyncio.to_thread(stuck.close)


def test_full_queue_refuses_at_once(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: a full queue refuses with a retryable `limit_exceeded`; accepted appends are stored."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy, Settings(writers=1, limits=Limits(queue_events=3)))
    queued = [
        stuck.pool.submit(stuck.log.append, make_append(f"q-{number}")) for number in range(3)
    ]
    wait_until(lambda: stuck.log.appender.submission.threads.queued == 3, "three in the queue")
    with pytest.raises(seriatim.LimitExceeded) as refused:
        stuck.log.append(make_append("too many"))
    proxy.resume()
    for future in (stuck.sent, *queued):
        future.result(timeout=10)
    stuck.log.append(make_append("last"))

    assert (refused.value.retryable, refused.value.details["limit"]) == (True, "queue_events")
    assert sorted(stuck.ids()) == sorted(["first", "sent", "q-0", "q-1", "q-2", "last"])
    stuck.close()


def test_close_completes_accepted_appends(proxy_to: StartProxy, postgres_url: str) -> None:
    """B13: closing waits for all accepted appends and refuses later ones."""
    proxy = proxy_to(postgres_url)
    stuck = Stuck(proxy)
    queued = [
        stuck.pool.submit(stuck.log.append, make_append(f"q-{number}")) for number in range(10)
    ]
    wait_until(lambda: stuck.log.appender.submission.threads.queued == 10, "ten in the queue")
    closing = stuck.pool.submit(stuck.log.close)
    time.sleep(0.2)
    assert not closing.done()
    with pytest.raises(seriatim.BackendFailure) as refused:
        stuck.log.append(make_append("too late"))
    proxy.resume()
    for future in (stuck.sent, *queued):
        future.result(timeout=10)
    closing.result(timeout=10)

    assert (refused.value.retryable, refused.value.ambiguous) == (False, False)
    assert check_log_complete(postgres_url) == 12
    stuck.pool.shutdown()

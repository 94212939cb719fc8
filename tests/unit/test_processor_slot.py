"""The processor slot: one thread computes for tenants at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import seriatim
from seriatim.api.request_queue import RequestQueue
from seriatim.api.tenant_limiter import TenantLimiter
from seriatim.api.thread_pools import LARGE_BODY_BYTES, ProcessorSlot, ThreadPools
from seriatim.core.event import NewEvent
from seriatim.core.request import ExpectedSeq
from seriatim.factory import AsyncLog


async def pass_iterations() -> None:
    """Let the event loop run several iterations."""
    for _ in range(20):
        await asyncio.sleep(0)


async def acquire_all(slot: ProcessorSlot, *tenants: str) -> list[asyncio.Task[None]]:
    """Start an acquisition for each tenant."""
    tasks = [asyncio.create_task(slot.acquire(tenant)) for tenant in tenants]
    await pass_iterations()
    return tasks


async def test_the_slot_goes_to_the_tenant_with_the_least_use() -> None:
    """K3: the slot goes to the tenant with the least use, in order within a tenant."""
    slot = ProcessorSlot({"loud": 2.0, "calm": 1.0}.__getitem__)
    holder, *waiting = await acquire_all(slot, "loud", "loud", "loud", "calm")
    done = [[one.done() for one in waiting]]
    for _ in waiting:
        slot.release()
        await pass_iterations()
        done.append([one.done() for one in waiting])

    assert holder.done()
    assert done == [
        [False, False, False],
        [False, False, True],
        [True, False, True],
        [True, True, True],
    ]


async def test_cancelled_wait_releases_the_slot() -> None:
    """K3: a cancelled wait, also one that was just granted the slot, does not block others."""
    slot = ProcessorSlot(lambda _: 0.0)
    _, left, granted, last = await acquire_all(slot, "a", "b", "c", "d")
    left.cancel()
    await pass_iterations()
    slot.release()
    granted.cancel()
    await asyncio.wait_for(last, 10)

    assert left.cancelled()
    assert granted.cancelled()
    slot.release()
    await asyncio.wait_for(slot.acquire("a"), 10)


@pytest.fixture
def threads() -> Iterator[ThreadPools]:
    """The thread pools of a process, with two concurrent reads per tenant."""
    made = ThreadPools(8, TenantLimiter(2, 2, 100, "reads"), 60.0, RequestQueue())
    yield made
    made.stop()


async def test_large_bodies_are_handled_one_at_a_time(threads: ThreadPools) -> None:
    """K3: large bodies of two tenants are processed one at a time; reads continue."""
    ended = threading.Event()
    first = asyncio.create_task(threads.run_sized("a", LARGE_BODY_BYTES + 1, ended.wait))
    await pass_iterations()
    second = asyncio.create_task(threads.run_sized("b", LARGE_BODY_BYTES + 1, lambda: "second"))
    await pass_iterations()
    busy = threads.busy
    read = await threads.run_for_tenant("b", lambda: "read")
    ended.set()

    assert (busy, read) == (1, "read")
    assert await asyncio.wait_for(first, 10)
    assert await asyncio.wait_for(second, 10) == "second"
    assert threads.busy == 0


async def test_calls_take_keywords(threads: ThreadPools) -> None:
    """E7: calls in a slot of a tenant take keyword arguments, like `asyncio.to_thread`."""
    with seriatim.open("memory:") as log:
        log.append([NewEvent("note.taken", stream=("note", "1"))])
        run, compute = threads.run_for_tenant, threads.compute_for
        aio = AsyncLog(log, partial(run, "a"), partial(compute, "a"))

        assert [stream.stream_id for stream in await aio.streams("note", limit=1)] == ["1"]
        assert await compute("a", dict, note=1) == {"note": 1}


async def test_large_appends_are_validated_in_the_slot() -> None:
    """K3: a large append is validated in the slot; one with a condition in another thread."""
    used: list[str] = []

    def run(name: str) -> Any:
        async def noted(act: Callable[..., Any], *args: Any) -> Any:
            used.append(name)
            return await asyncio.to_thread(act, *args)

        return noted

    log = seriatim.open("memory:")
    aio = AsyncLog(log, run("in_thread"), run("compute"))
    large = [NewEvent("note.taken", {"a": "x" * 100_000}, stream=("note", "1"))]
    await aio.append([NewEvent("note.taken", {"a": 1})])
    await aio.append(large)
    await aio.append(large, ExpectedSeq(("note", "1"), 1))
    await aio.for_tenant("acme").append(large)
    log.close()

    assert used == ["compute", "in_thread", "compute"]

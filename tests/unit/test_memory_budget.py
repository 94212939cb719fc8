"""The memory budget of tenants: waits for memory, and their cancellation."""

from __future__ import annotations

import asyncio

from seriatim.api.memory_budget import MemoryBudget

TENANT = "t"


async def test_cancelled_request_takes_no_memory() -> None:
    """K3: a wait that is cancelled when memory becomes free acquires none.

    The waiter is done by then, and a release of memory removes it from the queue.
    """
    budget = MemoryBudget(100)
    budget.acquire(TENANT, 100)
    waiting = asyncio.create_task(budget.wait_and_acquire(TENANT, 50, 60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    budget.release(TENANT, 100)
    ended = (await asyncio.gather(waiting, return_exceptions=True))[0]

    assert isinstance(ended, asyncio.CancelledError)
    assert budget.used(TENANT) == 0


async def test_memory_of_a_cancelled_request_is_released() -> None:
    """K3: memory that a cancelled wait was granted goes to the next one."""
    budget = MemoryBudget(100)
    budget.acquire(TENANT, 100)
    first = asyncio.create_task(budget.wait_and_acquire(TENANT, 80, 60.0))
    second = asyncio.create_task(budget.wait_and_acquire(TENANT, 80, 60.0))
    await asyncio.sleep(0)
    budget.release(TENANT, 100)
    first.cancel()
    await asyncio.wait_for(second, 10)

    assert first.cancelled()
    assert budget.used(TENANT) == 80


async def test_a_timed_out_wait_leaves_the_queue() -> None:
    """K3: a wait that times out does not block later ones."""
    budget = MemoryBudget(100)
    budget.acquire(TENANT, 60)
    slow = asyncio.create_task(budget.wait_and_acquire(TENANT, 80, 0.001))
    quick = asyncio.create_task(budget.wait_and_acquire(TENANT, 30, 60.0))
    ended = (await asyncio.gather(slow, return_exceptions=True))[0]
    await asyncio.wait_for(quick, 10)

    assert getattr(ended, "code", None) == "limit_exceeded"
    assert budget.used(TENANT) == 90

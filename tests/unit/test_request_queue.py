"""The order in which requests of tenants start on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise

from seriatim.api.request_queue import HALF_LIFE_S, YIELD_S, RequestQueue

TURNS = 50  # iterations of the loop, more than any test needs


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


async def pass_iterations(count: int = TURNS) -> None:
    """Let the event loop run several iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


def record_start(started: list[str], name: str) -> Callable[[], Awaitable[None]]:
    """Return a request that records its start."""

    async def act() -> None:
        started.append(name)

    return act


async def start_requests(
    queue: RequestQueue, *tenants: str
) -> tuple[list[str], list[asyncio.Task[None]]]:
    """Send requests concurrently; return the list of started ones and the tasks."""
    started: list[str] = []
    tasks = [
        asyncio.create_task(queue.run(tenant, record_start(started, tenant))) for tenant in tenants
    ]
    await asyncio.sleep(0)
    return started, tasks


async def test_other_callbacks_run_between_two_requests() -> None:
    """K3: of many queued requests at most one starts per iteration of the loop."""
    started, tasks = await start_requests(RequestQueue(0.0, Clock()), *["loud"] * 20)
    counts = []
    while not all(task.done() for task in tasks):
        counts.append(len(started))
        await asyncio.sleep(0)

    assert max(after - before for before, after in pairwise(counts)) == 1


async def test_requests_start_at_once_while_there_is_time() -> None:
    """K3: requests start in one iteration while its time is not used up."""
    started, _ = await start_requests(RequestQueue(60.0, Clock()), "a", "b", "a")

    assert started == ["a", "b", "a"]


async def test_the_tenant_with_the_least_use_starts_first() -> None:
    """K3: a request starts before those of a tenant that has used more processor time."""
    queue = RequestQueue(0.0, Clock())
    queue.charge("loud", 0.5)
    queue.charge("calm", 0.1)
    started, tasks = await start_requests(queue, "loud", "loud", "loud", "calm")
    await asyncio.gather(*tasks)

    assert started == ["calm", "loud", "loud", "loud"]


async def test_a_single_tenant_starts_more_requests() -> None:
    """K3: more requests start per iteration if a single tenant has queued them."""
    clock = Clock()
    queue = RequestQueue(1.0, clock)
    queue._busy_s = clock
    counts: dict[str, int] = {}

    async def work() -> None:
        clock.now += 0.5

    for name, tenants in (("alone", ["a"] * 40), ("beside", ["b"] + ["a"] * 40)):
        tasks = [asyncio.create_task(queue.run(tenant, work)) for tenant in tenants]
        await asyncio.sleep(0)
        counts[name] = sum(task.done() for task in tasks)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert counts["alone"] == 20
    assert counts["beside"] == 2


async def test_used_time_decays() -> None:
    """K3: the processor time that a tenant has used decays."""
    clock = Clock()
    queue = RequestQueue(0.0, clock)
    queue.charge("loud", 0.8)
    clock.now += 3 * HALF_LIFE_S

    assert round(queue.used("loud"), 6) == 0.1


async def test_a_heavier_tenant_waits_for_a_request_in_progress() -> None:
    """K3: a tenant with more use waits until a request of another tenant has ended."""
    queue = RequestQueue(0.0, Clock())
    queue.charge("loud", 0.5)
    gate = asyncio.Event()
    calm = asyncio.create_task(queue.run("calm", gate.wait))
    await pass_iterations()
    started, tasks = await start_requests(queue, "loud", "loud")
    await pass_iterations()

    assert started == []
    gate.set()
    await asyncio.wait_for(asyncio.gather(calm, *tasks), 10)
    assert started == ["loud", "loud"]


async def test_a_heavier_tenant_does_not_wait_for_long() -> None:
    """K3: a tenant with more use waits for a long request at most YIELD_S."""
    clock = Clock()
    queue = RequestQueue(0.0, clock)
    queue.charge("loud", 0.5)
    gate = asyncio.Event()
    calm = asyncio.create_task(queue.run("calm", gate.wait))
    await pass_iterations()
    started, tasks = await start_requests(queue, "loud", "loud")
    clock.now += YIELD_S
    await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert started == ["loud", "loud"]
    gate.set()
    await calm


async def test_a_tenant_does_not_wait_for_its_own_requests() -> None:
    """K3: requests of one tenant run concurrently."""
    queue = RequestQueue(0.0, Clock())
    gate = asyncio.Event()
    running = [asyncio.create_task(queue.run("loud", gate.wait)) for _ in range(3)]
    await pass_iterations()
    started, tasks = await start_requests(queue, "loud")
    await asyncio.gather(*tasks)

    assert started == ["loud"]
    gate.set()
    await asyncio.gather(*running)


async def test_cancelled_request_is_skipped() -> None:
    """K3: a request that is cancelled in the queue is skipped."""
    queue = RequestQueue(0.0, Clock())
    started, tasks = await start_requests(queue, "a", "b", "c")
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert started == ["b", "c"]


async def test_errors_reach_the_caller() -> None:
    """K3: an error of a request is raised to its caller, and the queue continues."""
    queue = RequestQueue(0.0, Clock())

    async def fail() -> None:
        raise ValueError("no")

    ended = await asyncio.gather(
        *map(partial(queue.run, act=fail), ["a", "b"]), return_exceptions=True
    )
    started, tasks = await start_requests(queue, "c")
    await asyncio.gather(*tasks)

    assert [type(one) for one in ended] == [ValueError, ValueError]
    assert started == ["c"]

"""Closed-loop callers as threads or asyncio tasks: each waits for its response, then repeats."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from bench.measurement import Sample, Subject

Operation = Callable[[int], int]
AsyncOperation = Callable[[int], Awaitable[int]]


def threads(callers: int, operation: Operation) -> Subject:
    """Return a subject that runs `callers` threads.

    Args:
        callers: The number of threads.
        operation: Called with the number of its thread; returns the number of events it handled.

    """

    def run(seconds: float) -> Sample:
        counts = [0] * callers
        latencies: list[list[float]] = [[] for _ in range(callers)]
        errors: list[BaseException] = []
        barrier = threading.Barrier(callers + 1)

        def loop(caller: int) -> None:
            own_latencies = latencies[caller]
            barrier.wait()
            deadline = time.perf_counter() + seconds
            try:
                while (started := time.perf_counter()) < deadline:
                    counts[caller] += operation(caller)
                    own_latencies.append(time.perf_counter() - started)
            except BaseException as error:  # noqa: BLE001 - set_up again below
                errors.append(error)

        workers = [threading.Thread(target=loop, args=(caller,)) for caller in range(callers)]
        for thread in workers:
            thread.start()
        barrier.wait()
        started = time.perf_counter()
        for thread in workers:
            thread.join()
        elapsed = time.perf_counter() - started
        if errors:
            raise errors[0]
        return Sample(sum(counts), elapsed, [latency for own in latencies for latency in own])

    return run


def tasks(callers: int, operation: AsyncOperation) -> Subject:
    """Return a subject that runs `callers` asyncio tasks on one event loop."""

    async def loop(caller: int, deadline: float, latencies: list[float]) -> int:
        events = 0
        while (started := time.perf_counter()) < deadline:
            events += await operation(caller)
            latencies.append(time.perf_counter() - started)
        return events

    async def run_all(seconds: float) -> Sample:
        latencies: list[float] = []
        started = time.perf_counter()
        deadline = started + seconds
        counts = await asyncio.gather(
            *(loop(caller, deadline, latencies) for caller in range(callers))
        )
        return Sample(sum(counts), time.perf_counter() - started, latencies)

    return lambda seconds: asyncio.run(run_all(seconds))


def alone(operation: Callable[[], int]) -> Subject:
    """Return a subject with one caller, which runs on the calling thread."""

    def run(seconds: float) -> Sample:
        events = 0
        latencies: list[float] = []
        first_start = time.perf_counter()
        deadline = first_start + seconds
        while (started := time.perf_counter()) < deadline:
            events += operation()
            latencies.append(time.perf_counter() - started)
        return Sample(events, time.perf_counter() - first_start, latencies)

    return run

"""Callers that wait for each answer before they ask again, as threads or as asyncio tasks."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from bench.harness import Contestant, Sample

Act = Callable[[int], int]
AsyncAct = Callable[[int], Awaitable[int]]


def threads(callers: int, act: Act) -> Contestant:
    """Return a contestant of so many threads; `act` gets its caller's number, returns events."""

    def run(seconds: float) -> Sample:
        counts = [0] * callers
        latencies: list[list[float]] = [[] for _ in range(callers)]
        errors: list[BaseException] = []
        gate = threading.Barrier(callers + 1)

        def loop(caller: int) -> None:
            mine = latencies[caller]
            gate.wait()
            deadline = time.perf_counter() + seconds
            try:
                while (started := time.perf_counter()) < deadline:
                    counts[caller] += act(caller)
                    mine.append(time.perf_counter() - started)
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        crew = [threading.Thread(target=loop, args=(caller,)) for caller in range(callers)]
        for thread in crew:
            thread.start()
        gate.wait()
        started = time.perf_counter()
        for thread in crew:
            thread.join()
        elapsed = time.perf_counter() - started
        if errors:
            raise errors[0]
        return Sample(sum(counts), elapsed, [one for mine in latencies for one in mine])

    return run


def tasks(callers: int, act: AsyncAct) -> Contestant:
    """Return a contestant of so many tasks on one event loop."""

    async def loop(caller: int, deadline: float, latencies: list[float]) -> int:
        events = 0
        while (started := time.perf_counter()) < deadline:
            events += await act(caller)
            latencies.append(time.perf_counter() - started)
        return events

    async def crew(seconds: float) -> Sample:
        latencies: list[float] = []
        started = time.perf_counter()
        deadline = started + seconds
        counts = await asyncio.gather(
            *(loop(caller, deadline, latencies) for caller in range(callers))
        )
        return Sample(sum(counts), time.perf_counter() - started, latencies)

    return lambda seconds: asyncio.run(crew(seconds))


def alone(act: Callable[[], int]) -> Contestant:
    """Return a contestant of one caller on the calling thread."""

    def run(seconds: float) -> Sample:
        events = 0
        latencies: list[float] = []
        begun = time.perf_counter()
        deadline = begun + seconds
        while (started := time.perf_counter()) < deadline:
            events += act()
            latencies.append(time.perf_counter() - started)
        return Sample(events, time.perf_counter() - begun, latencies)

    return run

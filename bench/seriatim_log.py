"""A log of Seriatim as a subject of measurements, with callers as threads or tasks."""

import itertools
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import seriatim
from bench.callers import alone, tasks, threads
from bench.measurement import Subject
from bench.workload import PAYLOAD_INDEXES, Orders, make_prefill_batches
from seriatim import NewEvent

PREFILL_BATCH = 5000
PREFILL_CALLERS = 3


class SeriatimLog:
    """An open log, filled with events, and its append workloads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.log = seriatim.open(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.log.close()

    def fill(self, total: int) -> None:
        """Append events until the log has `total` events, from a few concurrent callers."""
        self.log.declare(*PAYLOAD_INDEXES)  # before the events, which they only cover from now on
        self.append_batches(make_prefill_batches(self.log.head(), total, PREFILL_BATCH))

    def append_batches(self, batches: Iterator[list[NewEvent]]) -> None:
        """Append batches from a few concurrent callers."""
        lock = threading.Lock()
        errors: list[BaseException] = []

        def append_all() -> None:
            try:
                while batch := _next(batches, lock):
                    self.log.append(batch)
            except BaseException as error:  # noqa: BLE001 - set_up again below
                errors.append(error)

        callers = [threading.Thread(target=append_all) for _ in range(PREFILL_CALLERS)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
        if errors:
            raise errors[0]

    def alone(self, orders: Orders) -> Subject:
        """Return a subject with one synchronous caller."""
        return alone(lambda: self.log.append([orders.event()]).count)

    def thread_singles(self, callers: int, orders: Orders) -> Subject:
        """Return a subject of threads that append single events."""
        return threads(callers, lambda _: self.log.append([orders.event()]).count)

    def task_singles(self, callers: int, orders: Orders) -> Subject:
        """Return a subject of asyncio tasks that append single events."""

        async def append(_: int) -> int:
            return (await self.log.aio.append([orders.event()])).count

        return tasks(callers, append)

    concurrent_singles = task_singles  # the usual choice for many callers

    def batches(self, callers: int, orders: Orders, size: int, streams: int) -> Subject:
        """Return a subject of threads that append batches over `streams` streams."""
        return threads(callers, lambda _: self.log.append(orders.batch(size, streams)).count)

    def task_batches(self, callers: int, orders: Orders, size: int, streams: int) -> Subject:
        """Return a subject of asyncio tasks that append batches over `streams` streams."""

        async def append(_: int) -> int:
            return (await self.log.aio.append(orders.batch(size, streams))).count

        return tasks(callers, append)


def _next(batches: Iterator[list[NewEvent]], lock: threading.Lock) -> list[NewEvent]:
    """Return the next batch, or an empty list at the end, under a lock for the generator."""
    with lock:
        return next(itertools.chain(batches, ()), [])

"""Our own log as a contestant: filled beforehand, then appended to by threads or by tasks."""

import itertools
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import seriatim
from bench.callers import alone, tasks, threads
from bench.harness import Contestant
from bench.workload import PAYLOAD_INDEXES, Orders, prefill_batches
from seriatim import NewEvent

PREFILL_BATCH = 5000
PREFILL_CALLERS = 3


class OurLog:
    """One open log and its ways of being appended to."""

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
        """Append prefilled events until the log holds so many, a few callers at once."""
        self.log.declare(*PAYLOAD_INDEXES)  # they know what comes after them
        self.fill_with(prefill_batches(self.log.head(), total, PREFILL_BATCH))

    def fill_with(self, batches: Iterator[list[NewEvent]]) -> None:
        """Append batches, a few callers at once."""
        lock = threading.Lock()
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while batch := _next(batches, lock):
                    self.log.append(batch)
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        crew = [threading.Thread(target=work) for _ in range(PREFILL_CALLERS)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        if errors:
            raise errors[0]

    def alone(self, orders: Orders) -> Contestant:
        """Return one caller of the sync append."""
        return alone(lambda: self.log.append([orders.event()]).count)

    def thread_singles(self, callers: int, orders: Orders) -> Contestant:
        """Return threads that append one event after the other."""
        return threads(callers, lambda _: self.log.append([orders.event()]).count)

    def task_singles(self, callers: int, orders: Orders) -> Contestant:
        """Return asyncio tasks that append one event after the other."""

        async def act(_: int) -> int:
            return (await self.log.aio.append([orders.event()])).count

        return tasks(callers, act)

    waiting_singles = task_singles  # what a user with many callers would take

    def batches(self, callers: int, orders: Orders, size: int, streams: int) -> Contestant:
        """Return threads that append batches over so many streams."""
        return threads(callers, lambda _: self.log.append(orders.batch(size, streams)).count)

    def task_batches(self, callers: int, orders: Orders, size: int, streams: int) -> Contestant:
        """Return asyncio tasks that append batches over so many streams."""

        async def act(_: int) -> int:
            return (await self.log.aio.append(orders.batch(size, streams))).count

        return tasks(callers, act)


def _next(batches: Iterator[list[NewEvent]], lock: threading.Lock) -> list[NewEvent]:
    """Take the next batch; making it is most of the work, so it is better done one at a time."""
    with lock:
        return next(itertools.chain(batches, ()), [])

"""The same callers spread over two client processes, one for each core, as services are run."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol, Self

from bench.harness import Contestant, Sample
from bench.workload import Orders

PROCESSES = 2


class Client(Protocol):
    """What appends in each process: ours, or a rival's client."""

    def waiting_singles(self, callers: int, orders: Orders) -> Contestant:
        """Return callers that append one event after the other."""
        ...

    def batches(self, callers: int, orders: Orders, size: int, streams: int) -> Contestant:
        """Return callers that append batches."""
        ...


class Crew:
    """Client processes that are started once and run what they are told, all at the same time."""

    def __init__(self, opening: Callable[[], Client], streams: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, opening, streams, number))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()

    def singles(self, callers: int) -> Contestant:
        """Return so many callers in all, appending single events."""
        return lambda seconds: self._run("waiting_singles", callers, (), seconds)

    def batches(self, callers: int, size: int, streams: int) -> Contestant:
        """Return so many callers in all, appending batches."""
        return lambda seconds: self._run("batches", callers, (size, streams), seconds)

    def _run(self, act: str, callers: int, shape: tuple[int, ...], seconds: float) -> Sample:
        for pipe in self._pipes:
            pipe.send((act, callers // PROCESSES, shape, seconds))
        samples: list[Sample] = [pipe.recv() for pipe in self._pipes]
        return Sample(
            sum(one.events for one in samples),
            max(one.seconds for one in samples),
            [latency for one in samples for latency in one.latencies_s],
        )


def _serve(pipe: Connection, opening: Callable[[], Any], streams: int, number: int) -> None:
    client = opening()
    orders = Orders(streams, seed=10 + number)
    while (told := pipe.recv()) is not None:
        act, callers, shape, seconds = told
        pipe.send(getattr(client, act)(callers, orders, *shape)(seconds))

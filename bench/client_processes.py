"""Callers that are spread over two client processes, one per core."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol, Self

from bench.measurement import Sample, Subject
from bench.workload import Orders

PROCESSES = 2


class Client(Protocol):
    """The client in each process: Seriatim, or the client of a competitor."""

    def concurrent_singles(self, callers: int, orders: Orders) -> Subject:
        """Return a subject of callers that append single events."""
        ...

    def batches(self, callers: int, orders: Orders, size: int, streams: int) -> Subject:
        """Return a subject of callers that append batches."""
        ...


class ClientProcesses:
    """Client processes that are started once and run each measurement simultaneously."""

    def __init__(self, open_client: Callable[[], Client], streams: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, open_client, streams, number))
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

    def singles(self, callers: int) -> Subject:
        """Return a subject of `callers` callers in total that append single events."""
        return lambda seconds: self._run("concurrent_singles", callers, (), seconds)

    def batches(self, callers: int, size: int, streams: int) -> Subject:
        """Return a subject of `callers` callers in total that append batches."""
        return lambda seconds: self._run("batches", callers, (size, streams), seconds)

    def _run(self, method: str, callers: int, shape: tuple[int, ...], seconds: float) -> Sample:
        for pipe in self._pipes:
            pipe.send((method, callers // PROCESSES, shape, seconds))
        samples: list[Sample] = [pipe.recv() for pipe in self._pipes]
        return Sample(
            sum(sample.events for sample in samples),
            max(sample.seconds for sample in samples),
            [latency for sample in samples for latency in sample.latencies_s],
        )


def _serve(pipe: Connection, open_client: Callable[[], Any], streams: int, number: int) -> None:
    client = open_client()
    orders = Orders(streams, seed=10 + number)
    while (job := pipe.recv()) is not None:  # None ends the process
        method, callers, shape, seconds = job
        pipe.send(getattr(client, method)(callers, orders, *shape)(seconds))

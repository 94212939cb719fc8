"""Live tails: how long an event takes from its sending to the tail that follows its stream."""

import json
import select
import socket
import time
from contextlib import ExitStack

from bench.harness import Figure, Sample, Series
from bench.http_load import Line, request_bytes
from bench.service_plan import ServiceStage

GOAL = 3.0
WRITERS = 16
_SENT = b'"sent":'
_READY = b'{"position"'


def tails(stage: ServiceStage) -> list[Figure]:
    """Follow one stream by one tail, and a thousand by one each, at the same rate of events."""
    alone, many = [], []
    for _ in range(stage.plan.rounds):
        alone.append(_followed(stage, 1))
        many.append(_followed(stage, stage.plan.tails))
    one, thousand = Series.of(alone), Series.of(many)
    stage.say(f"    one tail p99 {one.p99_ms:.1f} ms, {stage.plan.tails} {thousand.p99_ms:.1f} ms")
    return [
        Figure(
            name=f"{stage.plan.tails:,} tails / one tail, p99 of delivery",
            measured=(thousand.p99_ms or 0.0) / (one.p99_ms or 1.0),
            goal=GOAL,
            at_most=True,
            p50_ms=thousand.p50_ms,
            p99_ms=thousand.p99_ms,
            events_per_s=thousand.rate,
            against=f"one tail, p99 {one.p99_ms:.2f} ms",
            rounds=tuple(
                their / our for our, their in zip(one.p99s_ms, thousand.p99s_ms, strict=True)
            ),
        )
    ]


class _Tail:
    """One reader, and how long its events took."""

    def __init__(self, stage: ServiceStage, stream_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", stage.port))
        self._socket.sendall(
            f"GET /v1/tail?stream_type=tailed&stream_id={stream_id} HTTP/1.1\r\nhost: bench\r\n"
            f"authorization: Bearer {stage.token}\r\naccept: application/x-ndjson\r\n\r\n".encode()
        )
        self._got = b""
        self.fileno = self._socket.fileno
        self.close = self._socket.close

    def wait_until_live(self) -> None:
        """Wait until all that was there has come."""
        while _READY not in self._got:
            self._got += self._socket.recv(1 << 16)
        self._got = b""

    def taken(self) -> list[float]:
        """Return how long the events took that have come now."""
        now = time.perf_counter_ns()
        *lines, self._got = (self._got + self._socket.recv(1 << 16)).split(b"\n")
        return [
            (now - int(line.partition(_SENT)[2].split(b"}", 1)[0].split(b",", 1)[0])) / 1e9
            for line in lines
            if _SENT in line
        ]


def _followed(stage: ServiceStage, count: int) -> Sample:
    names = [f"t-{count}-{number}" for number in range(count)]
    with ExitStack() as stack:
        ready = select.epoll()
        stack.callback(ready.close)
        readers: dict[int, _Tail] = {}
        for name in names:
            tail = _Tail(stage, name)
            stack.callback(tail.close)
            readers[tail.fileno()] = tail
        for number, tail in readers.items():
            tail.wait_until_live()
            ready.register(number, select.EPOLLIN)
        writers: dict[int, Line] = {}
        for _ in range(WRITERS):
            line = Line(stage.port)
            stack.callback(line.close)
            writers[line.fileno()] = line
            ready.register(line.fileno(), select.EPOLLIN)
        return _run(stage, ready, readers, writers, names)


def _run(
    stage: ServiceStage,
    ready: select.epoll,
    readers: dict[int, _Tail],
    writers: dict[int, Line],
    names: list[str],
) -> Sample:
    """Send at an even pace, and take in what comes, in one loop."""
    free = list(writers.values())
    latencies: list[float] = []
    sent = 0
    started = time.perf_counter()
    until = started + stage.plan.tail_seconds
    while (now := time.perf_counter()) < until + 1.0 and (now < until or len(latencies) < sent):
        due = started + sent / stage.plan.tail_rate
        if now < until and now >= due and free:
            free.pop().ask(_event(stage, names[sent % len(names)]))
            sent += 1
            continue
        wait = max(0.0, due - now) if now < until and free else 0.05
        for number, _ in ready.poll(min(wait, 0.05)):
            if number in readers:
                latencies += readers[number].taken()
            elif writers[number].answered():
                free.append(writers[number])
    if len(latencies) < sent * 0.99:
        msg = f"only {len(latencies)} of {sent} events came through the tails"
        raise RuntimeError(msg)
    return Sample(len(latencies), stage.plan.tail_seconds, latencies)


def _event(stage: ServiceStage, stream_id: str) -> bytes:
    body = {
        "events": [
            {
                "event_type": "tailed",
                "stream_type": "tailed",
                "stream_id": stream_id,
                "payload": {"sent": time.perf_counter_ns()},
            }
        ]
    }
    text = json.dumps(body, separators=(",", ":")).encode()
    return request_bytes("/v1/events", stage.token, text)

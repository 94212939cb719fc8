"""The latency of live tails, from sending an event to its arrival."""

import json
import select
import socket
import time
from contextlib import ExitStack

from bench.measurement import Figure, Sample, Series
from bench.service.http_load import HttpConnection, request_bytes
from bench.service.plan import ServiceEnvironment

GOAL, AIM = 3.0, 2.0
WRITERS = 16
_SENT = b'"sent":'
_READY = b'{"position"'


def tails(environment: ServiceEnvironment) -> list[Figure]:
    """Measure one tail, and many tails of one stream each, at the same rate of events."""
    single_samples, many_samples = [], []
    for _ in range(environment.plan.rounds):
        single_samples.append(_measure_tails(environment, 1))
        many_samples.append(_measure_tails(environment, environment.plan.tails))
    single, many = Series.of(single_samples), Series.of(many_samples)
    environment.report(
        f"    one tail p99 {single.p99_ms:.1f} ms, {environment.plan.tails} {many.p99_ms:.1f} ms"
    )
    return [
        Figure(
            name=f"{environment.plan.tails:,} tails / one tail, p99 of delivery",
            measured=(many.p99_ms or 0.0) / (single.p99_ms or 1.0),
            goal=GOAL,
            aim=AIM,
            at_most=True,
            p50_ms=many.p50_ms,
            p99_ms=many.p99_ms,
            events_per_s=many.rate,
            against=f"one tail, p99 {single.p99_ms:.2f} ms",
            rounds=tuple(
                their / our for our, their in zip(single.p99s_ms, many.p99s_ms, strict=True)
            ),
        )
    ]


class _Tail:
    """One tail, which computes the latency of its events."""

    def __init__(self, environment: ServiceEnvironment, stream_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", environment.port))
        self._socket.sendall(
            f"GET /v1/tail?stream_type=tailed&stream_id={stream_id} HTTP/1.1\r\nhost: bench\r\n"
            f"authorization: Bearer {environment.token}\r\n"
            "accept: application/x-ndjson\r\n\r\n".encode()
        )
        self._received = b""
        self.fileno = self._socket.fileno
        self.close = self._socket.close

    def wait_until_live(self) -> None:
        """Wait until the tail has caught up."""
        while _READY not in self._received:
            self._received += self._socket.recv(1 << 16)
        self._received = b""

    def read_latencies(self) -> list[float]:
        """Return the latencies of the events that have arrived now, in seconds."""
        now = time.perf_counter_ns()
        *lines, self._received = (self._received + self._socket.recv(1 << 16)).split(b"\n")
        return [
            (now - int(line.partition(_SENT)[2].split(b"}", 1)[0].split(b",", 1)[0])) / 1e9
            for line in lines
            if _SENT in line
        ]


def _measure_tails(environment: ServiceEnvironment, count: int) -> Sample:
    names = [f"t-{count}-{number}" for number in range(count)]
    with ExitStack() as stack:
        ready = select.epoll()
        stack.callback(ready.close)
        readers: dict[int, _Tail] = {}
        for name in names:
            tail = _Tail(environment, name)
            stack.callback(tail.close)
            readers[tail.fileno()] = tail
        for number, tail in readers.items():
            tail.wait_until_live()
            ready.register(number, select.EPOLLIN)
        writers: dict[int, HttpConnection] = {}
        for _ in range(WRITERS):
            connection = HttpConnection(environment.port)
            stack.callback(connection.close)
            writers[connection.fileno()] = connection
            ready.register(connection.fileno(), select.EPOLLIN)
        return _run(environment, ready, readers, writers, names)


def _run(
    environment: ServiceEnvironment,
    ready: select.epoll,
    readers: dict[int, _Tail],
    writers: dict[int, HttpConnection],
    names: list[str],
) -> Sample:
    """Send events at an even rate and collect latencies, in one loop."""
    free = list(writers.values())
    latencies: list[float] = []
    sent = 0
    started = time.perf_counter()
    until = started + environment.plan.tail_seconds
    while (now := time.perf_counter()) < until + 1.0 and (now < until or len(latencies) < sent):
        due = started + sent / environment.plan.tail_rate
        if now < until and now >= due and free:
            free.pop().send(_event(environment, names[sent % len(names)]))
            sent += 1
            continue
        wait = max(0.0, due - now) if now < until and free else 0.05
        for number, _ in ready.poll(min(wait, 0.05)):
            if number in readers:
                latencies += readers[number].read_latencies()
            elif writers[number].receive():
                free.append(writers[number])
    if len(latencies) < sent * 0.99:
        msg = f"only {len(latencies)} of {sent} events arrived at the tails"
        raise RuntimeError(msg)
    return Sample(len(latencies), environment.plan.tail_seconds, latencies)


def _event(environment: ServiceEnvironment, stream_id: str) -> bytes:
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
    return request_bytes("/v1/events", environment.token, text)

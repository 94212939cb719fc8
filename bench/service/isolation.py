"""The effect of a tenant at all its limits on another tenant, on /health and on SIGTERM."""

import dataclasses
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.measurement import Figure, Series
from bench.service.http_load import load, request_bytes
from bench.service.plan import ServiceEnvironment
from seriatim.api.service import ServiceSettings
from seriatim.core.limits import MIB
from seriatim.factory import open_access

BACKENDS = ("memory", "sqlite", "postgres")
GOAL = 3.0  # the p99 next to the loud tenant, relative to the quiet p99
SLACK_MIB = 64
GRACE_S = 30.0
BODIES = 20  # unfinished requests of 17 MiB
READERS = 40  # connections that never read their response
FLOOD = 16  # connections that append and query without a pause
TRIES = 20
STORED = 24  # events of about a megabyte that the loud tenant reads
_AT = re.compile(r"at http://\S+:(\d+)")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class ServiceProcess:
    """A service in its own process, and the tokens of its two tenants."""

    process: psutil.Process
    port: int
    loud: str
    calm: str


class LoadScale(msgspec.Struct, frozen=True):
    """The amount of load of the loud tenant; `few` is for smoke tests."""

    few: bool = False

    def of(self, many: int) -> int:
        """Return the scaled number."""
        return max(1, many // 10) if self.few else many


def isolation(environment: ServiceEnvironment) -> list[Figure]:
    """Measure on every backend."""
    return [figure for backend in BACKENDS for figure in _measure(environment, backend)]


def _measure(environment: ServiceEnvironment, backend: str) -> list[Figure]:
    folder = environment.home / f"isolation-{backend}-{time.monotonic_ns()}"
    folder.mkdir()
    with run_service(_url(environment, backend, folder), folder) as service:
        scale = LoadScale(few=environment.plan.quick)
        _fill(service)
        seconds = environment.plan.seconds
        quiet = [_p99(service, kind, seconds) for kind in (_append, _health)]
        before = service.process.memory_info().rss
        samples: list[tuple[int, int]] = [(before, 0)]
        with (
            _run_load(service, scale, 3 * seconds + 2) as stored,
            _sample_memory(service, stored, samples),
        ):
            loud = [_p99(service, kind, seconds) for kind in (_append, _health)]
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            with suppress(psutil.TimeoutExpired):
                service.process.wait(2 * GRACE_S)
            ended_s = time.monotonic() - began
    budget = ServiceSettings().tenant_memory_bytes // MIB
    return [
        *(
            Figure(
                name=f"{name} beside a tenant at its bounds / quiet, p99, {backend}",
                measured=loud_ms / quiet_ms,
                goal=GOAL,
                at_most=True,
                p99_ms=loud_ms,
                against=f"quiet, p99 {quiet_ms:.2f} ms",
            )
            for name, quiet_ms, loud_ms in zip(("append", "/health"), quiet, loud, strict=True)
        ),
        *_memory_figures(
            backend, [(rss - before, kept) for rss, kept in samples], budget + SLACK_MIB
        ),
        Figure(
            name=f"SIGTERM beside a tenant at its bounds, {backend}",
            measured=ended_s,
            goal=GRACE_S + 1,
            unit="s",
            at_most=True,
        ),
    ]


def _memory_figures(backend: str, samples: list[tuple[int, int]], goal: int) -> list[Figure]:
    """Return the memory growth; the events that a log in memory stores have their own figure."""
    in_memory = backend == "memory"
    growth = max(grown - (stored_bytes if in_memory else 0) for grown, stored_bytes in samples)
    name = f"memory growth by a tenant at its bounds, {backend}"
    figure = Figure(
        name=name, measured=max(0.01, growth / MIB), goal=goal, unit="MiB", at_most=True
    )
    if not in_memory:
        return [figure]
    total = max(grown for grown, _ in samples)
    stored_bytes = max(stored_bytes for _, stored_bytes in samples)
    return [
        dataclasses.replace(
            figure, against=f"without the log's own events, {stored_bytes / MIB:.0f} MiB"
        ),
        Figure(name=f"{name}, with the log's own events", measured=total / MIB, unit="MiB"),
    ]


def _url(environment: ServiceEnvironment, backend: str, folder: Path) -> str:
    if backend == "postgres":
        return environment.log.url
    return "memory:" if backend == "memory" else f"sqlite:///{folder}/log.db"


@contextmanager
def run_service(url: str, folder: Path) -> Iterator[ServiceProcess]:
    """Run `seriatim serve` with tokens for two tenants."""
    access = f"sqlite:///{folder}/access.db"
    with closing(open_access(access)) as opened:
        rights = ("append", "read")
        loud, calm = (
            opened.create(subject=name, tenant_id=name, rights=rights)[0]
            for name in ("loud", "calm")
        )
    command = [sys.executable, "-m", "seriatim", "serve", "--url", url, "--port", "0"]
    with subprocess.Popen(
        [*command, "--access", access], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            match = next(match for line in process.stderr if (match := _AT.search(line)))
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield ServiceProcess(psutil.Process(process.pid), int(match[1]), loud, calm)
        finally:
            process.kill()
            drain.join()


def _fill(service: ServiceProcess) -> None:
    filler = "x" * 1_000_000
    numbers = [f"v{n}" for n in range(4000)]
    with socket.create_connection(("127.0.0.1", service.port)) as link:
        for n in range(STORED):
            _send(link, _events(service.loud, {"n": n, "a": filler}))
        for _ in range(STORED):
            _send(link, _events(service.loud, {"b": numbers}))
        _send(link, _events(service.calm, {"n": 1}))


def _events(token: str, payload: Any) -> bytes:
    event = {"event_type": "bench", "payload": payload}
    return request_bytes("/v1/events", token, _encode({"events": [event]}))


def _send(link: socket.socket, request: bytes) -> bytes:
    """Send a request, read its whole response, and return the response head."""
    link.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += link.recv(1 << 18) or b"\r\n\r\n"
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
    while len(body) < length:
        piece = link.recv(1 << 18)
        if not piece:
            break
        body += piece
    return head


def _append(service: ServiceProcess) -> bytes:
    return _events(service.calm, {"n": 2})


def _health(_: ServiceProcess) -> bytes:
    return b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"


def _p99(service: ServiceProcess, kind: Callable[[ServiceProcess], bytes], seconds: float) -> float:
    ask = load(service.port, 1, lambda: kind(service))
    samples = [ask(seconds)]
    while not any(sample.latencies_s for sample in samples) and len(samples) < TRIES:
        samples.append(ask(5 * seconds))  # on a busy machine one response may take as long
    return max(Series.of([sample]).p99_ms or 0.0 for sample in samples)


@contextmanager
def _sample_memory(
    service: ServiceProcess, stored: Any, samples: list[tuple[int, int]]
) -> Iterator[None]:
    """Sample the resident memory of the service and the bytes stored in it during the block."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            with suppress(psutil.Error):
                stored_bytes = (
                    stored.value
                )  # read first: events stored later only add to the memory
                samples.append((service.process.memory_info().rss, stored_bytes))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        ended.set()
        sampler.join()


@contextmanager
def _run_load(service: ServiceProcess, scale: LoadScale, seconds: float) -> Iterator[Any]:
    """Run the load of the loud tenant in its own process; yield the bytes that it stored."""
    context = multiprocessing.get_context("spawn")
    started, stored = context.Event(), context.Value("Q")
    process = context.Process(
        target=generate_load, args=(service.port, service.loud, scale, seconds, started, stored)
    )
    process.start()
    started.wait(60)
    try:
        yield stored
    finally:
        process.kill()
        process.join()


def generate_load(
    port: int, token: str, scale: LoadScale, seconds: float, started: Any, stored: Any
) -> None:
    """Hold unfinished requests and unread responses, tail, append and query without a pause.

    The bytes of acknowledged appends are added to `stored`.
    """
    os.nice(15)  # in production the load would come from other machines
    until = time.monotonic() + seconds
    predicates = [
        {"b": [f"v{n}" for n in range(60 * at, 60 * at + 60)]} for at in range(scale.of(60))
    ]
    bodies, readers = scale.of(BODIES), scale.of(READERS)
    query = _encode({"query": {"filters": [{"payload": predicates}]}})
    with ExitStack() as stack:
        for at in range(bodies + readers):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.sendall(_unfinished(token) if at < bodies else _unread(token, at))
        requests = [
            _events(token, {"b": [f"v{n}" for n in range(scale.of(20_000))]}),
            request_bytes("/v1/query", token, query),
            _events(token, {"password": "refused"}),
        ]
        threads = [
            threading.Thread(
                target=_repeat, args=(port, requests[at % 3], until, stored), daemon=True
            )
            for at in range(scale.of(3 * FLOOD) if scale.few else FLOOD)
        ]
        for thread in threads:
            thread.start()
        started.set()
        while time.monotonic() < until:
            time.sleep(0.1)


def _unfinished(token: str) -> bytes:
    request = request_bytes("/v1/events", token, b" " * (17 * MIB - 1024))
    return request[:-1]


def _unread(token: str, at: int) -> bytes:
    path = "/v1/events" if at % 2 else "/v1/tail?after=0"
    return f"GET {path} HTTP/1.1\r\nhost: b\r\nauthorization: Bearer {token}\r\n\r\n".encode()


def _repeat(port: int, request: bytes, until: float, stored: Any) -> None:
    size = len(request) - request.index(b"\r\n\r\n")
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as link:
            status = b""
            while time.monotonic() < until and b" 5" not in status:
                status = _send(link, request)[:14]
                if b" 201" in status:
                    with stored.get_lock():
                        stored.value += size

"""One tenant uses everything it may: what another one, a health check and SIGTERM wait for."""

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

from bench.harness import Figure, Series
from bench.http_load import load, request_bytes
from bench.service_plan import ServiceStage
from seriatim.api.service import Serving
from seriatim.core.limits import MIB
from seriatim.opening import open_access

BACKENDS = ("memory", "sqlite", "postgres")
GOAL = 3.0  # of the p99 beside the loud tenant to the quiet one
SLACK_MIB = 64
GRACE_S = 30.0
BODIES = 20  # unfinished requests of 17 MiB
READERS = 40  # that take nothing
FLOOD = 16  # connections that append and query without a pause
TRIES = 20
STORED = 24  # events of about a megabyte that the loud tenant reads
_AT = re.compile(r"at http://\S+:(\d+)")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Served:
    """A service in a process of its own, and the tokens of its two tenants."""

    process: psutil.Process
    port: int
    loud: str
    calm: str


class Noise(msgspec.Struct, frozen=True):
    """How much the loud tenant does; a few of everything show only that it runs."""

    few: bool = False

    def of(self, many: int) -> int:
        """Return how many of something there are."""
        return max(1, many // 10) if self.few else many


def isolation(stage: ServiceStage) -> list[Figure]:
    """Measure on every backend."""
    return [figure for backend in BACKENDS for figure in _measured(stage, backend)]


def _measured(stage: ServiceStage, backend: str) -> list[Figure]:
    folder = stage.home / f"isolation-{backend}-{time.monotonic_ns()}"
    folder.mkdir()
    with served(_url(stage, backend, folder), folder) as one:
        noise = Noise(few=stage.plan.quick)
        _fill(one)
        seconds = stage.plan.seconds
        quiet = [_p99(one, kind, seconds) for kind in (_append, _health)]
        before = one.process.memory_info().rss
        seen: list[tuple[int, int]] = [(before, 0)]
        with _loud(one, noise, 3 * seconds + 2) as stored, _watched(one, stored, seen):
            beside = [_p99(one, kind, seconds) for kind in (_append, _health)]
            began = time.monotonic()
            one.process.send_signal(signal.SIGTERM)
            with suppress(psutil.TimeoutExpired):
                one.process.wait(2 * GRACE_S)
            ended_s = time.monotonic() - began
    budget = Serving().tenant_memory_bytes // MIB
    return [
        *(
            Figure(
                name=f"{what} beside a tenant at its bounds / quiet, p99, {backend}",
                measured=loud / calm,
                goal=GOAL,
                at_most=True,
                p99_ms=loud,
                against=f"quiet, p99 {calm:.2f} ms",
            )
            for what, calm, loud in zip(("append", "/health"), quiet, beside, strict=True)
        ),
        *_memory(backend, [(rss - before, kept) for rss, kept in seen], budget + SLACK_MIB),
        Figure(
            name=f"SIGTERM beside a tenant at its bounds, {backend}",
            measured=ended_s,
            goal=GRACE_S + 1,
            unit="s",
            at_most=True,
        ),
    ]


def _memory(backend: str, seen: list[tuple[int, int]], goal: int) -> list[Figure]:
    """Return the memory growth; the events that a log in memory stores have their own figure."""
    in_memory = backend == "memory"
    growth = max(grown - (kept if in_memory else 0) for grown, kept in seen)
    name = f"memory growth by a tenant at its bounds, {backend}"
    found = Figure(name=name, measured=max(0.01, growth / MIB), goal=goal, unit="MiB", at_most=True)
    if not in_memory:
        return [found]
    total = max(grown for grown, _ in seen)
    kept = max(kept for _, kept in seen)
    return [
        dataclasses.replace(found, against=f"without the log's own events, {kept / MIB:.0f} MiB"),
        Figure(name=f"{name}, with the log's own events", measured=total / MIB, unit="MiB"),
    ]


def _url(stage: ServiceStage, backend: str, folder: Path) -> str:
    if backend == "postgres":
        return stage.log.url
    return "memory:" if backend == "memory" else f"sqlite:///{folder}/log.db"


@contextmanager
def served(url: str, folder: Path) -> Iterator[Served]:
    """Run `seriatim serve` as users do."""
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
            found = next(match for line in process.stderr if (match := _AT.search(line)))
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield Served(psutil.Process(process.pid), int(found[1]), loud, calm)
        finally:
            process.kill()
            drain.join()


def _fill(one: Served) -> None:
    filler = "x" * 1_000_000
    numbers = [f"v{n}" for n in range(4000)]
    with socket.create_connection(("127.0.0.1", one.port)) as link:
        for n in range(STORED):
            _ask(link, _events(one.loud, {"n": n, "a": filler}))
        for _ in range(STORED):
            _ask(link, _events(one.loud, {"b": numbers}))
        _ask(link, _events(one.calm, {"n": 1}))


def _events(token: str, payload: Any) -> bytes:
    event = {"event_type": "bench", "payload": payload}
    return request_bytes("/v1/events", token, _encode({"events": [event]}))


def _ask(link: socket.socket, request: bytes) -> bytes:
    """Send a request, and return the head of its answer once all of it has come."""
    link.sendall(request)
    got = b""
    while b"\r\n\r\n" not in got:
        got += link.recv(1 << 18) or b"\r\n\r\n"
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
    while len(body) < length:
        piece = link.recv(1 << 18)
        if not piece:
            break
        body += piece
    return head


def _append(one: Served) -> bytes:
    return _events(one.calm, {"n": 2})


def _health(_: Served) -> bytes:
    return b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"


def _p99(one: Served, kind: Callable[[Served], bytes], seconds: float) -> float:
    ask = load(one.port, 1, lambda: kind(one))
    samples = [ask(seconds)]
    while not any(sample.latencies_s for sample in samples) and len(samples) < TRIES:
        samples.append(ask(5 * seconds))  # on a busy machine one answer may take as long
    return max(Series.of([one]).p99_ms or 0.0 for one in samples)


@contextmanager
def _watched(one: Served, stored: Any, seen: list[tuple[int, int]]) -> Iterator[None]:
    """Look at the memory of a service, and at what was stored in it, while a block runs."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            with suppress(psutil.Error):
                kept = stored.value  # first: what is stored later grows the memory only
                seen.append((one.process.memory_info().rss, kept))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


@contextmanager
def _loud(one: Served, noise: Noise, seconds: float) -> Iterator[Any]:
    """Let a tenant do everything at once, from a process of its own; yield the bytes it stored."""
    context = multiprocessing.get_context("spawn")
    begun, stored = context.Event(), context.Value("Q")
    process = context.Process(
        target=make_noise, args=(one.port, one.loud, noise, seconds, begun, stored)
    )
    process.start()
    begun.wait(60)
    try:
        yield stored
    finally:
        process.kill()
        process.join()


def make_noise(  # noqa: PLR0913 - a process of its own
    port: int, token: str, noise: Noise, seconds: float, begun: Any, stored: Any
) -> None:
    """Hold bodies and answers, follow with predicates, append and query without a pause.

    The bytes of appends that were acknowledged are added to `stored`.
    """
    os.nice(15)  # elsewhere it would have processors of its own
    until = time.monotonic() + seconds
    predicates = [
        {"b": [f"v{n}" for n in range(60 * at, 60 * at + 60)]} for at in range(noise.of(60))
    ]
    bodies, readers = noise.of(BODIES), noise.of(READERS)
    query = _encode({"query": {"filters": [{"payload": predicates}]}})
    with ExitStack() as stack:
        for at in range(bodies + readers):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.sendall(_unfinished(token) if at < bodies else _unread(token, at))
        requests = [
            _events(token, {"b": [f"v{n}" for n in range(noise.of(20_000))]}),
            request_bytes("/v1/query", token, query),
            _events(token, {"password": "refused"}),
        ]
        threads = [
            threading.Thread(
                target=_repeat, args=(port, requests[at % 3], until, stored), daemon=True
            )
            for at in range(noise.of(3 * FLOOD) if noise.few else FLOOD)
        ]
        for one in threads:
            one.start()
        begun.set()
        while time.monotonic() < until:
            time.sleep(0.1)


def _unfinished(token: str) -> bytes:
    whole = request_bytes("/v1/events", token, b" " * (17 * MIB - 1024))
    return whole[:-1]


def _unread(token: str, at: int) -> bytes:
    path = "/v1/events" if at % 2 else "/v1/tail?after=0"
    return f"GET {path} HTTP/1.1\r\nhost: b\r\nauthorization: Bearer {token}\r\n\r\n".encode()


def _repeat(port: int, request: bytes, until: float, stored: Any) -> None:
    size = len(request) - request.index(b"\r\n\r\n")
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as link:
            status = b""
            while time.monotonic() < until and b" 5" not in status:
                status = _ask(link, request)[:14]
                if b" 201" in status:
                    with stored.get_lock():
                        stored.value += size

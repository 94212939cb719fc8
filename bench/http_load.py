"""Load over plain sockets: as many connections as told, each sends its next when it is answered."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from bench.harness import Contestant, Sample

CREATED = b" 201 "
OK = b" 200 "
_END = b"\r\n\r\n"


def request_bytes(path: str, token: str, body: bytes) -> bytes:
    """Return a request as it travels."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def load(port: int, connections: int, make: Callable[[], bytes], *, events: int = 1) -> Contestant:
    """Return so many connections that ask and ask again; `make` gives the next request."""

    def run(seconds: float) -> Sample:
        with closing(select.epoll()) as ready:
            lines = {line.fileno(): line for line in _connected(port, connections)}
            try:
                for number, line in lines.items():
                    ready.register(number, select.EPOLLIN)
                    line.ask(make())
                return _run(ready, lines, make, seconds, events)
            finally:
                for line in lines.values():
                    line.close()

    return run


class Line:
    """One connection, and when it asked."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""
        self.asked_at = 0.0
        self.fileno = self._socket.fileno
        self.close = self._socket.close

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.asked_at = time.perf_counter()
        self._socket.sendall(request)

    def answered(self) -> bool:
        """Take in what has come; True when it is a whole answer, and a good one."""
        self._got += self._socket.recv(1 << 18)
        head, found, body = self._got.partition(_END)
        if not found:
            return False
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return False
        if CREATED not in head[:20] and OK not in head[:20]:
            msg = f"the service refused: {self._got[:500]!r}"
            raise RuntimeError(msg)
        self._got = b""
        return True


def _connected(port: int, connections: int) -> Iterator[Line]:
    for _ in range(connections):
        yield Line(port)


def _run(
    ready: select.epoll,
    lines: dict[int, Line],
    make: Callable[[], bytes],
    seconds: float,
    events: int,
) -> Sample:
    latencies: list[float] = []
    started = time.perf_counter()
    until = started + seconds
    while (now := time.perf_counter()) < until:
        for number, _ in ready.poll(until - now):
            line = lines[number]
            if line.answered():
                latencies.append(time.perf_counter() - line.asked_at)
                line.ask(make())
    return Sample(len(latencies) * events, now - started, latencies)

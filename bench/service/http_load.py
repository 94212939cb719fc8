"""A closed-loop HTTP load generator over plain sockets, in one thread."""

import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from bench.measurement import Sample, Subject

CREATED = b" 201 "
OK = b" 200 "
_END = b"\r\n\r\n"


def request_bytes(path: str, token: str, body: bytes, tenant_id: str = "") -> bytes:
    """Return the bytes of a POST request."""
    tenant = f"seriatim-tenant: {tenant_id}\r\n" if tenant_id else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n{tenant}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_request(address: str, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a GET request."""
    lines = [f"GET {address} HTTP/1.1", "host: bench"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def load(port: int, connections: int, make: Callable[[], bytes], *, events: int = 1) -> Subject:
    """Return a subject of connections that each send the next request after a response.

    Args:
        port: The port of the service on loopback.
        connections: The number of connections.
        make: Returns the bytes of the next request.
        events: The number of events in a request.

    """

    def run(seconds: float) -> Sample:
        with closing(select.epoll()) as ready:
            open_connections = {
                connection.fileno(): connection for connection in _connect(port, connections)
            }
            try:
                for number, connection in open_connections.items():
                    ready.register(number, select.EPOLLIN)
                    connection.send(make())
                return _run(ready, open_connections, make, seconds, events)
            finally:
                for connection in open_connections.values():
                    connection.close()

    return run


class HttpConnection:
    """One connection, the time of its last request, and its last response.

    Args:
        port: The port of the service on loopback.
        expected: The statuses of accepted responses, as in a status line.
    """

    def __init__(self, port: int, expected: Sequence[bytes] = (CREATED, OK)) -> None:
        self._expected = expected
        self.head = self.body = b""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.sent_at = 0.0
        self.fileno = self._socket.fileno
        self.close = self._socket.close

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.sent_at = time.perf_counter()
        self._socket.sendall(request)

    def receive(self) -> bool:
        """Read available bytes; return whether the response is complete.

        Raises:
            RuntimeError: If the service refused the request.

        """
        self._received += self._socket.recv(1 << 18)
        head, separator, body = self._received.partition(_END)
        if not separator:
            return False
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return False
        if not any(status in head[:20] for status in self._expected):
            msg = f"the service refused a request: {self._received[:500]!r}"
            raise RuntimeError(msg)
        self.head, self.body = head, body
        self._received = b""
        return True

    def fetch(self, request: bytes) -> int:
        """Send a request, wait for its response, and return the size of its body."""
        self.send(request)
        while not self.receive():
            pass
        return len(self.body)


def _connect(port: int, connections: int) -> Iterator[HttpConnection]:
    for _ in range(connections):
        yield HttpConnection(port)


def _run(
    ready: select.epoll,
    open_connections: dict[int, HttpConnection],
    make: Callable[[], bytes],
    seconds: float,
    events: int,
) -> Sample:
    latencies: list[float] = []
    started = time.perf_counter()
    until = started + seconds
    while (now := time.perf_counter()) < until:
        for number, _ in ready.poll(until - now):
            connection = open_connections[number]
            if connection.receive():
                latencies.append(time.perf_counter() - connection.sent_at)
                connection.send(make())
    return Sample(len(latencies) * events, now - started, latencies)

"""Measure a page and its API reads, in turn."""

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import msgspec

from bench.console.http_server import READS, ApiRead
from bench.console.pages import MeasuredPage
from bench.measurement import Figure, percentile_ms
from bench.service.http_load import HttpConnection, read_request, request_bytes

GOAL = 2.0  # the time of a page over that of its reads
_WARM_UPS = 3


@dataclass(frozen=True)
class PageVisitor:
    """A session of the console, and a token for the API reads of its pages."""

    port: int
    token: str
    cookie: str

    @classmethod
    def sign_in(cls, port: int, token: str) -> "PageVisitor":
        """Open a session."""
        form = urlencode({"token": token}).encode()
        with closing(HttpConnection(port, expected=(b" 303 ",))) as connection:
            connection.fetch(
                b"POST /console/sign-in HTTP/1.1\r\nhost: bench\r\n"
                b"content-type: application/x-www-form-urlencoded\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(form), form)
            )
            head = connection.head.decode("latin-1")
        cookie = head.partition("set-cookie: ")[2].partition(";")[0]
        return cls(port, token, cookie)

    def page_request(self, page: MeasuredPage) -> bytes:
        """Return the bytes of a request for a page."""
        return read_request(page.address, {"cookie": self.cookie})

    def api_request(self, read: ApiRead) -> bytes:
        """Return the bytes of a request for an API read."""
        if read.method == "POST":
            return request_bytes(
                read.path, self.token, read.body.encode(), tenant_id=read.tenant_id
            )
        address = f"{read.path}?{read.query}" if read.query else read.path
        headers = {"authorization": f"Bearer {self.token}", "seriatim-tenant": read.tenant_id}
        return read_request(address, headers)


def measure_page(
    visitor: PageVisitor, page: MeasuredPage, name: str, *, rounds: int, seconds: float
) -> Figure:
    """Measure a page in alternation with its reads.

    The reads are those that the page makes in the process, sent one after another over the same
    connection. Reads that fail, such as that of an absent registry, are left out.

    Args:
        visitor: The session.
        page: The page.
        name: The name of the figure.
        rounds: The number of rounds.
        seconds: The duration of each round.
    """
    shown = visitor.page_request(page)
    with closing(HttpConnection(visitor.port)) as connection:
        reads = [visitor.api_request(read) for read in _find_reads(connection, visitor, shown)]
        measured = [_measure_round(connection, shown, reads, seconds) for _ in range(rounds)]
        size = connection.fetch(shown)
    pages = [percentile_ms([one for one, _ in found], 0.5) or 0.0 for found in measured]
    behind = [percentile_ms([one for _, one in found], 0.5) or 0.0 for found in measured]
    p99s = [percentile_ms([one for one, _ in found], 0.99) or 0.0 for found in measured]
    figure = Figure(
        name=name,
        measured=statistics.median(pages),
        unit="ms",
        p50_ms=statistics.median(pages),
        p99_ms=statistics.median(p99s),
        against="no API read",
        rounds=tuple(pages),
        response_bytes=size,
    )
    if not reads:
        return figure
    ratios = tuple(one / other for one, other in zip(pages, behind, strict=True))
    return replace(
        figure,
        measured=statistics.median(ratios),
        goal=GOAL,
        at_most=True,
        unit="x",
        against=f"{_count(reads)}, p50 {statistics.median(behind):.3g} ms",
        rounds=ratios,
    )


def _count(reads: Sequence[bytes]) -> str:
    return f"{len(reads)} API read{'' if len(reads) == 1 else 's'}"


def _find_reads(connection: HttpConnection, visitor: PageVisitor, shown: bytes) -> list[ApiRead]:
    """Return the reads that a page makes, after some visits that warm up caches."""
    recorded = read_request(READS, {"authorization": f"Bearer {visitor.token}"})
    for _ in range(_WARM_UPS):
        connection.fetch(shown)
    connection.fetch(recorded)
    connection.fetch(shown)
    connection.fetch(recorded)
    return msgspec.json.decode(connection.body, type=list[ApiRead])


def _measure_round(
    connection: HttpConnection, shown: bytes, reads: Sequence[bytes], seconds: float
) -> list[tuple[float, float]]:
    """Return the seconds of the page and of its reads, in turn for some seconds."""
    found: list[tuple[float, float]] = []
    until = time.perf_counter() + seconds
    while not found or time.perf_counter() < until:
        started = time.perf_counter()
        connection.fetch(shown)
        between = time.perf_counter()
        for read in reads:
            connection.fetch(read)
        found.append((between - started, time.perf_counter() - between))
    return found

"""Pages are limited in bytes on every backend, for any sequence of event sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import Filter, Log, NewEvent, Query
from seriatim.api.read_endpoints import RESPONSE_BYTES
from seriatim.client.store import HttpStore
from seriatim.core.event import EventRecord
from seriatim.core.limits import KIB
from seriatim.log.batches import iterate_pages_after, read_first_records
from seriatim.store.port import ReadSpec
from seriatim.store.postgres import queries
from seriatim.store.postgres.reader import Rows, TenantReader
from seriatim.store.postgres.statements import decode_record
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import run_service

SMALL, LARGE = 40, 30
LARGE_BYTES = 100 * KIB
BOUND = 250 * KIB
WIDE = "€" * (LARGE_BYTES // 3)
PREDICATE = {"list": [f"v{n}" for n in range(40)]}  # more elements than the server compares

QUERIES = [
    Query(),
    Query([Filter(types=["small"]), Filter(types=["large"])]),
    Query([Filter(types=["small", "large", "absent"])]),
    Query([Filter(tags=["t"])]),
    Query([Filter(tags=["t"]), Filter(streams=[("order", "o-1")]), Filter(tags=["t", "u"])]),
    Query([Filter(payload=[PREDICATE])]),
    Query([Filter(payload=[{"odd": True}]), Filter(payload=[{"odd": False}])]),
]
SPECS: list[dict[str, Any]] = [
    {},
    {"types": ("small", "large")},
    {"stream": ("order", "o-1")},
    {"correlation_id": "c"},
    {"types": ("*",)},
]


def event(number: int) -> NewEvent:
    """Return a small event, or from number SMALL on a large one with ASCII or wide text."""
    large = number >= SMALL
    filler = ("x" * LARGE_BYTES if number % 2 else WIDE) if large else ""
    return NewEvent(
        "large" if large else "small",
        {"n": number, "odd": number % 2 == 1, "filler": filler, **PREDICATE},
        stream=("order", "o-1"),
        tags=("t", "u"),
        correlation_id="c",
    )


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres", "http"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A log on each backend with small events followed by large ones."""
    folder: Path = tmp_path_factory.mktemp("pages")
    url = {"memory": "memory:", "sqlite": f"sqlite:///{folder}/log.db"}.get(request.param)
    with ExitStack() as stack:
        token = None
        if request.param == "http":
            service = stack.enter_context(run_service(f"sqlite:///{folder}/served.db"))
            url, token = service.url, service.token(tenant_id="default")
        if request.param == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            template = request.getfixturevalue("postgres_template")
            url = server.create_database(f"pages_{folder.name}", template)
        opened = stack.enter_context(seriatim.open(url, token=token))
        for number in range(SMALL + LARGE):
            opened.append([event(number)])
        yield opened


def numbers(records: list[EventRecord]) -> list[int]:
    """Return the numbers of records."""
    return [record.payload["n"] for record in records]


def size(records: list[EventRecord]) -> int:
    """Return the bytes of the records' payloads."""
    return sum(len(record.payload_json.encode()) for record in records)


def is_bounded(log: Log, page: list[EventRecord]) -> bool:
    """Return whether a page ends with the record that reaches its bound."""
    return size(page[:-1]) < (RESPONSE_BYTES if isinstance(log.store, HttpStore) else BOUND)


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest", "newest"])
@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_query_pages_are_bounded_in_bytes(log: Log, query: Query, newest_first: bool) -> None:
    """K3: a page of a query ends at the event that reaches its bytes; pages have all events."""
    found: list[int] = []
    after, until = 0, log.head()
    while page := log.store.select(
        log.tenant_id, query, after, until, 1000, newest_first=newest_first, max_bytes=BOUND
    ):
        assert is_bounded(log, page)
        found += numbers(page)
        last = page[-1].position
        after, until = (after, last - 1) if newest_first else (last, until)
        if after >= until:
            break

    expected = range(SMALL + LARGE)
    assert found == list(reversed(expected) if newest_first else expected)


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest", "newest"])
@pytest.mark.parametrize("filters", SPECS, ids=range(len(SPECS)))
def test_read_pages_are_bounded_in_bytes(
    log: Log, filters: dict[str, Any], newest_first: bool
) -> None:
    """K3, E1: a page of a read ends at the event that reaches its bytes; pages have all events."""
    spec = ReadSpec(
        tenant_id=log.tenant_id,
        limit=1000,
        max_bytes=BOUND,
        newest_first=newest_first,
        **filters,
    )
    batches = list(log.iterate_batches(spec))

    assert all(is_bounded(log, page) for page in batches)
    found = [number for page in batches for number in numbers(page)]
    expected = range(SMALL + LARGE)
    assert found == list(reversed(expected) if newest_first else expected)


def test_paging_continues_after_a_page_cut_by_bytes(log: Log) -> None:
    """K3: paging continues after a page that ended at its bytes."""

    def read(after: int, limit: int, max_bytes: int) -> list[EventRecord]:
        assert limit <= 33
        return log.store.select(log.tenant_id, Query(), after, log.head(), limit, max_bytes=BOUND)

    found = list(iterate_pages_after(read, 0, 33, BOUND))

    assert numbers([record for page in found for record in page]) == list(range(SMALL + LARGE))
    assert all(len(page) <= 33 for page in found)
    assert all(first[-1].position < second[0].position for first, second in pairwise(found))


def test_first_records_are_bounded_in_bytes(log: Log) -> None:
    """K3: the first records of a read end when their total size is reached."""

    def read(after: int, limit: int, max_bytes: int) -> list[EventRecord]:
        return log.store.select(
            log.tenant_id, Query(), after, log.head(), limit, max_bytes=max_bytes
        )

    whole = read_first_records(read, 0, 1000, 1 << 30, step=BOUND)
    some = read_first_records(read, 0, 1000, 2 * BOUND, step=BOUND)
    few = read_first_records(read, 0, 3, 1 << 30, step=BOUND)

    assert numbers(whole) == list(range(SMALL + LARGE))
    assert len(some) > SMALL
    assert len(some) < SMALL + LARGE or isinstance(log.store, HttpStore)
    assert numbers(few) == [0, 1, 2]


def test_candidates_of_a_costly_predicate_are_read_in_small_pages(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: candidates for the matcher are read in pages of bounded bytes."""
    held: list[int] = []
    monkeypatch.setattr(queries, "CANDIDATE_PAGE_BYTES", BOUND)
    with seriatim.open(postgres_url) as log:
        log.append([event(number) for number in range(SMALL + LARGE)])
        run = TenantReader.fetch_rows

        def counted(reader: TenantReader, *arguments: Any, **options: Any) -> Rows:
            rows = run(reader, *arguments, **options)
            held.append(sum(len(decode_record(row).payload_json.encode()) for row in rows))
            return rows

        monkeypatch.setattr(TenantReader, "fetch_rows", counted)
        costly = Query([Filter(payload=[PREDICATE])])
        found = log.store.select(log.tenant_id, costly, 0, SMALL + LARGE, 1000)

    assert numbers(found) == list(range(SMALL + LARGE))
    assert max(held) < BOUND + 2 * LARGE_BYTES

"""A query during concurrent appends returns records and version of one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import ExpectedContext, Filter, Log, NewEvent, Query
from seriatim.store.port import Store
from tests.fixtures.service import run_service

SEATS = Query([Filter(types=["seat.taken"])])
BACKENDS = ["memory", "sqlite", "postgres", "http"]
READS = ("head", "context_version", "select")

Opened = tuple[Log, Log]  # the log under test, and the one whose store does its reading


@pytest.fixture(params=BACKENDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """A log on each backend and over HTTP, and the log whose store reads for it."""
    with ExitStack() as stack:
        if request.param == "http":
            service = stack.enter_context(run_service(f"sqlite:///{tmp_path}/log.db"))
            client = seriatim.open(service.url, token=service.token(tenant_id="default"))
            yield stack.enter_context(client), service.service.view("default")
            return
        url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/log.db"}.get(
            request.param
        ) or request.getfixturevalue("postgres_url")
        log = stack.enter_context(seriatim.open(url))
        yield log, log


def append_after_each_read(patch: pytest.MonkeyPatch, log: Log, most: int = 1000) -> list[str]:
    """Append a matching event after the first `most` reads of a store; return those reads."""
    reads: list[str] = []

    def wrapped(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: object) -> Any:
            found = read(*args, **options)
            if not busy and len(reads) < most:
                busy.append(name)
                reads.append(name)
                log.append([NewEvent("seat.taken", {"by": name})])
                busy.clear()
            return found

        return act

    busy: list[str] = []
    store: Store = log.store
    for name in READS:
        patch.setattr(store, name, wrapped(name, getattr(store, name)))
    return reads


def test_version_covers_only_returned_records(opened: Opened) -> None:
    """D1: events appended between the reads of a query are neither returned nor covered."""
    log, beside = opened
    log.append([NewEvent("seat.taken", {"n": n}) for n in range(3)])
    with pytest.MonkeyPatch.context() as patch:
        reads = append_after_each_read(patch, beside)
        found = log.query(SEATS)

    assert {"head", "select"} <= set(reads)
    assert [record.position for record in found.records] == [1, 2, 3]
    assert (found.last_returned_position, found.context_version, found.head) == (3, 3, 3)


def test_pages_keep_the_version_of_the_first(opened: Opened) -> None:
    """D1: later pages of a query have the version of the first, despite concurrent appends."""
    log, beside = opened
    log.append([NewEvent("seat.taken", {"n": n}) for n in range(5)])
    with pytest.MonkeyPatch.context() as patch:
        append_after_each_read(patch, beside)
        pages = [log.query(SEATS, limit=2)]
        while pages[-1].more:
            last = pages[-1]
            pages.append(
                log.query(SEATS, limit=2, after=last.last_returned_position, head=last.head)
            )

    assert [[record.position for record in page.records] for page in pages] == [[1, 2], [3, 4], [5]]
    assert {page.context_version for page in pages} == {5}


def test_unreturned_event_fails_the_condition(opened: Opened) -> None:
    """D1: an append on the version of a query conflicts with an event that it did not return."""
    log, beside = opened
    log.append([NewEvent("seat.taken", {"n": 1})])
    with pytest.MonkeyPatch.context() as patch:
        append_after_each_read(patch, beside, most=1)
        found = log.query(SEATS)
    condition = ExpectedContext(SEATS, found.context_version)

    with pytest.raises(seriatim.ConditionalAppendConflict):
        log.append([NewEvent("seat.taken", {"n": 2})], condition=condition)

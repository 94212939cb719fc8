"""A slow read is cancelled in the database and raises a timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import seriatim
from seriatim import ExpectedContext, Filter, Log, NewEvent, Query, Settings, TimedOut
from tests.faults.support import wait_until
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import run_service

NOWHERE = Query([Filter(payload=[{"a": "nowhere"}])])  # without an index: the whole log is read
EVENTS = 20_000
PATIENCE_S = 0.01


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a log in which a search takes a while."""
    if request.param == "sqlite":
        yield fill_log(f"sqlite:///{tmp_path_factory.mktemp('slow')}/log.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template = request.getfixturevalue("postgres_template")
    yield fill_log(server.create_database("slow_reads", template))
    server.drop_database("slow_reads")


def fill_log(url: str) -> str:
    """Append many events to a log and return its URL."""
    with seriatim.open(url) as log:
        filler = "x" * 400
        for first in range(0, EVENTS, 5000):
            log.append([NewEvent("a", {"a": first + n, "filler": filler}) for n in range(5000)])
    return url


@pytest.mark.parametrize(
    "read",
    [
        lambda log: log.query(NOWHERE),
        lambda log: log.append([NewEvent("b")], ExpectedContext(NOWHERE, None)),
    ],
    ids=["query", "condition"],
)
def test_a_slow_read_times_out(url: str, read: Callable[[Log], object]) -> None:
    """K3: a slow read is a timeout, not a backend failure, and quick reads still work."""
    with seriatim.open(url, settings=Settings(read_timeout_s=PATIENCE_S)) as log:
        before = log.head()
        with pytest.raises(TimedOut, match=r"exceeded 0\.01 s"):
            read(log)
        assert log.head() == before
        wait_until(lambda: first_three(log) == [1, 2, 3], "a quick read succeeds")


def first_three(log: Log) -> list[int] | None:
    """Return the first three positions, or None if the read timed out."""
    try:
        return [record.position for record in log.page(limit=3).records]
    except TimedOut:  # the machine was busy with something else
        return None


def test_service_limits_the_time_of_reads(url: str) -> None:
    """K3: reads of a service are limited by its request timeout."""
    with run_service(url, request_timeout_s=7.0) as service:
        assert service.service.log.settings.read_timeout_s == 7.0

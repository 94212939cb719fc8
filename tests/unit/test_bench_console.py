"""A smoke test of the console benchmark: a generated log is consistent, and pages are measured."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import seriatim
from bench.console.loading import load_log
from bench.console.page_load import GOAL, PageVisitor, measure_page
from bench.console.pages import list_pages
from bench.console.rows import OTHER_TENANT, ROW_COLUMNS, SMALL_TENANT, make_rows
from bench.console.suite import BACKENDS, SECTIONS, SERVER, parse_plan
from bench.service.suite import create_token, run_service
from seriatim.log.verification import verify
from tests.fixtures.postgres_server import PostgresServer

EVENTS = 4000
BRIEF = 0.02


@pytest.fixture(params=["sqlite", "postgres"])
def generated_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a generated log."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/log.db"
        load_log(url, EVENTS)
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database("bench_console")
    load_log(url, EVENTS)
    yield url
    server.drop_database("bench_console")


def test_a_generated_log_is_a_real_one(generated_url: str) -> None:
    """A log that was loaded in bulk passes every check, and accepts further appends."""
    with seriatim.open(generated_url) as log:
        report = verify(log.store, lookups=200)
        others = [log.for_tenant(name).page(limit=1) for name in (OTHER_TENANT, SMALL_TENANT)]
        receipt = log.append([seriatim.NewEvent("page.viewed", {}, stream=("ledger", "main"))])

    assert report.ok, report.findings
    assert report.events == EVENTS
    assert all(page.records for page in others)
    assert receipt.first_position == EVENTS + 1


def test_generated_rows_do_not_depend_on_chance() -> None:
    """The rows of a log are the same in each run, and positions have no gaps."""
    tags: list[bytes] = []
    rows = list(make_rows(400, tags))

    assert rows == list(make_rows(400, []))
    assert all(len(row) == len(ROW_COLUMNS) for row in rows)
    assert all(later[0] == row[0] + 1 for row, later in pairwise(rows))
    assert tags


def test_pages_are_measured_in_turn_with_their_reads(tmp_path: Path) -> None:
    """Each page responds; its figure has a ratio, percentiles and a size."""
    url = f"sqlite:///{tmp_path}/log.db"
    load_log(url, EVENTS)
    pages = [page for page in list_pages(EVENTS) if page.name in ("events, newest", "why")]
    with run_service(url, SERVER) as port:
        visitor = PageVisitor.sign_in(port, create_token(url, "t", rights=("read", "operate")))
        listed, form = (
            measure_page(visitor, page, page.name, rounds=1, seconds=BRIEF) for page in pages
        )

    assert (listed.goal, listed.unit, listed.at_most) == (GOAL, "x", True)
    assert listed.against is not None
    assert listed.against.startswith("3 API reads")
    assert (form.goal, form.unit, form.against) == (None, "ms", "no API read")
    for figure in (listed, form):
        assert figure.measured > 0
        assert (figure.p99_ms or 0) >= (figure.p50_ms or 0) > 0
        assert (figure.response_bytes or 0) > 1000


def test_only_a_full_run_is_published() -> None:
    """Both backends and all events are needed to replace the published results."""
    assert tuple(BACKENDS) == SECTIONS
    assert parse_plan([]).is_publishable
    assert parse_plan([]).events == 10_000_000
    assert not parse_plan(["--quick"]).is_publishable
    assert not parse_plan(["--events", "1000000"]).is_publishable
    assert not parse_plan(["--only", "sqlite"]).is_publishable

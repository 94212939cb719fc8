"""A smoke test of the benchmark of the local engine: every section runs and compares."""

import random
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from bench.local.plan import SECTIONS as NAMES
from bench.local.plan import LocalEnvironment, LocalPlan, parse_plan
from bench.local.suite import SECTIONS
from bench.measurement import Figure
from bench.report_page import _SUITES
from bench.seriatim_log import SeriatimLog
from bench.workload import make_order_batches
from tests.fixtures.postgres_server import PostgresServer

PLAN = LocalPlan(events=2000, live_events=2, crossover_sizes=(500,), rounds=1, quick=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(
    spark: SparkSession,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalEnvironment]:
    """Two small logs."""
    home = tmp_path_factory.mktemp("bench")
    url = postgres_server.create_database(f"bench_local_{random.randrange(1 << 32):08x}")
    with SeriatimLog(url) as postgres, SeriatimLog(f"sqlite:///{home}/log.db") as sqlite:
        for log in (postgres, sqlite):
            log.append_batches(make_order_batches(0, PLAN.events, 1000))
        yield LocalEnvironment(
            plan=PLAN,
            server=postgres_server,
            home=home,
            postgres=postgres,
            sqlite=sqlite,
            report=lambda _: None,
        )


def test_every_section_has_a_name() -> None:
    """The sections of the command line are those that the benchmark runs."""
    assert tuple(SECTIONS) == NAMES
    assert "local" in _SUITES


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_each_section_returns_figures(
    section: Callable[[LocalEnvironment], list[Figure]], environment: LocalEnvironment
) -> None:
    """Each section returns positive figures with their rounds."""
    figures = section(environment)

    assert figures
    assert all(figure.rounds and figure.measured > 0 for figure in figures)


def test_only_full_runs_replace_the_stored_results() -> None:
    """Only runs of full size count as whole, so smaller runs replace no stored results."""
    assert parse_plan([]).is_publishable
    assert not parse_plan(["--quick"]).is_publishable
    assert not parse_plan(["--only", "live"]).is_publishable
    assert not parse_plan(["--events", "100000"]).is_publishable

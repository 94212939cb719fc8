"""A smoke test of the pipeline benchmark: every section runs and compares."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from bench.measurement import Figure
from bench.pipeline.baselines import copy_out
from bench.pipeline.competitors import TransactionPerEventProjector, fold_in_loop
from bench.pipeline.plan import SECTIONS as NAMES
from bench.pipeline.plan import PipelineEnvironment, PipelinePlan, parse_plan
from bench.pipeline.rebuild import count_differences
from bench.pipeline.suite import SECTIONS
from bench.pipeline.trace_workload import BLOCK, make_trace_batches
from bench.plan import GROWTH
from bench.seriatim_log import SeriatimLog
from bench.workload import make_order_batches
from seriatim.core.decision_graph import Graph
from tests.fixtures.postgres_server import PostgresServer

PLAN = PipelinePlan(
    events=4000,
    large_events=6000,
    small_events=2000,
    trace_events=2000,
    batch_events=1500,
    segment_events=1500,
    live_events=2,
    rounds=1,
    seconds=0.5,
    large=True,
    quick=True,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(
    spark: SparkSession, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelineEnvironment]:
    """Two small logs and the tests' own session."""
    mark = f"{random.randrange(1 << 32):08x}"
    urls = [postgres_server.create_database(f"bench_{name}_{mark}") for name in ("log", "traces")]
    with SeriatimLog(urls[0]) as log, SeriatimLog(urls[1]) as traces:
        log.append_batches(make_order_batches(0, PLAN.events, 1000))
        traces.append_batches(make_trace_batches(0, PLAN.trace_events, 1000))
        yield PipelineEnvironment(
            plan=PLAN,
            server=postgres_server,
            home=tmp_path_factory.mktemp("bench"),
            spark=spark,
            log=log,
            traces=traces,
            report=lambda _: None,
        )


def test_every_section_has_a_name() -> None:
    """The sections of the command line are those that the benchmark runs, growth last."""
    assert tuple(SECTIONS) == NAMES
    assert NAMES[-1] == GROWTH


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_each_section_returns_figures(
    section: Callable[[PipelineEnvironment], list[Figure]], environment: PipelineEnvironment
) -> None:
    """Each section returns positive figures, at least one of them with a goal."""
    figures = section(environment)

    assert any(figure.goal is not None for figure in figures)
    assert all(figure.rounds for figure in figures)
    assert all(figure.measured > 0 for figure in figures if figure.unit != "MiB")


def test_a_changed_row_is_counted_as_a_difference(
    environment: PipelineEnvironment, tmp_path: Path
) -> None:
    """The tables of loop and copy are equal, and a changed row is counted as a difference."""
    events = environment.log.log.head()
    assert fold_in_loop(environment.url) == copy_out(environment.url) == events > 0
    with psycopg.connect(environment.url, autocommit=True) as session:
        session.execute("create schema same")
        session.execute("create table same.orders as select * from loop_orders")
        assert count_differences(environment.url, "same") == 0
        session.execute("update same.orders set events = 0 where stream_id = 'o-00000000'")
        assert count_differences(environment.url, "same") == 2
        assert session.execute("select sum(events) from loop_orders").fetchone() == (events,)


def test_the_comparison_projector_builds_the_graph(postgres_url: str) -> None:
    """The projector with one transaction per event builds the graph of T3."""
    with SeriatimLog(postgres_url) as log:
        log.append_batches(make_trace_batches(0, BLOCK, BLOCK))
        rival = TransactionPerEventProjector(log.log, postgres_url)
        count = rival.run(seconds=60.0).events
        rival.close()
        graph = Graph()
        for record in log.log.read():
            graph.add(record)
    with psycopg.connect(postgres_url) as session:
        found = [
            session.execute(f"select count(*) from rival.{table}").fetchone()
            for table in ("nodes", "edges", "traces", "precedents")
        ]

    assert count == BLOCK
    wanted = (graph.nodes, graph.edges, graph.traces, list(graph.precedents()))
    assert found == [(len(rows),) for rows in wanted]


def test_only_full_runs_replace_the_stored_results() -> None:
    """Only runs of full size count as whole, so smaller runs replace no stored results."""
    assert parse_plan([]).is_publishable
    assert parse_plan(["--large"]).is_publishable
    assert not parse_plan(["--quick"]).is_publishable
    assert not parse_plan(["--only", "read"]).is_publishable
    assert not parse_plan(["--events", "100000"]).is_publishable
    assert parse_plan(["--events", "100000"]).batch_events == 20_000

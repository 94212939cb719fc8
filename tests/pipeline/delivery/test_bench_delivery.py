"""A smoke test of the delivery benchmark: every section runs and compares."""

import random
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from bench.delivery.plan import SECTIONS as NAMES
from bench.delivery.plan import DeliveryEnvironment, DeliveryPlan, parse_plan
from bench.delivery.suite import SECTIONS
from bench.measurement import Figure
from bench.plan import GROWTH
from bench.seriatim_log import SeriatimLog
from bench.workload import make_order_batches
from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.postgres_server import PostgresServer

PLAN = DeliveryPlan(
    events=2000, large_events=2000, handled=1000, rounds=1, seconds=0.3, large=True, quick=True
)


@pytest.fixture(scope="module")
def environment(
    spark: SparkSession,
    kafka: KafkaBroker,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[DeliveryEnvironment]:
    """A small log, with the broker and Spark session of the tests."""
    name = f"bench_delivery_{random.randrange(1 << 32):08x}"
    with SeriatimLog(postgres_server.create_database(name)) as log:
        log.append_batches(make_order_batches(0, PLAN.events, 1000))
        yield DeliveryEnvironment(
            plan=PLAN,
            server=postgres_server,
            broker=kafka,
            home=tmp_path_factory.mktemp("bench"),
            spark=spark,
            log=log,
            report=lambda _: None,
        )


def test_sections_of_the_command_line_are_those_that_run() -> None:
    """The command line offers the sections that run, in the same order."""
    assert tuple(SECTIONS) == NAMES
    assert NAMES[-1] == GROWTH
    assert not parse_plan(["--quick"]).is_publishable
    assert parse_plan([]).is_publishable


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_a_section_returns_positive_figures(
    section: Callable[[DeliveryEnvironment], list[Figure]], environment: DeliveryEnvironment
) -> None:
    """Each section returns figures above zero, one of them with a goal."""
    figures = section(environment)

    assert any(figure.goal is not None for figure in figures)
    assert all(figure.measured > 0 for figure in figures)

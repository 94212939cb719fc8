"""The benchmark of delivery on a few thousand events: every section runs, counts and compares."""

import random
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from bench.delivery import SECTIONS
from bench.delivery_plan import SECTIONS as NAMES
from bench.delivery_plan import DeliveryPlan, DeliveryStage, plan_from
from bench.harness import Figure
from bench.ours import OurLog
from bench.plan import GROWTH
from bench.workload import order_batches
from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.postgres_server import PostgresServer

PLAN = DeliveryPlan(
    events=2000, large_events=2000, handled=1000, rounds=1, seconds=0.3, large=True, quick=True
)


@pytest.fixture(scope="module")
def stage(
    spark: SparkSession,
    kafka: KafkaBroker,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[DeliveryStage]:
    """A small log, the tests' own broker and session."""
    name = f"bench_delivery_{random.randrange(1 << 32):08x}"
    with OurLog(postgres_server.create_database(name)) as log:
        log.fill_with(order_batches(0, PLAN.events, 1000))
        yield DeliveryStage(
            plan=PLAN,
            server=postgres_server,
            broker=kafka,
            home=tmp_path_factory.mktemp("bench"),
            spark=spark,
            log=log,
            say=lambda _: None,
        )


def test_every_section_is_there() -> None:
    """What the command line offers is what runs, in its order."""
    assert tuple(SECTIONS) == NAMES
    assert NAMES[-1] == GROWTH
    assert not plan_from(["--quick"]).whole
    assert plan_from([]).whole


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_a_section_gives_figures(
    section: Callable[[DeliveryStage], list[Figure]], stage: DeliveryStage
) -> None:
    """Each section compares with a goal; that both sides did the same work it checks itself."""
    figures = section(stage)

    assert any(figure.goal is not None for figure in figures)
    assert all(figure.measured > 0 for figure in figures)

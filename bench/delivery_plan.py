"""How large a run of delivery is, and the stage that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.ours import OurLog
from bench.plan import GROWTH, Run, read_arguments
from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.postgres_server import PostgresServer

SECTIONS = ("publish", "registry", GROWTH)


@dataclass(frozen=True, kw_only=True)
class DeliveryPlan(Run):
    """The sizes of a run."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 500_000
    large_events: int = 10_000_000  # rows in the registry
    handled: int = 100_000  # events that a worker is given
    seconds: float = 10.0

    @property
    def whole(self) -> bool:
        """Whether this run may replace the results that are kept: only at its full size."""
        return super().whole and self.events >= DeliveryPlan.events


def plan_from(arguments: list[str] | None = None) -> DeliveryPlan:
    """Read the command line."""
    given = read_arguments("bench.delivery", __doc__, SECTIONS, arguments)
    full = DeliveryPlan()
    events = given.events or (5_000 if given.quick else full.events)
    return DeliveryPlan(
        only=given.only,
        events=events,
        large_events=given.large_events or (50_000 if given.quick else full.large_events),
        handled=min(full.handled, events),
        rounds=given.rounds,
        seconds=given.seconds or (1.0 if given.quick else full.seconds),
        large=given.large,
        quick=given.quick,
    )


@dataclass(frozen=True, kw_only=True)
class DeliveryStage:
    """Everything that runs while sections measure: a server, a broker, a log, and Spark."""

    plan: DeliveryPlan
    server: PostgresServer
    broker: KafkaBroker
    home: Path
    spark: SparkSession
    log: OurLog
    say: Callable[[str], None] = print

    @property
    def url(self) -> str:
        """The address of the log of orders."""
        return self.log.url

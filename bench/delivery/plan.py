"""The plan of the delivery suite, and the environment that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.plan import GROWTH, BenchmarkPlan, read_arguments
from bench.seriatim_log import SeriatimLog
from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.postgres_server import PostgresServer

SECTIONS = ("publish", "registry", "local", GROWTH)


@dataclass(frozen=True, kw_only=True)
class DeliveryPlan(BenchmarkPlan):
    """The sizes of a run of the delivery suite."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 500_000
    large_events: int = 10_000_000  # rows in the registry
    handled: int = 100_000  # events that a worker processes
    seconds: float = 10.0

    @property
    def is_publishable(self) -> bool:
        """Whether the results of this run, at full size, may replace the published ones."""
        return super().is_publishable and self.events >= DeliveryPlan.events


def parse_plan(arguments: list[str] | None = None) -> DeliveryPlan:
    """Return the plan for command-line options."""
    options = read_arguments("delivery", SECTIONS, arguments)
    full = DeliveryPlan()
    events = options.events or (5_000 if options.quick else full.events)
    return DeliveryPlan(
        only=options.only,
        events=events,
        large_events=options.large_events or (50_000 if options.quick else full.large_events),
        handled=min(full.handled, events),
        rounds=options.rounds,
        seconds=options.seconds or (1.0 if options.quick else full.seconds),
        large=options.large,
        quick=options.quick,
    )


@dataclass(frozen=True, kw_only=True)
class DeliveryEnvironment:
    """The servers, the filled log and the Spark session of a run."""

    plan: DeliveryPlan
    server: PostgresServer
    broker: KafkaBroker
    home: Path
    spark: SparkSession
    log: SeriatimLog
    report: Callable[[str], None] = print

    @property
    def url(self) -> str:
        """The URL of the log."""
        return self.log.url

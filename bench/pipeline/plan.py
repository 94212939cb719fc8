"""The plan of the pipeline suite, and the environment that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.pipeline.trace_workload import BLOCK
from bench.plan import GROWTH, BenchmarkPlan, read_arguments
from bench.seriatim_log import SeriatimLog
from tests.fixtures.postgres_server import PostgresServer

SECTIONS = ("read", "archive", "catch_up", "rebuild", "graph", "live", GROWTH)


@dataclass(frozen=True, kw_only=True)
class PipelinePlan(BenchmarkPlan):
    """The sizes of a run of the pipeline suite."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 5_000_000
    large_events: int = 10_000_000
    small_events: int = 1_000_000  # the log that the large one is compared with
    trace_events: int = 500_000
    batch_events: int = 200_000
    segment_events: int = 500_000
    live_events: int = 15  # in each round
    seconds: float = 20.0  # for the competitor that is too slow to finish

    @property
    def is_publishable(self) -> bool:
        """Whether the results of this run, at full size, may replace the published ones."""
        return super().is_publishable and self.events >= PipelinePlan.events


def parse_plan(arguments: list[str] | None = None) -> PipelinePlan:
    """Return the plan for command-line options; other sizes scale with the log."""
    options = read_arguments("pipeline", SECTIONS, arguments)
    full = PipelinePlan()
    events = options.events or (20_000 if options.quick else full.events)
    large = options.large_events or (3 * events if options.quick else full.large_events)
    share = events / full.events
    return PipelinePlan(
        only=options.only,
        events=events,
        large_events=large,
        small_events=min(full.small_events, large // 10 if options.quick else full.small_events),
        trace_events=max(1, round(full.trace_events * share / BLOCK)) * BLOCK,
        batch_events=full.batch_events if events > 1_000_000 else max(1000, events // 5),
        segment_events=full.segment_events if events > 1_000_000 else max(1000, events // 4),
        live_events=5 if options.quick else full.live_events,
        rounds=options.rounds,
        seconds=options.seconds or (1.0 if options.quick else full.seconds),
        large=options.large,
        quick=options.quick,
    )


@dataclass(frozen=True, kw_only=True)
class PipelineEnvironment:
    """The server, the filled logs and the Spark session of a run."""

    plan: PipelinePlan
    server: PostgresServer
    home: Path
    spark: SparkSession
    log: SeriatimLog
    traces: SeriatimLog
    report: Callable[[str], None] = print

    @property
    def url(self) -> str:
        """The URL of the log of orders."""
        return self.log.url

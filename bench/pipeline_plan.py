"""How large a run of the pipeline is, and the stage that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.ours import OurLog
from bench.plan import GROWTH, Run, read_arguments
from bench.traces import BLOCK
from tests.fixtures.postgres_server import PostgresServer

SECTIONS = ("read", "archive", "catch_up", "rebuild", "graph", "live", GROWTH)


@dataclass(frozen=True, kw_only=True)
class PipelinePlan(Run):
    """The sizes of a run."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 5_000_000
    large_events: int = 10_000_000
    small_events: int = 1_000_000  # what the large log is compared with
    trace_events: int = 500_000
    batch_events: int = 200_000
    segment_events: int = 500_000
    live_events: int = 15  # in each round
    seconds: float = 20.0  # of the projector that is too slow to be waited for

    @property
    def whole(self) -> bool:
        """Whether this run may replace the results that are kept: only at its full size."""
        return super().whole and self.events >= PipelinePlan.events


def plan_from(arguments: list[str] | None = None) -> PipelinePlan:
    """Read the command line; a smaller log has parts of it smaller in proportion."""
    given = read_arguments("bench.pipeline", __doc__, SECTIONS, arguments)
    full = PipelinePlan()
    events = given.events or (20_000 if given.quick else full.events)
    large = given.large_events or (3 * events if given.quick else full.large_events)
    share = events / full.events
    return PipelinePlan(
        only=given.only,
        events=events,
        large_events=large,
        small_events=min(full.small_events, large // 10 if given.quick else full.small_events),
        trace_events=max(1, round(full.trace_events * share / BLOCK)) * BLOCK,
        batch_events=full.batch_events if events > 1_000_000 else max(1000, events // 5),
        segment_events=full.segment_events if events > 1_000_000 else max(1000, events // 4),
        live_events=5 if given.quick else full.live_events,
        rounds=given.rounds,
        seconds=given.seconds or (1.0 if given.quick else full.seconds),
        large=given.large,
        quick=given.quick,
    )


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """Everything that runs while sections measure: a server, filled logs, and a Spark session."""

    plan: PipelinePlan
    server: PostgresServer
    home: Path
    spark: SparkSession
    log: OurLog
    traces: OurLog
    say: Callable[[str], None] = print

    @property
    def url(self) -> str:
        """The address of the log of orders."""
        return self.log.url

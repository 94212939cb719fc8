"""The plan of the local suite, and the environment that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.plan import BenchmarkPlan, read_arguments
from bench.seriatim_log import SeriatimLog
from tests.fixtures.postgres_server import PostgresServer

SECTIONS = ("catch_up", "live", "first_use", "crossover")


@dataclass(frozen=True, kw_only=True)
class LocalPlan(BenchmarkPlan):
    """The sizes of a run of the local suite."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 500_000
    large_events: int = 0
    live_events: int = 150  # in each round
    crossover_sizes: tuple[int, ...] = (10_000, 100_000, 300_000, 1_000_000)
    seconds: float = 10.0

    @property
    def is_publishable(self) -> bool:
        """Whether the results of this run, at full size, may replace the published ones."""
        return super().is_publishable and self.events >= LocalPlan.events


def parse_plan(arguments: list[str] | None = None) -> LocalPlan:
    """Return the plan for command-line options."""
    options = read_arguments("local", SECTIONS, arguments)
    full = LocalPlan()
    return LocalPlan(
        only=options.only,
        events=options.events or (5_000 if options.quick else full.events),
        live_events=5 if options.quick else full.live_events,
        crossover_sizes=(500, 2_000) if options.quick else full.crossover_sizes,
        rounds=options.rounds,
        seconds=options.seconds or full.seconds,
        quick=options.quick,
    )


@dataclass(frozen=True, kw_only=True)
class LocalEnvironment:
    """The server and the filled logs of a run."""

    plan: LocalPlan
    server: PostgresServer
    home: Path
    postgres: SeriatimLog
    sqlite: SeriatimLog
    report: Callable[[str], None] = print

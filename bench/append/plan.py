"""The plan of the append suite, and the environment that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.baselines import PgbenchBaseline
from bench.client_processes import ClientProcesses
from bench.competitors import EventSourcingRecorder, UmaServer
from bench.plan import GROWTH, BenchmarkPlan, read_arguments
from bench.seriatim_log import SeriatimLog
from bench.workload import Orders, streams_in
from tests.fixtures.postgres_server import PostgresServer

SECTIONS = ("singles", "contexts", "batches", "import", "memory", "sqlite", GROWTH)


@dataclass(frozen=True, kw_only=True)
class AppendPlan(BenchmarkPlan):
    """The sizes of a run of the append suite."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 1_000_000
    large_events: int = 10_000_000
    seconds: float = 2.0
    context_calls: int = 100
    import_events: int = 100_000


def parse_plan(arguments: list[str] | None = None) -> AppendPlan:
    """Return the plan for command-line options."""
    options = read_arguments("append", SECTIONS, arguments)
    events, large, seconds, calls, imported = 1_000_000, 10_000_000, 2.0, 100, 100_000
    if options.quick:
        events, large, seconds, calls, imported = 20_000, 60_000, 0.3, 10, 5000
    return AppendPlan(
        events=options.events or events,
        large_events=options.large_events or large,
        rounds=options.rounds,
        seconds=options.seconds or seconds,
        context_calls=calls,
        import_events=imported,
        only=options.only,
        large=options.large,
        quick=options.quick,
    )


@dataclass(frozen=True, kw_only=True)
class AppendEnvironment:
    """The servers, filled logs, baselines and competitors of a run."""

    plan: AppendPlan
    server: PostgresServer
    home: Path
    log: SeriatimLog
    pgbench: PgbenchBaseline
    umadb: UmaServer
    umadb_unique: UmaServer
    recorder: EventSourcingRecorder
    processes: ClientProcesses
    umadb_processes: ClientProcesses
    umadb_unique_processes: ClientProcesses
    report: Callable[[str], None] = print

    def orders(self, seed: int = 1) -> Orders:
        """Return a generator of events for the streams of the filled logs."""
        return Orders(streams_in(self.plan.events), seed)

"""How large and how long a run is, and the stage that its sections share."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.floors import Pgbench
from bench.ours import OurLog
from bench.processes import Crew
from bench.rivals import Recorder, UmaDB
from bench.workload import Orders, streams_in
from tests.fixtures.postgres_server import PostgresServer

GROWTH = "growth"  # the section that only --large runs
SECTIONS = ("singles", "contexts", "batches", "import", "memory", "sqlite", GROWTH)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The size of any benchmark's run; a goal counts only in the full one."""

    sections: tuple[str, ...]
    only: tuple[str, ...]
    events: int
    large_events: int
    rounds: int = 3
    large: bool = False
    quick: bool = False

    @property
    def whole(self) -> bool:
        """Whether this run may replace the results that are kept."""
        return not self.quick and set(self.only) >= set(self.sections) - {GROWTH}

    @property
    def size(self) -> str:
        """The log's size in words."""
        return in_words(self.events)


@dataclass(frozen=True, kw_only=True)
class Plan(Run):
    """The sizes of a run of appends."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 1_000_000
    large_events: int = 10_000_000
    seconds: float = 2.0
    context_calls: int = 100
    import_events: int = 100_000


def in_words(events: int) -> str:
    """Return a number of events as people write it."""
    for unit, word in ((1_000_000, "M"), (1000, "k")):
        if events >= unit:
            return f"{events / unit:g} {word}"
    return str(events)


def read_arguments(
    program: str, purpose: str | None, sections: tuple[str, ...], arguments: list[str] | None
) -> argparse.Namespace:
    """Read the command line of a benchmark; `only` becomes the sections to run."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=purpose)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--large", action="store_true", help="also at 10 M events")
    parser.add_argument("--only", help=f"some sections: {','.join(sections)}")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken")
    parser.add_argument("--seconds", type=float, help="of each contestant that runs for a time")
    parser.add_argument("--events", type=int, help="in the log before anything is measured")
    parser.add_argument("--large-events", type=int, help="in the large log")
    given = parser.parse_args(arguments)
    given.only = tuple(given.only.split(",")) if given.only else sections
    if unknown := set(given.only) - set(sections):
        parser.error(f"no section is called {', '.join(sorted(unknown))}")
    if given.rounds < 1 or (given.rounds < 3 and not given.quick):
        parser.error("a median needs at least three rounds")
    return given


def plan_from(arguments: list[str] | None = None) -> Plan:
    """Read the command line."""
    given = read_arguments("bench.append", __doc__, SECTIONS, arguments)
    events, large, seconds, calls, imported = 1_000_000, 10_000_000, 2.0, 100, 100_000
    if given.quick:
        events, large, seconds, calls, imported = 20_000, 60_000, 0.3, 10, 5000
    return Plan(
        events=given.events or events,
        large_events=given.large_events or large,
        rounds=given.rounds,
        seconds=given.seconds or seconds,
        context_calls=calls,
        import_events=imported,
        only=given.only,
        large=given.large,
        quick=given.quick,
    )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Everything that runs while sections measure: servers, filled logs, floors and rivals."""

    plan: Plan
    server: PostgresServer
    home: Path
    log: OurLog
    pgbench: Pgbench
    umadb: UmaDB
    umadb_unique: UmaDB
    recorder: Recorder
    crew: Crew
    umadb_crew: Crew
    umadb_unique_crew: Crew
    say: Callable[[str], None] = print

    def orders(self, seed: int = 1) -> Orders:
        """Return a maker of events for the streams that the prefilled logs have."""
        return Orders(streams_in(self.plan.events), seed)

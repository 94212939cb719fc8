"""The console suite: `python -m bench console`."""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.console.loading import load_log
from bench.console.page_load import PageVisitor, measure_page
from bench.console.pages import list_pages
from bench.console.rows import APPEND
from bench.measurement import Figure, Stopwatch
from bench.plan import BenchmarkPlan, read_arguments
from bench.postgres import describe_machine, read_settings, start_server
from bench.runner import run_suite
from bench.service.suite import create_token, run_service
from bench.workload import payload_bytes
from tests.fixtures.postgres_server import PostgresServer

NAME = "console"
SECTIONS = ("postgres", "sqlite")
PACKAGES = ("seriatim", "jinja2", "uvicorn", "uvloop", "msgspec", "psycopg")
SERVER = "bench.console.http_server"


@dataclass(frozen=True, kw_only=True)
class ConsolePlan(BenchmarkPlan):
    """The sizes of a run of the console suite."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 10_000_000
    large_events: int = 0
    seconds: float = 1.0

    @property
    def is_publishable(self) -> bool:
        """Whether the results of this run, at full size, may replace the published ones."""
        return super().is_publishable and self.events >= ConsolePlan.events


def parse_plan(arguments: list[str] | None = None) -> ConsolePlan:
    """Return the plan for command-line options."""
    options: argparse.Namespace = read_arguments(NAME, SECTIONS, arguments)
    full = ConsolePlan()
    events = options.events or (20_000 if options.quick else full.events)
    return ConsolePlan(
        only=options.only,
        events=events - events % APPEND,
        rounds=options.rounds,
        seconds=options.seconds or (0.05 if options.quick else full.seconds),
        quick=options.quick,
    )


@dataclass(frozen=True, kw_only=True)
class ConsoleEnvironment:
    """A server for the log on Postgres, a folder for the one on SQLite, and notes of the run."""

    plan: ConsolePlan
    server: PostgresServer
    home: Path
    loaded: dict[str, dict[str, float]] = field(default_factory=dict)
    report: Callable[[str], None] = print

    def measure(self, backend: str, url: str) -> list[Figure]:
        """Load a log, run the service on it, and measure every page."""
        watch = Stopwatch()
        load_log(url, self.plan.events)
        self.loaded[backend] = {
            "seconds_to_load": round(watch.seconds),
            "load_average": round(os.getloadavg()[0], 1),
        }
        self.report(f"  loaded {self.plan.size} events in {watch.seconds:.0f} s")
        token = create_token(url, "bench", rights=("read", "operate"))
        with run_service(url, SERVER) as port:
            return self._measure_pages(backend, PageVisitor.sign_in(port, token))

    def _measure_pages(self, backend: str, visitor: PageVisitor) -> list[Figure]:
        plan, figures = self.plan, []
        for page in list_pages(plan.events):
            name = f"{page.name} ({backend})"
            figure = measure_page(visitor, page, name, rounds=plan.rounds, seconds=plan.seconds)
            self.report(
                f"    {name:<50} {figure.measured:.2f}x of {figure.against}, "
                f"p50 {figure.p50_ms:.1f} ms, p99 {figure.p99_ms:.1f} ms, {figure.response_bytes} B"
            )
            figures.append(figure)
        return figures


def measure_on_postgres(environment: ConsoleEnvironment) -> list[Figure]:
    """Measure the pages of a log on Postgres."""
    figures = environment.measure("Postgres", environment.server.create_database("log"))
    environment.server.drop_database("log")  # two logs of this size need 25 GB
    return figures


def measure_on_sqlite(environment: ConsoleEnvironment) -> list[Figure]:
    """Measure the pages of a log on SQLite."""
    return environment.measure("SQLite", f"sqlite:///{environment.home}/log.db")


BACKENDS: dict[str, Callable[[ConsoleEnvironment], list[Figure]]] = {
    "postgres": measure_on_postgres,
    "sqlite": measure_on_sqlite,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the suite and return 0, also if a figure misses its goal."""
    plan = parse_plan(arguments)
    title = f"Pages of the console, {plan.size} events"
    return run_suite(NAME, title, plan, set_up=set_up, sections=BACKENDS, describe=_conditions)


@contextmanager
def set_up(plan: ConsolePlan) -> Iterator[ConsoleEnvironment]:
    """Start the Postgres server; each section loads its own log."""
    with (
        tempfile.TemporaryDirectory(prefix="srtm-bench-", dir="/tmp") as home,
        start_server() as server,
    ):
        yield ConsoleEnvironment(plan=plan, server=server, home=Path(home))


def _conditions(environment: ConsoleEnvironment) -> dict[str, Any]:
    plan = environment.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "events_in_the_log": plan.events,
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "seconds_each": plan.seconds,
        "quick": plan.quick,
        "loaded": environment.loaded,
        "machine": describe_machine(PACKAGES),
        "postgres": read_settings(environment.server.url()),
    }

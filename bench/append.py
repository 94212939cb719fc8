"""Measure appends against bare inserts and rivals: `python -m bench.append`, see --help."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.floors import Pgbench, fdatasync_us
from bench.harness import Figure, Stopwatch
from bench.ours import OurLog
from bench.plan import Plan, Stage, plan_from
from bench.processes import PROCESSES, Crew
from bench.report import measure, report, show
from bench.rivals import Recorder, UmaClient, UmaDB
from bench.sections.batches import batches
from bench.sections.contexts import contexts
from bench.sections.embedded import sqlite
from bench.sections.growth import LARGE, SMALL, growth
from bench.sections.imports import imports
from bench.sections.memory import memory
from bench.sections.singles import singles
from bench.server import machine, settings_of, settle, start_server
from bench.workload import payload_bytes, streams_in

NAME = "append"
LOG = "log"
RECORDER_CONNECTIONS = 5  # its own default; more made it slower

SECTIONS: dict[str, Callable[[Stage], list[Figure]]] = {
    "singles": singles,
    "contexts": lambda stage: contexts(stage.log, stage.plan, stage.plan.size, stage.orders()),
    "batches": batches,
    "import": imports,
    "memory": memory,
    "sqlite": sqlite,
    "growth": growth,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the sections, print the table, keep the results; a short figure is no failure."""
    plan = plan_from(arguments)
    watch = Stopwatch()
    with raised(plan) as stage:
        conditions = _conditions(stage)
        show(conditions)
        figures = measure(plan, SECTIONS, stage, watch)
        conditions["events_in_the_log_after"] = stage.log.log.head()
    conditions["seconds"] = round(watch.seconds)
    title = f"Seriatim's appends against rivals and bare floors, {plan.size} events"
    report(NAME, title, plan, conditions, figures)
    return 0


@contextmanager
def raised(plan: Plan) -> Iterator[Stage]:
    """Start the servers and fill every log to the size at which appends are measured."""
    with ExitStack() as stack:
        watch = Stopwatch()
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        url = server.create_database(LOG)
        with OurLog(url) as filling:
            filling.fill(plan.events)
        print(f"filled our log with {plan.size} events in {watch.seconds:.1f} s")
        settle(url)
        if plan.large and "growth" in plan.only:
            for copy in (SMALL, LARGE):
                server.create_database(copy, LOG)
        recorder = Recorder(server, plan.events, RECORDER_CONNECTIONS)
        stack.callback(recorder.close)
        pgbench = Pgbench(server, plan.events)
        print(f"filled the tables of pgbench and pyeventsourcing after {watch.seconds:.1f} s")
        umadb = stack.enter_context(UmaDB(unique=False, events=plan.events))
        unique = stack.enter_context(UmaDB(unique=True, events=plan.events))
        streams = streams_in(plan.events)
        stage = Stage(
            plan=plan,
            server=server,
            home=home,
            log=stack.enter_context(OurLog(url)),
            pgbench=pgbench,
            umadb=umadb,
            umadb_unique=unique,
            recorder=recorder,
            crew=stack.enter_context(Crew(partial(OurLog, url), streams)),
            umadb_crew=stack.enter_context(
                Crew(partial(UmaClient, umadb.url, unique=False), streams)
            ),
            umadb_unique_crew=stack.enter_context(
                Crew(partial(UmaClient, unique.url, unique=True), streams)
            ),
        )
        settle(url)
        print(f"everything is filled after {watch.seconds:.1f} s")
        yield stage


def _conditions(stage: Stage) -> dict[str, Any]:
    plan = stage.plan
    sync_us = fdatasync_us(stage.home)
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "fdatasync_us": round(sync_us, 1),
        "fdatasync_per_s": round(1e6 / sync_us),
        "events_in_the_log": stage.log.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "seconds_each": plan.seconds,
        "client_processes": f"1, and {PROCESSES} where a figure says so",
        "quick": plan.quick,
        "machine": machine(),
        "postgres": settings_of(stage.log.url),
    }


if __name__ == "__main__":
    sys.exit(main())

"""The append suite: `python -m bench append`."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.append.batches import batches
from bench.append.contexts import contexts
from bench.append.embedded import sqlite
from bench.append.growth import LARGE, SMALL, growth
from bench.append.imports import imports
from bench.append.memory import memory
from bench.append.plan import AppendEnvironment, AppendPlan, parse_plan
from bench.append.singles import singles
from bench.baselines import PgbenchBaseline, fdatasync_us
from bench.client_processes import PROCESSES, ClientProcesses
from bench.competitors import EventSourcingRecorder, UmaClient, UmaServer
from bench.measurement import Figure, Stopwatch
from bench.postgres import describe_machine, read_settings, start_server, vacuum_and_checkpoint
from bench.runner import measure, print_conditions, publish_results
from bench.seriatim_log import SeriatimLog
from bench.workload import payload_bytes, streams_in

NAME = "append"
LOG = "log"
RECORDER_CONNECTIONS = 5  # its default; more connections made it slower

SECTIONS: dict[str, Callable[[AppendEnvironment], list[Figure]]] = {
    "singles": singles,
    "contexts": lambda environment: contexts(
        environment.log, environment.plan, environment.plan.size, environment.orders()
    ),
    "batches": batches,
    "import": imports,
    "memory": memory,
    "sqlite": sqlite,
    "growth": growth,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the suite and return 0, also if a figure misses its goal."""
    plan = parse_plan(arguments)
    watch = Stopwatch()
    with set_up(plan) as environment:
        conditions = _conditions(environment)
        print_conditions(conditions)
        figures = measure(plan, SECTIONS, environment, watch)
        conditions["events_in_the_log_after"] = environment.log.log.head()
    conditions["seconds"] = round(watch.seconds)
    title = f"Appends of Seriatim, other logs and bare inserts, {plan.size} events"
    publish_results(NAME, title, plan, conditions, figures)
    return 0


@contextmanager
def set_up(plan: AppendPlan) -> Iterator[AppendEnvironment]:
    """Start the servers and fill every log to the planned size."""
    with ExitStack() as stack:
        watch = Stopwatch()
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        url = server.create_database(LOG)
        with SeriatimLog(url) as log:
            log.fill(plan.events)
        print(f"filled the log with {plan.size} events in {watch.seconds:.1f} s")
        vacuum_and_checkpoint(url)
        if plan.large and "growth" in plan.only:
            for copy in (SMALL, LARGE):
                server.create_database(copy, LOG)
        recorder = EventSourcingRecorder(server, plan.events, RECORDER_CONNECTIONS)
        stack.callback(recorder.close)
        pgbench = PgbenchBaseline(server, plan.events)
        print(f"filled the tables of pgbench and pyeventsourcing after {watch.seconds:.1f} s")
        umadb = stack.enter_context(UmaServer(unique=False, events=plan.events))
        unique = stack.enter_context(UmaServer(unique=True, events=plan.events))
        streams = streams_in(plan.events)
        environment = AppendEnvironment(
            plan=plan,
            server=server,
            home=home,
            log=stack.enter_context(SeriatimLog(url)),
            pgbench=pgbench,
            umadb=umadb,
            umadb_unique=unique,
            recorder=recorder,
            processes=stack.enter_context(ClientProcesses(partial(SeriatimLog, url), streams)),
            umadb_processes=stack.enter_context(
                ClientProcesses(partial(UmaClient, umadb.url, unique=False), streams)
            ),
            umadb_unique_processes=stack.enter_context(
                ClientProcesses(partial(UmaClient, unique.url, unique=True), streams)
            ),
        )
        vacuum_and_checkpoint(url)
        print(f"all logs are filled after {watch.seconds:.1f} s")
        yield environment


def _conditions(environment: AppendEnvironment) -> dict[str, Any]:
    plan = environment.plan
    sync_us = fdatasync_us(environment.home)
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "fdatasync_us": round(sync_us, 1),
        "fdatasync_per_s": round(1e6 / sync_us),
        "events_in_the_log": environment.log.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "seconds_each": plan.seconds,
        "client_processes": f"1, and {PROCESSES} where a figure says so",
        "quick": plan.quick,
        "machine": describe_machine(),
        "postgres": read_settings(environment.log.url),
    }

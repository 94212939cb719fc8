"""The local suite: `python -m bench local`."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.local.catch_up import catch_up
from bench.local.crossover import crossover
from bench.local.first_use import first_use
from bench.local.live import live
from bench.local.plan import LocalEnvironment, LocalPlan, parse_plan
from bench.measurement import Figure
from bench.postgres import describe_machine, read_settings, start_server, vacuum_and_checkpoint
from bench.runner import run_suite
from bench.seriatim_log import PREFILL_BATCH, SeriatimLog
from bench.workload import make_order_batches, payload_bytes

NAME = "local"
PACKAGES = ("seriatim", "psycopg", "pyspark")

SECTIONS: dict[str, Callable[[LocalEnvironment], list[Figure]]] = {
    "catch_up": catch_up,
    "live": live,
    "first_use": first_use,
    "crossover": crossover,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the suite and return 0, also if a figure misses its goal."""
    plan = parse_plan(arguments)
    title = f"The local engine, {plan.size} events"
    return run_suite(NAME, title, plan, set_up=set_up, sections=SECTIONS, describe=_conditions)


@contextmanager
def set_up(plan: LocalPlan) -> Iterator[LocalEnvironment]:
    """Start Postgres, and fill a log there and one on SQLite."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        postgres = stack.enter_context(SeriatimLog(server.create_database("local_log")))
        sqlite = stack.enter_context(SeriatimLog(f"sqlite:///{home}/log.db"))
        for log in (postgres, sqlite):
            log.append_batches(make_order_batches(0, plan.events, PREFILL_BATCH))
        vacuum_and_checkpoint(postgres.url)
        yield LocalEnvironment(
            plan=plan, server=server, home=home, postgres=postgres, sqlite=sqlite
        )


def _conditions(environment: LocalEnvironment) -> dict[str, Any]:
    plan = environment.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "events_in_the_log": environment.postgres.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "quick": plan.quick,
        "machine": describe_machine(PACKAGES),
        "postgres": read_settings(environment.postgres.url),
    }

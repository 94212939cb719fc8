"""Measure the service against its own no-op and a rival: `python -m bench.service`, see --help."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import seriatim
from bench.floors import fdatasync_us
from bench.harness import Figure, Stopwatch
from bench.ours import OurLog
from bench.report import measure, report, show
from bench.rivals import UmaDB
from bench.server import machine, settings_of, settle, start_server
from bench.service_plan import ServicePlan, ServiceStage, plan_from
from bench.service_sections.appends import batches, singles
from bench.service_sections.flood import flood
from bench.service_sections.isolation import isolation
from bench.service_sections.tails import tails
from bench.workload import payload_bytes
from seriatim.opening import access_url, open_access

NAME = "service"
PACKAGES = ("seriatim", "uvicorn", "httptools", "uvloop", "msgspec", "psycopg", "umadb")
STOP_S = 60

SECTIONS: dict[str, Callable[[ServiceStage], list[Figure]]] = {
    "singles": singles,
    "batches": batches,
    "tails": tails,
    "flood": flood,
    "isolation": isolation,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the sections, print the table, keep the results; a short figure is no failure."""
    plan = plan_from(arguments)
    watch = Stopwatch()
    with raised(plan) as stage:
        conditions = _conditions(stage)
        show(conditions)
        figures = measure(plan, SECTIONS, stage, watch)
    conditions["seconds"] = round(watch.seconds)
    report(NAME, f"Seriatim over HTTP, {plan.size} events", plan, conditions, figures)
    return 0


@contextmanager
def raised(plan: ServicePlan) -> Iterator[ServiceStage]:
    """Start the servers and fill the logs."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        log = stack.enter_context(OurLog(server.create_database("log")))
        log.fill(plan.events)
        settle(log.url)
        umadb = stack.enter_context(UmaDB(unique=True, events=plan.events))
        tokens = [_token(log.url, "bench"), _token(log.url, "other", tenant_id="other")]
        port = stack.enter_context(served(log.url))
        address = f"http://127.0.0.1:{port}"
        remote = stack.enter_context(seriatim.open(address, token=tokens[0]))
        yield ServiceStage(
            plan=plan,
            log=log,
            remote=remote,
            umadb=umadb,
            port=port,
            token=tokens[0],
            other_token=tokens[1],
            home=home,
        )


def _token(url: str, subject: str, tenant_id: str = "*") -> str:
    access = open_access(access_url(url))
    try:
        token, _ = access.create(subject=subject, tenant_id=tenant_id, rights=("append", "read"))
    finally:
        access.close()
    return token


@contextmanager
def served(url: str) -> Iterator[int]:
    """Run a service in a process of its own, and return its port."""
    command = [sys.executable, "-m", "bench.http_server", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with seriatim.open(f"http://127.0.0.1:{port}", token=_token(url, "probe")):
                pass  # it answers
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def _conditions(stage: ServiceStage) -> dict[str, Any]:
    plan = stage.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "fdatasync_us": round(fdatasync_us(stage.home), 1),
        "events_in_the_log": stage.log.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "seconds_each": plan.seconds,
        "processes_of_the_service": 1,
        "tails": plan.tails,
        "tail_events_per_s": plan.tail_rate,
        "quick": plan.quick,
        "machine": machine(PACKAGES),
        "postgres": settings_of(stage.log.url),
    }


if __name__ == "__main__":
    sys.exit(main())

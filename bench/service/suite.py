"""The service suite: `python -m bench service`."""

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
from bench.baselines import fdatasync_us
from bench.competitors import UmaServer
from bench.measurement import Figure
from bench.postgres import describe_machine, read_settings, start_server, vacuum_and_checkpoint
from bench.runner import run_suite
from bench.seriatim_log import SeriatimLog
from bench.service.appends import batches, singles
from bench.service.flood import flood
from bench.service.isolation import isolation
from bench.service.plan import ServiceEnvironment, ServicePlan, parse_plan
from bench.service.tails import tails
from bench.workload import payload_bytes
from seriatim.access.rights import Right
from seriatim.factory import access_url, open_access

NAME = "service"
PACKAGES = ("seriatim", "uvicorn", "httptools", "uvloop", "msgspec", "psycopg", "umadb")
STOP_S = 60

SECTIONS: dict[str, Callable[[ServiceEnvironment], list[Figure]]] = {
    "singles": singles,
    "batches": batches,
    "tails": tails,
    "flood": flood,
    "isolation": isolation,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the suite and return 0, also if a figure misses its goal."""
    plan = parse_plan(arguments)
    title = f"Seriatim over HTTP, {plan.size} events"
    return run_suite(NAME, title, plan, set_up=set_up, sections=SECTIONS, describe=_conditions)


@contextmanager
def set_up(plan: ServicePlan) -> Iterator[ServiceEnvironment]:
    """Start the servers and fill the logs."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        log = stack.enter_context(SeriatimLog(server.create_database("log")))
        log.fill(plan.events)
        vacuum_and_checkpoint(log.url)
        umadb = stack.enter_context(UmaServer(unique=True, events=plan.events))
        tokens = [
            create_token(log.url, "bench"),
            create_token(log.url, "other", tenant_id="other"),
        ]
        port = stack.enter_context(run_service(log.url))
        address = f"http://127.0.0.1:{port}"
        remote = stack.enter_context(seriatim.open(address, token=tokens[0]))
        yield ServiceEnvironment(
            plan=plan,
            log=log,
            remote=remote,
            umadb=umadb,
            port=port,
            token=tokens[0],
            other_token=tokens[1],
            home=home,
        )


def create_token(
    url: str,
    subject: str,
    tenant_id: str = "*",
    rights: tuple[Right, ...] = ("append", "read"),
) -> str:
    """Create a token for the service on a log."""
    access = open_access(access_url(url))
    try:
        token, _ = access.create(subject=subject, tenant_id=tenant_id, rights=rights)
    finally:
        access.close()
    return token


@contextmanager
def run_service(url: str, module: str = "bench.service.http_server") -> Iterator[int]:
    """Run the service in its own process, and yield its port.

    Args:
        url: The URL of the log.
        module: The module to run; by default the service with a no-op endpoint.
    """
    command = [sys.executable, "-m", module, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with seriatim.open(f"http://127.0.0.1:{port}", token=create_token(url, "probe")):
                pass  # wait until it responds
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def _conditions(environment: ServiceEnvironment) -> dict[str, Any]:
    plan = environment.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "fdatasync_us": round(fdatasync_us(environment.home), 1),
        "events_in_the_log": environment.log.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "seconds_each": plan.seconds,
        "processes_of_the_service": 1,
        "tails": plan.tails,
        "tail_events_per_s": plan.tail_rate,
        "quick": plan.quick,
        "machine": describe_machine(PACKAGES),
        "postgres": read_settings(environment.log.url),
    }

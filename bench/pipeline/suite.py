"""The pipeline suite: `python -m bench pipeline`."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.measurement import Figure, Stopwatch
from bench.pipeline.archive import archive
from bench.pipeline.catch_up import catch_up
from bench.pipeline.graph import graph
from bench.pipeline.growth import growth
from bench.pipeline.live import live
from bench.pipeline.plan import PipelineEnvironment, PipelinePlan, parse_plan
from bench.pipeline.read import read
from bench.pipeline.rebuild import rebuild
from bench.pipeline.seriatim_jobs import read_all
from bench.pipeline.trace_workload import make_trace_batches
from bench.postgres import describe_machine, read_settings, start_server, vacuum_and_checkpoint
from bench.runner import run_suite
from bench.seriatim_log import PREFILL_BATCH, SeriatimLog
from bench.workload import make_order_batches, payload_bytes
from seriatim.pipeline.source.spark_session import session

NAME = "pipeline"
LOG, TRACES = "log", "traces"
PACKAGES = ("seriatim", "pyspark", "pyarrow", "adbc-driver-postgresql", "psycopg")

SECTIONS: dict[str, Callable[[PipelineEnvironment], list[Figure]]] = {
    "read": read,
    "archive": archive,
    "catch_up": catch_up,
    "rebuild": rebuild,
    "graph": graph,
    "live": live,
    "growth": growth,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the suite and return 0, also if a figure misses its goal."""
    plan = parse_plan(arguments)
    title = f"The pipeline on Spark, {plan.size} events"
    return run_suite(NAME, title, plan, set_up=set_up, sections=SECTIONS, describe=_conditions)


@contextmanager
def set_up(plan: PipelinePlan) -> Iterator[PipelineEnvironment]:
    """Start Postgres and Spark, and fill the logs."""
    with ExitStack() as stack:
        watch = Stopwatch()
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        log = stack.enter_context(SeriatimLog(server.create_database(LOG)))
        log.append_batches(make_order_batches(0, plan.events, PREFILL_BATCH))
        traces = stack.enter_context(SeriatimLog(server.create_database(TRACES)))
        if "graph" in plan.only:
            traces.append_batches(make_trace_batches(0, plan.trace_events, PREFILL_BATCH))
        for url in (log.url, traces.url):
            vacuum_and_checkpoint(url)
        print(f"filled the logs after {watch.seconds:.1f} s")
        existing = SparkSession.getActiveSession() is not None
        spark = session(name="seriatim bench")
        if not existing:
            stack.callback(spark.stop)
        read_all(spark, log.url, min(plan.events, plan.batch_events))
        print(f"Spark is warm after {watch.seconds:.1f} s")
        yield PipelineEnvironment(
            plan=plan,
            server=server,
            home=home,
            spark=spark,
            log=log,
            traces=traces,
        )


def _conditions(environment: PipelineEnvironment) -> dict[str, Any]:
    plan = environment.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "events_in_the_log": environment.log.log.head(),
        "events_in_the_traces": environment.traces.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "master": environment.spark.sparkContext.master,
        "driver_memory": environment.spark.conf.get("spark.driver.memory"),
        "quick": plan.quick,
        "machine": describe_machine(PACKAGES),
        "postgres": read_settings(environment.url),
    }

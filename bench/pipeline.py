"""Measure the pipeline against floors and rivals: `python -m bench.pipeline`, see --help."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.harness import Figure, Stopwatch
from bench.our_pipeline import read_all
from bench.ours import PREFILL_BATCH, OurLog
from bench.pipeline_plan import PipelinePlan, PipelineStage, plan_from
from bench.pipeline_sections.archive import archive
from bench.pipeline_sections.catch_up import catch_up
from bench.pipeline_sections.graph import graph
from bench.pipeline_sections.growth import growth
from bench.pipeline_sections.live import live
from bench.pipeline_sections.read import read
from bench.pipeline_sections.rebuild import rebuild
from bench.report import measure, report, show
from bench.server import machine, settings_of, settle, start_server
from bench.traces import trace_batches
from bench.workload import order_batches, payload_bytes
from seriatim.pipeline.session import session

NAME = "pipeline"
LOG, TRACES = "log", "traces"
PACKAGES = ("seriatim", "pyspark", "pyarrow", "adbc-driver-postgresql", "psycopg")

SECTIONS: dict[str, Callable[[PipelineStage], list[Figure]]] = {
    "read": read,
    "archive": archive,
    "catch_up": catch_up,
    "rebuild": rebuild,
    "graph": graph,
    "live": live,
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
    conditions["seconds"] = round(watch.seconds)
    report(NAME, f"Seriatim's pipeline on Spark, {plan.size} events", plan, conditions, figures)
    return 0


@contextmanager
def raised(plan: PipelinePlan) -> Iterator[PipelineStage]:
    """Start a server and Spark, and fill the logs."""
    with ExitStack() as stack:
        watch = Stopwatch()
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        log = stack.enter_context(OurLog(server.create_database(LOG)))
        log.fill_with(order_batches(0, plan.events, PREFILL_BATCH))
        traces = stack.enter_context(OurLog(server.create_database(TRACES)))
        if "graph" in plan.only:
            traces.fill_with(trace_batches(0, plan.trace_events, PREFILL_BATCH))
        for url in (log.url, traces.url):
            settle(url)
        print(f"filled the logs after {watch.seconds:.1f} s")
        borrowed = SparkSession.getActiveSession() is not None
        spark = session(name="seriatim bench")
        if not borrowed:
            stack.callback(spark.stop)
        read_all(spark, log.url, min(plan.events, plan.batch_events))
        print(f"Spark is warm after {watch.seconds:.1f} s")
        yield PipelineStage(
            plan=plan,
            server=server,
            home=home,
            spark=spark,
            log=log,
            traces=traces,
        )


def _conditions(stage: PipelineStage) -> dict[str, Any]:
    plan = stage.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "events_in_the_log": stage.log.log.head(),
        "events_in_the_traces": stage.traces.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "master": stage.spark.sparkContext.master,
        "driver_memory": stage.spark.conf.get("spark.driver.memory"),
        "quick": plan.quick,
        "machine": machine(PACKAGES),
        "postgres": settings_of(stage.url),
    }


if __name__ == "__main__":
    sys.exit(main())

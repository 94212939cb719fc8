"""Measure delivery against bare loops: `python -m bench.delivery`, see --help."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.delivery_plan import DeliveryPlan, DeliveryStage, plan_from
from bench.delivery_sections.publish import publish
from bench.delivery_sections.registry import growth, registry
from bench.harness import Figure, Stopwatch
from bench.ours import PREFILL_BATCH, OurLog
from bench.report import measure, report, show
from bench.server import machine, settings_of, settle, start_server
from bench.workload import order_batches, payload_bytes
from seriatim.pipeline.session import session
from tests.fixtures.kafka_broker import KafkaBroker

NAME = "delivery"
PACKAGES = ("seriatim", "pyspark", "confluent-kafka", "psycopg")

SECTIONS: dict[str, Callable[[DeliveryStage], list[Figure]]] = {
    "publish": publish,
    "registry": registry,
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
    report(NAME, f"Seriatim's delivery, {plan.size} events", plan, conditions, figures)
    return 0


@contextmanager
def raised(plan: DeliveryPlan) -> Iterator[DeliveryStage]:
    """Start a server, a broker and Spark, and fill the log."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        broker = stack.enter_context(KafkaBroker())
        log = stack.enter_context(OurLog(server.create_database("log")))
        log.fill_with(order_batches(0, plan.events, PREFILL_BATCH))
        settle(log.url)
        borrowed = SparkSession.getActiveSession() is not None
        spark = session(name="seriatim bench")
        if not borrowed:
            stack.callback(spark.stop)
        yield DeliveryStage(
            plan=plan, server=server, broker=broker, home=home, spark=spark, log=log
        )


def _conditions(stage: DeliveryStage) -> dict[str, Any]:
    plan = stage.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "events_in_the_log": stage.log.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "master": stage.spark.sparkContext.master,
        "quick": plan.quick,
        "machine": machine(PACKAGES),
        "postgres": settings_of(stage.url),
    }


if __name__ == "__main__":
    sys.exit(main())

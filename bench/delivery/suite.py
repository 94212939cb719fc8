"""The delivery suite: `python -m bench delivery`."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.delivery.local import local
from bench.delivery.plan import DeliveryEnvironment, DeliveryPlan, parse_plan
from bench.delivery.publish import publish
from bench.delivery.registry import growth, registry
from bench.measurement import Figure
from bench.postgres import describe_machine, read_settings, start_server, vacuum_and_checkpoint
from bench.runner import run_suite
from bench.seriatim_log import PREFILL_BATCH, SeriatimLog
from bench.workload import make_order_batches, payload_bytes
from seriatim.pipeline.source.spark_session import session
from tests.fixtures.kafka_broker import KafkaBroker

NAME = "delivery"
PACKAGES = ("seriatim", "pyspark", "confluent-kafka", "psycopg")

SECTIONS: dict[str, Callable[[DeliveryEnvironment], list[Figure]]] = {
    "publish": publish,
    "registry": registry,
    "local": local,
    "growth": growth,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the suite and return 0, also if a figure misses its goal."""
    plan = parse_plan(arguments)
    title = f"Delivery, {plan.size} events"
    return run_suite(NAME, title, plan, set_up=set_up, sections=SECTIONS, describe=_conditions)


@contextmanager
def set_up(plan: DeliveryPlan) -> Iterator[DeliveryEnvironment]:
    """Start Postgres, a Kafka broker and Spark, and fill the log."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srtm-bench-")))
        server = stack.enter_context(start_server())
        broker = stack.enter_context(KafkaBroker())
        log = stack.enter_context(SeriatimLog(server.create_database("log")))
        log.append_batches(make_order_batches(0, plan.events, PREFILL_BATCH))
        vacuum_and_checkpoint(log.url)
        existing = SparkSession.getActiveSession() is not None
        spark = session(name="seriatim bench")
        if not existing:
            stack.callback(spark.stop)
        yield DeliveryEnvironment(
            plan=plan, server=server, broker=broker, home=home, spark=spark, log=log
        )


def _conditions(environment: DeliveryEnvironment) -> dict[str, Any]:
    plan = environment.plan
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "events_in_the_log": environment.log.log.head(),
        "payload_bytes": round(payload_bytes()),
        "rounds": plan.rounds,
        "master": environment.spark.sparkContext.master,
        "quick": plan.quick,
        "machine": describe_machine(PACKAGES),
        "postgres": read_settings(environment.url),
    }

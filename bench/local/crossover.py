"""The size of a log from which Spark catches up faster than the local engine."""

from functools import partial

from pyspark.sql import SparkSession

from bench.local.catch_up import new_target, run_local
from bench.local.plan import LocalEnvironment
from bench.measurement import Figure, Stopwatch, interleave, ratio, timed
from bench.pipeline.read_models import ORDERS
from bench.plan import format_count
from bench.postgres import vacuum_and_checkpoint
from bench.seriatim_log import PREFILL_BATCH, SeriatimLog
from bench.workload import make_order_batches
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.source.spark_session import session


def crossover(environment: LocalEnvironment) -> list[Figure]:
    """Catch up on logs of growing size on both engines, with a session that has started."""
    existing = SparkSession.getActiveSession() is not None
    watch = Stopwatch()
    spark = session(name="seriatim bench")
    started_s = watch.seconds
    try:
        figures = [_compare(environment, spark, size) for size in environment.plan.crossover_sizes]
    finally:
        if not existing:
            spark.stop()
    start = Figure(name="start of a Spark session", measured=started_s, unit="s")
    return figures if existing else [*figures, start]


def _compare(environment: LocalEnvironment, spark: SparkSession, size: int) -> Figure:
    url = environment.server.create_database(f"crossover_{size}")
    with SeriatimLog(url) as log:
        log.append_batches(make_order_batches(0, size, min(size, PREFILL_BATCH)))
    vacuum_and_checkpoint(url)

    def run_spark() -> int:
        with Projector(spark, ORDERS, url, target=new_target(environment, url)) as job:
            return job.run().position

    def run_here() -> int:
        return run_local(url, new_target(environment, url))

    label = format_count(size)
    local, on_spark = interleave(
        {f"local, {label}": timed(run_here), f"Spark, {label}": timed(partial(run_spark))},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    name = f"catch-up of {label} events, local / Spark with a started session"
    return ratio(name, local, on_spark, against="Spark")

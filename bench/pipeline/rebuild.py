"""A rebuild of a read model by its fold, compared with a loop in Python."""

import psycopg

from bench.measurement import Figure, interleave, ratio, timed
from bench.pipeline.competitors import fold_in_loop
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.read_models import ORDER_COLUMNS, ORDERS
from bench.pipeline.seriatim_jobs import Rebuild

GOAL, AIM = 1.8, 2.0


def rebuild(environment: PipelineEnvironment) -> list[Figure]:
    """Fold all orders both ways, and check that both tables are equal."""
    ours = Rebuild(environment.spark, ORDERS, environment.url)
    spark, python = interleave(
        {
            "rebuild by fold on Spark": timed(ours),
            "loop in one Python process": timed(lambda: fold_in_loop(environment.url)),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
        warm_up=False,  # each run takes minutes
    ).values()
    assert count_differences(environment.url, ours.schema) == 0
    name = "rebuild by fold / loop in Python"
    return [ratio(name, spark, python, against="loop in Python", goal=GOAL, aim=AIM)]


def count_differences(url: str, schema: str) -> int:
    """Return the number of rows that only one of the two tables contains."""
    columns = ", ".join(["tenant_id", "stream_id", *ORDER_COLUMNS, "position"])
    ours, theirs = f"select {columns} from {schema}.orders", f"select {columns} from loop_orders"
    with psycopg.connect(url) as session:
        row = session.execute(
            f"select count(*) from (({ours} except {theirs}) union all ({theirs} except {ours})) d"
        ).fetchone()
    assert row is not None
    count: int = row[0]
    return count

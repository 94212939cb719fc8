"""Rebuilding a read model by its fold, against a loop in Python that makes the same table."""

import psycopg

from bench.harness import Figure, interleave, ratio, timed
from bench.models import ORDER_COLUMNS, ORDERS
from bench.our_pipeline import Rebuilt
from bench.pipeline_plan import PipelineStage
from bench.pipeline_rivals import loop

GOAL, AIM = 1.5, 2.0


def rebuild(stage: PipelineStage) -> list[Figure]:
    """Fold all orders both ways, and see that both come to the same."""
    ours = Rebuilt(stage.spark, ORDERS, stage.url)
    spark, python = interleave(
        {
            "rebuild by fold on Spark": timed(ours),
            "loop in one Python process": timed(lambda: loop(stage.url)),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
        warm_up=False,  # they take minutes
    ).values()
    assert differing(stage.url, ours.schema) == 0
    name = "rebuild by fold / loop in Python"
    return [ratio(name, spark, python, against="loop in Python", goal=GOAL, aim=AIM)]


def differing(url: str, schema: str) -> int:
    """Return how many rows are in one of the two tables and not in the other."""
    columns = ", ".join(["tenant_id", "stream_id", *ORDER_COLUMNS, "position"])
    ours, theirs = f"select {columns} from {schema}.orders", f"select {columns} from loop_orders"
    with psycopg.connect(url) as session:
        found = session.execute(
            f"select count(*) from (({ours} except {theirs}) union all ({theirs} except {ours})) d"
        ).fetchone()
    assert found is not None
    count: int = found[0]
    return count

"""Reading the whole log through Spark, against a bare COPY of the same rows."""

from bench.harness import Figure, beside, interleave, ratio, timed
from bench.our_pipeline import events, read_all
from bench.pipeline_floors import copy_out
from bench.pipeline_plan import PipelineStage

GOAL, AIM = 0.6, 1.0


def read(stage: PipelineStage) -> list[Figure]:
    """Take all columns of all events, both ways."""
    count = stage.plan.events
    assert events(stage.spark, stage.url, columns="position").count() == count
    ours, floor = interleave(
        {
            "Spark, all columns": timed(lambda: read_all(stage.spark, stage.url, count)),
            "COPY, one connection": timed(lambda: copy_out(stage.url)),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        ratio("batch read / COPY", ours, floor, against="COPY", goal=GOAL, aim=AIM),
        beside("COPY, one connection", floor),
    ]

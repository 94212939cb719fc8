"""A read of the whole log through Spark, compared with a bare COPY of the same rows."""

from bench.measurement import Figure, interleave, ratio, reference, timed
from bench.pipeline.baselines import copy_out
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.seriatim_jobs import events, read_all

GOAL, AIM = 0.85, 1.0


def read(environment: PipelineEnvironment) -> list[Figure]:
    """Read all columns of all events both ways."""
    count = environment.plan.events
    assert events(environment.spark, environment.url, columns="position").count() == count
    ours, floor = interleave(
        {
            "Spark, all columns": timed(
                lambda: read_all(environment.spark, environment.url, count)
            ),
            "COPY, one connection": timed(lambda: copy_out(environment.url)),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [
        ratio("batch read / COPY", ours, floor, against="COPY", goal=GOAL, aim=AIM),
        reference("COPY, one connection", floor),
    ]

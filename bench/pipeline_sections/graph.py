"""The decision graph rebuilt on Spark, against a projector with a transaction for each event."""

from bench.harness import Figure, Series, beside, ratio, timed
from bench.our_pipeline import Rebuilt
from bench.pipeline_plan import PipelineStage
from bench.pipeline_rivals import Projector
from seriatim.pipeline.shipped import decision_graph

GOAL = 20.0


def graph(stage: PipelineStage) -> list[Figure]:
    """Rebuild the whole graph, then let the projector go on for a while, round by round."""
    ours = timed(Rebuilt(stage.spark, decision_graph, stage.traces.url))
    rival = Projector(stage.traces.log, stage.traces.url)
    try:
        seconds = stage.plan.seconds
        rounds = [(ours(seconds), rival.run(seconds)) for _ in range(stage.plan.rounds)]
    finally:
        rival.close()
    spark, single = (Series.of(column) for column in zip(*rounds, strict=True))
    words = "a transaction for each event"
    return [
        ratio(f"decision graph rebuilt / {words}", spark, single, against=words, goal=GOAL),
        beside(f"decision graph, {words}", single),
    ]

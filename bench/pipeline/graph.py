"""A rebuild of the decision graph on Spark, compared with a transaction per event."""

from bench.measurement import Figure, Series, ratio, reference, timed
from bench.pipeline.competitors import TransactionPerEventProjector
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.seriatim_jobs import Rebuild
from seriatim.pipeline.builtin_projections import decision_graph

GOAL = 20.0


def graph(environment: PipelineEnvironment) -> list[Figure]:
    """Rebuild the whole graph, then run the competitor for some seconds, in rounds."""
    ours = timed(Rebuild(environment.spark, decision_graph, environment.traces.url))
    competitor = TransactionPerEventProjector(environment.traces.log, environment.traces.url)
    try:
        seconds = environment.plan.seconds
        rounds = [(ours(seconds), competitor.run(seconds)) for _ in range(environment.plan.rounds)]
    finally:
        competitor.close()
    spark, single = (Series.of(column) for column in zip(*rounds, strict=True))
    words = "a transaction for each event"
    return [
        ratio(f"decision graph rebuilt / {words}", spark, single, against=words, goal=GOAL),
        reference(f"decision graph, {words}", single),
    ]

"""A stream that catches up in large batches, against one batch read of the same events."""

from bench.harness import Figure, interleave, ratio, timed
from bench.our_pipeline import catch_up as stream
from bench.our_pipeline import read_all
from bench.pipeline_plan import PipelineStage
from bench.plan import in_words

GOAL = 0.5


def catch_up(stage: PipelineStage) -> list[Figure]:
    """Let a stream go through the log to nowhere, then read it at once."""
    plan = stage.plan

    def streamed() -> int:
        count = stream(stage.spark, stage.url, plan.batch_events, stage.home)
        assert count == plan.events, count
        return count

    ours, floor = interleave(
        {
            f"stream, {in_words(plan.batch_events)} a batch": timed(streamed),
            "batch read": timed(lambda: read_all(stage.spark, stage.url, plan.events)),
        },
        rounds=plan.rounds,
        seconds=plan.seconds,
        say=stage.say,
    ).values()
    name = f"catch-up at {in_words(plan.batch_events)} a batch / batch read"
    return [ratio(name, ours, floor, against="batch read", goal=GOAL)]

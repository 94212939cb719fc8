"""A stream that catches up in large batches, against one batch read; and what the driver keeps."""

from bench.driver_memory import DriverMemory
from bench.harness import Figure, interleave, ratio, timed
from bench.our_pipeline import catch_up as stream
from bench.our_pipeline import read_all
from bench.pipeline_plan import PipelineStage
from bench.plan import in_words

GOAL = 0.5
MEMORY_GOAL_MIB = 32.0


def catch_up(stage: PipelineStage) -> list[Figure]:
    """Let a stream go through the log to nowhere, then read it at once, again and again."""
    plan = stage.plan
    memory = DriverMemory(stage.spark)
    held: list[float] = []  # the first time fills what is kept for good

    def streamed() -> int:
        count = stream(stage.spark, stage.url, plan.batch_events, stage.home)
        assert count == plan.events, count
        return count

    ours, floor = interleave(
        {
            f"stream, {in_words(plan.batch_events)} a batch": timed(streamed),
            "batch read": memory.after(
                timed(lambda: read_all(stage.spark, stage.url, plan.events)), held
            ),
        },
        rounds=plan.rounds,
        seconds=plan.seconds,
        say=stage.say,
    ).values()
    name = f"catch-up at {in_words(plan.batch_events)} a batch / batch read"
    stage.say(f"    driver holds {', '.join(f'{one:.0f}' for one in held)} MiB")
    return [
        ratio(name, ours, floor, against="batch read", goal=GOAL),
        Figure(
            name=f"driver memory growth over {plan.rounds} reads and catch-ups of {plan.size}",
            measured=held[-1] - held[0],
            goal=MEMORY_GOAL_MIB,
            unit="MiB",
            at_most=True,
            rounds=tuple(held),
        ),
    ]

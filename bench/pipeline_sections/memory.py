"""Whether the driver stays as small when jobs over the whole log are repeated."""

from bench.driver_memory import DriverMemory
from bench.harness import Figure
from bench.our_pipeline import catch_up, read_all
from bench.pipeline_plan import PipelineStage

GOAL_MIB = 32.0


def memory(stage: PipelineStage) -> list[Figure]:
    """Read and stream the log again and again, and look at what is left after each time."""
    plan = stage.plan
    watch = DriverMemory(stage.spark)
    held: list[float] = []
    for _ in range(plan.rounds + 1):  # the first time fills what is kept for good
        read_all(stage.spark, stage.url, plan.events)
        catch_up(stage.spark, stage.url, plan.batch_events, stage.home)
        held.append(watch.settled_mib())
    stage.say(f"    driver holds {', '.join(f'{one:.0f}' for one in held)} MiB")
    return [
        Figure(
            name=f"driver memory growth over {plan.rounds} reads and catch-ups of {plan.size}",
            measured=held[-1] - held[0],
            goal=GOAL_MIB,
            unit="MiB",
            at_most=True,
            rounds=tuple(held),
        )
    ]

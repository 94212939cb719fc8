"""A stream that catches up in large batches, compared with one batch read."""

from bench.measurement import Figure, interleave, ratio, timed
from bench.pipeline.driver_memory import DriverMemory
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.seriatim_jobs import catch_up as stream
from bench.pipeline.seriatim_jobs import read_all
from bench.plan import format_count

GOAL = 0.5
MEMORY_GOAL_MIB = 32.0


def catch_up(environment: PipelineEnvironment) -> list[Figure]:
    """Stream the log and discard it, then read it in one batch, in rounds."""
    plan = environment.plan
    memory = DriverMemory(environment.spark)
    memory_mib: list[float] = []  # MiB after each read; the first one includes lasting caches

    def run_stream() -> int:
        count = stream(environment.spark, environment.url, plan.batch_events, environment.home)
        assert count == plan.events, count
        return count

    ours, floor = interleave(
        {
            f"stream, {format_count(plan.batch_events)} a batch": timed(run_stream),
            "batch read": memory.after(
                timed(lambda: read_all(environment.spark, environment.url, plan.events)), memory_mib
            ),
        },
        rounds=plan.rounds,
        seconds=plan.seconds,
        report=environment.report,
    ).values()
    name = f"catch-up at {format_count(plan.batch_events)} a batch / batch read"
    environment.report(f"    driver holds {', '.join(f'{mib:.0f}' for mib in memory_mib)} MiB")
    return [
        ratio(name, ours, floor, against="batch read", goal=GOAL),
        Figure(
            name=f"driver memory growth over {plan.rounds} reads and catch-ups of {plan.size}",
            measured=memory_mib[-1] - memory_mib[0],
            goal=MEMORY_GOAL_MIB,
            unit="MiB",
            at_most=True,
            rounds=tuple(memory_mib),
        ),
    ]

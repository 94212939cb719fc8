"""The same jobs on a log ten times as large: what an event costs there, and the driver's memory."""

from functools import partial

from bench.driver_memory import DriverMemory
from bench.harness import Figure, Series, Stopwatch, interleave, timed
from bench.models import ORDERS
from bench.our_pipeline import Rebuilt, read_all
from bench.ours import PREFILL_BATCH, OurLog
from bench.pipeline_plan import PipelineStage
from bench.plan import in_words
from bench.server import settle
from bench.workload import order_batches

GOAL = 1.1
MEMORY_GOAL_MIB = 32.0
SMALL, LARGE = "log_small", "log_large"


def growth(stage: PipelineStage) -> list[Figure]:
    """Let the log grow, then read and rebuild it and a small one in turn."""
    plan = stage.plan
    watch = Stopwatch()
    with OurLog(stage.server.create_database(SMALL)) as small:
        small.fill_with(order_batches(0, plan.small_events, PREFILL_BATCH))
    stage.log.fill_with(order_batches(plan.events, plan.large_events, PREFILL_BATCH))
    urls = {SMALL: small.url, LARGE: stage.url}
    for url in urls.values():
        settle(url)
    stage.say(f"  filled {_sizes(stage)} in {watch.seconds:.0f} s")
    held: dict[str, list[float]] = {SMALL: [], LARGE: []}
    memory = DriverMemory(stage.spark)

    sizes = {SMALL: plan.small_events, LARGE: plan.large_events}
    found = interleave(
        {
            f"{job}, {in_words(sizes[name])}": memory.after(act, held[name])
            for name, url in urls.items()
            for job, act in (
                ("batch read", timed(partial(read_all, stage.spark, url, sizes[name]))),
                ("rebuild", timed(Rebuilt(stage.spark, ORDERS, url))),
            )
        },
        rounds=plan.rounds,
        seconds=plan.seconds,
        say=stage.say,
        warm_up=False,
    )
    small_read, small_rebuild, large_read, large_rebuild = found.values()
    return [
        _cost(stage, "batch read", small_read, large_read),
        _cost(stage, "rebuild", small_rebuild, large_rebuild),
        Figure(
            name=f"driver memory after {_sizes(stage)}",
            measured=max(held[LARGE]) - max(held[SMALL]),
            goal=MEMORY_GOAL_MIB,
            unit="MiB",
            at_most=True,
            rounds=(*held[SMALL], *held[LARGE]),
        ),
    ]


def _sizes(stage: PipelineStage) -> str:
    return f"{in_words(stage.plan.large_events)} over {in_words(stage.plan.small_events)}"


def _cost(stage: PipelineStage, job: str, small: Series, large: Series) -> Figure:
    return Figure(
        name=f"cost of an event, {job}, {_sizes(stage)}",
        measured=small.rate / large.rate,
        goal=GOAL,
        at_most=True,
        events_per_s=large.rate,
        against=f"at {in_words(stage.plan.small_events)}",
        against_per_s=small.rate,
        rounds=tuple(one / other for one, other in zip(small.rates, large.rates, strict=True)),
    )

"""The cost of an event and the memory of the driver on a log ten times as large."""

from functools import partial

from bench.measurement import Figure, Series, Stopwatch, interleave, timed
from bench.pipeline.driver_memory import DriverMemory
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.read_models import ORDERS
from bench.pipeline.seriatim_jobs import Rebuild, read_all
from bench.plan import format_count
from bench.postgres import vacuum_and_checkpoint
from bench.seriatim_log import PREFILL_BATCH, SeriatimLog
from bench.workload import make_order_batches

GOAL = 1.1
MEMORY_GOAL_MIB = 32.0
SMALL, LARGE = "log_small", "log_large"


def growth(environment: PipelineEnvironment) -> list[Figure]:
    """Fill the log to the large size, then read and rebuild it and a small one in turn."""
    plan = environment.plan
    watch = Stopwatch()
    with SeriatimLog(environment.server.create_database(SMALL)) as small:
        small.append_batches(make_order_batches(0, plan.small_events, PREFILL_BATCH))
    environment.log.append_batches(
        make_order_batches(plan.events, plan.large_events, PREFILL_BATCH)
    )
    urls = {SMALL: small.url, LARGE: environment.url}
    for url in urls.values():
        vacuum_and_checkpoint(url)
    environment.report(f"  filled {_sizes(environment)} in {watch.seconds:.0f} s")
    memory_mib: dict[str, list[float]] = {SMALL: [], LARGE: []}
    memory = DriverMemory(environment.spark)

    sizes = {SMALL: plan.small_events, LARGE: plan.large_events}
    series = interleave(
        {
            f"{job}, {format_count(sizes[name])}": memory.after(subject, memory_mib[name])
            for name, url in urls.items()
            for job, subject in (
                ("batch read", timed(partial(read_all, environment.spark, url, sizes[name]))),
                ("rebuild", timed(Rebuild(environment.spark, ORDERS, url))),
            )
        },
        rounds=plan.rounds,
        seconds=plan.seconds,
        report=environment.report,
        warm_up=False,
    )
    small_read, small_rebuild, large_read, large_rebuild = series.values()
    return [
        _cost(environment, "batch read", small_read, large_read),
        _cost(environment, "rebuild", small_rebuild, large_rebuild),
        Figure(
            name=f"driver memory after {_sizes(environment)}",
            measured=max(memory_mib[LARGE]) - max(memory_mib[SMALL]),
            goal=MEMORY_GOAL_MIB,
            unit="MiB",
            at_most=True,
            rounds=(*memory_mib[SMALL], *memory_mib[LARGE]),
        ),
    ]


def _sizes(environment: PipelineEnvironment) -> str:
    large, small = environment.plan.large_events, environment.plan.small_events
    return f"{format_count(large)} over {format_count(small)}"


def _cost(environment: PipelineEnvironment, job: str, small: Series, large: Series) -> Figure:
    return Figure(
        name=f"cost of an event, {job}, {_sizes(environment)}",
        measured=small.rate / large.rate,
        goal=GOAL,
        at_most=True,
        events_per_s=large.rate,
        against=f"at {format_count(environment.plan.small_events)}",
        against_per_s=small.rate,
        rounds=tuple(
            small_rate / large_rate
            for small_rate, large_rate in zip(small.rates, large.rates, strict=True)
        ),
    )

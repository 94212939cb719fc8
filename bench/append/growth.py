"""The throughput of appends and the cost of contexts on a log ten times as large."""

from bench.append.batches import CALLERS, FEW_STREAMS
from bench.append.contexts import contexts
from bench.append.plan import AppendEnvironment
from bench.append.singles import FEW
from bench.measurement import Figure, Stopwatch, interleave, ratio
from bench.plan import format_count
from bench.postgres import vacuum_and_checkpoint
from bench.seriatim_log import SeriatimLog

SINGLES_GOAL, SINGLES_AIM = 0.9, 0.95
BATCHES_GOAL = 0.85
BATCH = 1000
SMALL, LARGE = "log_small", "log_large"


def growth(environment: AppendEnvironment) -> list[Figure]:
    """Fill a copy of the log to the large size, then measure both logs in turn."""
    plan = environment.plan
    big, small = format_count(plan.large_events), plan.size
    with (
        SeriatimLog(environment.server.url(LARGE)) as large_log,
        SeriatimLog(environment.server.url(SMALL)) as small_log,
    ):
        watch = Stopwatch()
        large_log.fill(plan.large_events)
        vacuum_and_checkpoint(large_log.url)
        environment.report(f"  filled the large log to {big} events in {watch.seconds:.0f} s")
        orders = environment.orders()
        small_rate, large_rate, small_batch, large_batch = interleave(
            {
                f"singles, {FEW} tasks, at {small}": small_log.task_singles(FEW, orders),
                f"singles, {FEW} tasks, at {big}": large_log.task_singles(FEW, orders),
                f"batches of {BATCH:,} at {small}": small_log.batches(
                    CALLERS, orders, BATCH, FEW_STREAMS
                ),
                f"batches of {BATCH:,} at {big}": large_log.batches(
                    CALLERS, orders, BATCH, FEW_STREAMS
                ),
            },
            rounds=plan.rounds,
            seconds=plan.seconds,
            report=environment.report,
        ).values()
        name, against = f"throughput at {big} / at {small}", f"at {small}"
        return [
            ratio(
                *(f"{name}, singles, {FEW} tasks", large_rate, small_rate),
                against=against,
                goal=SINGLES_GOAL,
                aim=SINGLES_AIM,
            ),
            ratio(
                f"{name}, batches of {BATCH:,}",
                large_batch,
                small_batch,
                against=against,
                goal=BATCHES_GOAL,
            ),
            *contexts(large_log, plan, big, orders),
        ]

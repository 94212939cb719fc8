"""The same appends on a log ten times as large: throughput, and what contexts cost there."""

from bench.harness import Figure, Stopwatch, interleave, ratio
from bench.ours import OurLog
from bench.plan import Stage, in_words
from bench.sections.batches import CALLERS, FEW_STREAMS
from bench.sections.contexts import contexts
from bench.sections.singles import FEW
from bench.server import settle

GOAL = 0.85
BATCH = 1000
SMALL, LARGE = "log_small", "log_large"


def growth(stage: Stage) -> list[Figure]:
    """Fill a copy of the log up, then interleave the same appends on the small and the large."""
    plan = stage.plan
    big, small = in_words(plan.large_events), plan.size
    with OurLog(stage.server.url(LARGE)) as large, OurLog(stage.server.url(SMALL)) as little:
        watch = Stopwatch()
        large.fill(plan.large_events)
        settle(large.url)
        stage.say(f"  filled the large log to {big} events in {watch.seconds:.0f} s")
        orders = stage.orders()
        one, ten, one_batch, ten_batch = interleave(
            {
                f"singles, {FEW} tasks, at {small}": little.task_singles(FEW, orders),
                f"singles, {FEW} tasks, at {big}": large.task_singles(FEW, orders),
                f"batches of {BATCH:,} at {small}": little.batches(
                    CALLERS, orders, BATCH, FEW_STREAMS
                ),
                f"batches of {BATCH:,} at {big}": large.batches(
                    CALLERS, orders, BATCH, FEW_STREAMS
                ),
            },
            rounds=plan.rounds,
            seconds=plan.seconds,
            say=stage.say,
        ).values()
        name, against = f"throughput at {big} / at {small}", f"at {small}"
        return [
            ratio(f"{name}, singles, {FEW} tasks", ten, one, against=against, goal=GOAL),
            ratio(
                f"{name}, batches of {BATCH:,}", ten_batch, one_batch, against=against, goal=GOAL
            ),
            *contexts(large, plan, big, orders),
        ]

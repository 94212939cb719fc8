"""Batches from eight callers, compared with UmaDB with and without unique event ids."""

from bench.append.plan import AppendEnvironment
from bench.measurement import Figure, Series, interleave, ratio, reference

CALLERS = 8
SIZES = (100, 1000)
FEW_STREAMS = 4
UNIQUE_GOAL, UNIQUE_AIM = 1.8, 2.5
PLAIN_GOAL, PLAIN_AIM = 0.5, 0.8


def batches(environment: AppendEnvironment) -> list[Figure]:
    """Measure batches over four streams, and with a separate stream for each event."""
    return [
        figure
        for size in SIZES
        for words, streams in (("few streams", FEW_STREAMS), ("many streams", size))
        for figure in _batches(environment, size, streams, f"batches of {size:,}, {words}")
    ]


def _batches(environment: AppendEnvironment, size: int, streams: int, name: str) -> list[Figure]:
    orders = environment.orders()
    spread_name = f"{name}, 2 processes"
    ours, unique, plain, spread, unique_spread, plain_spread = interleave(
        {
            f"seriatim, {name}": environment.log.batches(CALLERS, orders, size, streams),
            f"umadb unique, {name}": environment.umadb_unique.batches(
                CALLERS, orders, size, streams
            ),
            f"umadb plain, {name}": environment.umadb.batches(CALLERS, orders, size, streams),
            f"seriatim, {spread_name}": environment.processes.batches(CALLERS, size, streams),
            f"umadb unique, {spread_name}": environment.umadb_unique_processes.batches(
                CALLERS, size, streams
            ),
            f"umadb plain, {spread_name}": environment.umadb_processes.batches(
                CALLERS, size, streams
            ),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [
        *_compare(name, ours, unique, plain),
        *_compare(spread_name, spread, unique_spread, plain_spread),
        reference(f"umadb unique, {name}", unique),
    ]


def _compare(name: str, ours: Series, unique: Series, plain: Series) -> list[Figure]:
    return [
        ratio(
            *(f"{name} / umadb unique", ours, unique),
            against="umadb unique",
            goal=UNIQUE_GOAL,
            aim=UNIQUE_AIM,
        ),
        ratio(
            *(f"{name} / umadb plain", ours, plain),
            against="umadb plain",
            goal=PLAIN_GOAL,
            aim=PLAIN_AIM,
        ),
    ]

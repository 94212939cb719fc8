"""Batches by eight callers, against UmaDB with unique event ids and against plain UmaDB."""

from bench.harness import Figure, beside, interleave, ratio
from bench.plan import Stage

CALLERS = 8
SIZES = (100, 1000)
FEW_STREAMS = 4
UNIQUE_GOAL, UNIQUE_AIM = 1.0, 1.5
PLAIN_GOAL = 0.3


def batches(stage: Stage) -> list[Figure]:
    """Measure batches over four streams, and over a stream of its own for each event."""
    return [
        figure
        for size in SIZES
        for words, streams in (("few streams", FEW_STREAMS), ("many streams", size))
        for figure in _batches(stage, size, streams, f"batches of {size:,}, {words}")
    ]


def _batches(stage: Stage, size: int, streams: int, name: str) -> list[Figure]:
    orders = stage.orders()
    ours, unique, plain = interleave(
        {
            f"seriatim, {name}": stage.log.batches(CALLERS, orders, size, streams),
            f"umadb unique, {name}": stage.umadb_unique.batches(CALLERS, orders, size, streams),
            f"umadb plain, {name}": stage.umadb.batches(CALLERS, orders, size, streams),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        ratio(
            *(f"{name} / umadb unique", ours, unique),
            against="umadb unique",
            goal=UNIQUE_GOAL,
            aim=UNIQUE_AIM,
        ),
        ratio(f"{name} / umadb plain", ours, plain, against="umadb plain", goal=PLAIN_GOAL),
        beside(f"umadb unique, {name}", unique),
    ]

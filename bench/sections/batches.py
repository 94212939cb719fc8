"""Batches by eight callers, against UmaDB with unique event ids and against plain UmaDB."""

from bench.harness import Figure, Series, beside, interleave, ratio
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
    spread_name = f"{name}, 2 processes"
    ours, unique, plain, spread, unique_spread, plain_spread = interleave(
        {
            f"seriatim, {name}": stage.log.batches(CALLERS, orders, size, streams),
            f"umadb unique, {name}": stage.umadb_unique.batches(CALLERS, orders, size, streams),
            f"umadb plain, {name}": stage.umadb.batches(CALLERS, orders, size, streams),
            f"seriatim, {spread_name}": stage.crew.batches(CALLERS, size, streams),
            f"umadb unique, {spread_name}": stage.umadb_unique_crew.batches(CALLERS, size, streams),
            f"umadb plain, {spread_name}": stage.umadb_crew.batches(CALLERS, size, streams),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        *_against(name, ours, unique, plain),
        *_against(spread_name, spread, unique_spread, plain_spread),
        beside(f"umadb unique, {name}", unique),
    ]


def _against(name: str, ours: Series, unique: Series, plain: Series) -> list[Figure]:
    return [
        ratio(
            *(f"{name} / umadb unique", ours, unique),
            against="umadb unique",
            goal=UNIQUE_GOAL,
            aim=UNIQUE_AIM,
        ),
        ratio(f"{name} / umadb plain", ours, plain, against="umadb plain", goal=PLAIN_GOAL),
    ]

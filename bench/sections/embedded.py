"""SQLite, durable: one caller and 32 waiting ones against a bare loop of one-row inserts."""

from bench.floors import BareSqlite
from bench.harness import Figure, beside, interleave, ratio
from bench.ours import OurLog
from bench.plan import Stage

CALLERS = 32
ALONE_GOAL = 0.4
WAITING_GOAL = 2.0


def sqlite(stage: Stage) -> list[Figure]:
    """Measure on a SQLite log of the same size, and a bare table of as many rows."""
    orders = stage.orders()
    bare = BareSqlite(stage.home / "bare.db", stage.plan.events)
    with OurLog(f"sqlite:///{stage.home / 'log.db'}") as ours:
        stage.say(f"  filling the SQLite log with {stage.plan.size} events")
        ours.fill(stage.plan.events)
        alone, loop, waiting, threaded = interleave(
            {
                "seriatim on SQLite, 1 caller": ours.alone(orders),
                "bare SQLite insert loop": bare.loop(),
                f"seriatim on SQLite, {CALLERS} tasks": ours.task_singles(CALLERS, orders),
                f"seriatim on SQLite, {CALLERS} threads": ours.thread_singles(CALLERS, orders),
            },
            rounds=stage.plan.rounds,
            seconds=stage.plan.seconds,
            say=stage.say,
        ).values()
    bare.close()
    name, against = "SQLite singles", "bare insert loop"
    return [
        ratio(f"{name}, 1 caller / {against}", alone, loop, against=against, goal=ALONE_GOAL),
        ratio(
            f"{name}, {CALLERS} tasks / {against}",
            waiting,
            loop,
            against=against,
            goal=WAITING_GOAL,
        ),
        ratio(f"{name}, {CALLERS} threads / {against}", threaded, loop, against=against),
        beside("SQLite bare insert loop", loop),
    ]

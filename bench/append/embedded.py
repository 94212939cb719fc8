"""Durable appends on SQLite, from 1 and 32 callers, compared with a loop of bare inserts."""

from bench.append.plan import AppendEnvironment
from bench.baselines import SqliteBaseline
from bench.measurement import Figure, interleave, ratio, reference
from bench.seriatim_log import SeriatimLog

CALLERS = 32
ALONE_GOAL, ALONE_AIM = 0.5, 0.7
TASKS_GOAL, TASKS_AIM = 2.0, 3.0
THREADS_GOAL, THREADS_AIM = 1.5, 2.0


def sqlite(environment: AppendEnvironment) -> list[Figure]:
    """Measure on a SQLite log of the planned size and a bare table with as many rows."""
    orders = environment.orders()
    bare = SqliteBaseline(environment.home / "bare.db", environment.plan.events)
    with SeriatimLog(f"sqlite:///{environment.home / 'log.db'}") as ours:
        environment.report(f"  filling the SQLite log with {environment.plan.size} events")
        ours.fill(environment.plan.events)
        alone, loop, waiting, threaded = interleave(
            {
                "seriatim on SQLite, 1 caller": ours.alone(orders),
                "bare SQLite insert loop": bare.loop(),
                f"seriatim on SQLite, {CALLERS} tasks": ours.task_singles(CALLERS, orders),
                f"seriatim on SQLite, {CALLERS} threads": ours.thread_singles(CALLERS, orders),
            },
            rounds=environment.plan.rounds,
            seconds=environment.plan.seconds,
            report=environment.report,
        ).values()
    bare.close()
    name, against = "SQLite singles", "bare insert loop"
    return [
        ratio(
            *(f"{name}, 1 caller / {against}", alone, loop),
            against=against,
            goal=ALONE_GOAL,
            aim=ALONE_AIM,
        ),
        ratio(
            *(f"{name}, {CALLERS} tasks / {against}", waiting, loop),
            against=against,
            goal=TASKS_GOAL,
            aim=TASKS_AIM,
        ),
        ratio(
            *(f"{name}, {CALLERS} threads / {against}", threaded, loop),
            against=against,
            goal=THREADS_GOAL,
            aim=THREADS_AIM,
        ),
        reference("SQLite bare insert loop", loop),
    ]

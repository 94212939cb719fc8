"""Single appends by waiting callers, against a bare insert, UmaDB and pyeventsourcing."""

from bench.harness import Figure, beside, interleave, ratio
from bench.plan import Stage

FEW, MANY = 32, 128
PGBENCH_GOALS = {1: (0.2, None), FEW: (0.5, 0.8), MANY: (1.0, 1.6)}
UMADB_GOALS = {FEW: (1.0, 1.5), MANY: (1.5, 2.5)}
RECORDER_GOAL = 10.0


def singles(stage: Stage) -> list[Figure]:
    """Measure at one, 32 and 128 callers; asyncio tasks are ours, threads stand beside."""
    return [*_one(stage), *_waiting(stage, FEW), *_waiting(stage, MANY)]


def _one(stage: Stage) -> list[Figure]:
    orders = stage.orders()
    found = interleave(
        {
            "seriatim, 1 caller": stage.log.alone(orders),
            "pgbench, 1 client": stage.pgbench.clients(1),
            "umadb, 1 caller": stage.umadb.singles(1, orders),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    )
    ours, floor, umadb = found.values()
    return [
        _against_pgbench("singles, 1 caller / pgbench", 1, ours=ours, floor=floor),
        beside("umadb singles, 1 caller", umadb),
        beside("pgbench one-row insert, 1 client", floor),
    ]


def _waiting(stage: Stage, callers: int) -> list[Figure]:
    orders = stage.orders()
    contestants = {
        f"seriatim, {callers} tasks": stage.log.task_singles(callers, orders),
        f"pgbench, {callers} clients": stage.pgbench.clients(callers),
        f"umadb, {callers} threads": stage.umadb.singles(callers, orders),
        f"seriatim, {callers} threads": stage.log.thread_singles(callers, orders),
    }
    if callers == FEW:
        contestants["pyeventsourcing, 32 threads"] = stage.recorder.singles(callers, orders)
    found = interleave(
        contestants, rounds=stage.plan.rounds, seconds=stage.plan.seconds, say=stage.say
    )
    ours, floor, umadb, threaded, *others = found.values()
    goal, aim = UMADB_GOALS[callers]
    figures = [
        _against_pgbench(f"singles, {callers} tasks / pgbench", callers, ours=ours, floor=floor),
        _against_pgbench(
            f"singles, {callers} threads / pgbench", callers, ours=threaded, floor=floor
        ),
        ratio(f"singles, {callers} tasks / umadb", ours, umadb, against="umadb", goal=goal, aim=aim),
        ratio(
            *(f"singles, {callers} threads / umadb", threaded, umadb),
            against="umadb",
            goal=goal,
            aim=aim,
        ),
    ]
    figures += [
        ratio(
            *(f"singles, {callers} tasks / pyeventsourcing", ours, recorder),
            against="pyeventsourcing",
            goal=RECORDER_GOAL,
        )
        for recorder in others
    ]
    return [
        *figures,
        beside(f"pgbench one-row insert, {callers} clients", floor),
        beside(f"umadb singles, {callers} threads", umadb),
    ]


def _against_pgbench(name: str, callers: int, *, ours: Series, floor: Series) -> Figure:
    goal, aim = PGBENCH_GOALS[callers]
    return ratio(name, ours, floor, against="pgbench", goal=goal, aim=aim)

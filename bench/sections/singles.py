"""Single appends by waiting callers, against a bare insert, UmaDB and pyeventsourcing."""

from bench.harness import Figure, Series, beside, interleave, ratio
from bench.plan import Stage

FEW, MANY = 32, 128
PGBENCH_GOALS = {FEW: (0.5, 0.8), MANY: (1.0, 1.6)}
UMADB_GOALS = {FEW: (1.0, 1.5), MANY: (1.5, 2.5)}
ALONE_GOAL = 0.2
RECORDER_GOAL = 10.0


def singles(stage: Stage) -> list[Figure]:
    """Measure one caller, then 32 and 128 waiting ones.

    The goals are held against asyncio tasks, the usual way to have many callers wait in one
    process, in one process and spread over two (rivals' clients likewise); the same number of
    threads, which is how rivals' clients wait, stands beside.
    """
    return [*_alone(stage), *_waiting(stage, FEW), *_waiting(stage, MANY)]


def _alone(stage: Stage) -> list[Figure]:
    orders = stage.orders()
    ours, floor, umadb = interleave(
        {
            "seriatim, 1 caller": stage.log.alone(orders),
            "pgbench, 1 client": stage.pgbench.clients(1),
            "umadb, 1 caller": stage.umadb.singles(1, orders),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        ratio("singles, 1 caller / pgbench", ours, floor, against="pgbench", goal=ALONE_GOAL),
        ratio("singles, 1 caller / umadb", ours, umadb, against="umadb"),
        beside("pgbench one-row insert, 1 client", floor),
        beside("umadb singles, 1 thread", umadb),
    ]


def _waiting(stage: Stage, callers: int) -> list[Figure]:
    orders = stage.orders()
    contestants = {
        f"seriatim, {callers} tasks": stage.log.task_singles(callers, orders),
        f"pgbench, {callers} clients": stage.pgbench.clients(callers),
        f"umadb, {callers} threads": stage.umadb.singles(callers, orders),
        f"seriatim, {callers} threads": stage.log.thread_singles(callers, orders),
        f"seriatim, {callers} tasks in 2 processes": stage.crew.singles(callers),
        f"umadb, {callers} threads in 2 processes": stage.umadb_crew.singles(callers),
    }
    if callers == FEW:
        contestants["pyeventsourcing, 32 threads"] = stage.recorder.singles(callers, orders)
    ours, floor, umadb, threaded, spread, umadb_spread, *recorder = interleave(
        contestants, rounds=stage.plan.rounds, seconds=stage.plan.seconds, say=stage.say
    ).values()
    goals = (PGBENCH_GOALS[callers], UMADB_GOALS[callers])
    return [
        *_against_all(f"singles, {callers} tasks", ours, floor, umadb, goals),
        *_against_all(
            f"singles, {callers} tasks in 2 processes", spread, floor, umadb_spread, goals
        ),
        *_against_recorder(callers, ours, recorder),
        *_against_all(f"singles, {callers} threads", threaded, floor, umadb, (NONE, NONE)),
        beside(f"pgbench one-row insert, {callers} clients", floor),
        beside(f"umadb singles, {callers} threads", umadb),
    ]


Goal = tuple[float | None, float | None]
NONE: Goal = (None, None)


def _against_all(
    name: str, ours: Series, floor: Series, umadb: Series, goals: tuple[Goal, Goal]
) -> list[Figure]:
    (floor_goal, floor_aim), (umadb_goal, umadb_aim) = goals
    return [
        ratio(f"{name} / pgbench", ours, floor, against="pgbench", goal=floor_goal, aim=floor_aim),
        ratio(f"{name} / umadb", ours, umadb, against="umadb", goal=umadb_goal, aim=umadb_aim),
    ]


def _against_recorder(callers: int, ours: Series, recorder: list[Series]) -> list[Figure]:
    return [
        ratio(
            *(f"singles, {callers} tasks / pyeventsourcing", ours, theirs),
            against="pyeventsourcing",
            goal=RECORDER_GOAL,
        )
        for theirs in recorder
    ]

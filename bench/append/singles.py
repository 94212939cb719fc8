"""Single appends, compared with bare inserts, UmaDB and pyeventsourcing."""

from bench.append.plan import AppendEnvironment
from bench.measurement import Figure, Series, interleave, ratio, reference

FEW, MANY = 32, 128
PGBENCH_GOALS = {FEW: (0.5, 0.8), MANY: (1.0, 1.6)}
UMADB_GOALS = {FEW: (1.0, 1.5), MANY: (1.5, 2.5)}
ALONE_GOAL = 0.2
RECORDER_GOAL = 10.0


def singles(environment: AppendEnvironment) -> list[Figure]:
    """Measure 1, 32 and 128 callers.

    The goals apply to asyncio tasks, the usual way to run many callers in one process, in one
    process and in two. Competitors use as many threads, because their clients block; Seriatim with
    threads is measured for comparison, without a goal.
    """
    return [
        *_single_caller(environment),
        *_concurrent_callers(environment, FEW),
        *_concurrent_callers(environment, MANY),
    ]


def _single_caller(environment: AppendEnvironment) -> list[Figure]:
    orders = environment.orders()
    ours, floor, umadb = interleave(
        {
            "seriatim, 1 caller": environment.log.alone(orders),
            "pgbench, 1 client": environment.pgbench.clients(1),
            "umadb, 1 caller": environment.umadb.singles(1, orders),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [
        ratio("singles, 1 caller / pgbench", ours, floor, against="pgbench", goal=ALONE_GOAL),
        ratio("singles, 1 caller / umadb", ours, umadb, against="umadb"),
        reference("pgbench one-row insert, 1 client", floor),
        reference("umadb singles, 1 thread", umadb),
    ]


def _concurrent_callers(environment: AppendEnvironment, callers: int) -> list[Figure]:
    orders = environment.orders()
    subjects = {
        f"seriatim, {callers} tasks": environment.log.task_singles(callers, orders),
        f"pgbench, {callers} clients": environment.pgbench.clients(callers),
        f"umadb, {callers} threads": environment.umadb.singles(callers, orders),
        f"seriatim, {callers} threads": environment.log.thread_singles(callers, orders),
        f"seriatim, {callers} tasks in 2 processes": environment.processes.singles(callers),
        f"umadb, {callers} threads in 2 processes": environment.umadb_processes.singles(callers),
    }
    if callers == FEW:
        subjects["pyeventsourcing, 32 threads"] = environment.recorder.singles(callers, orders)
    ours, floor, umadb, threaded, spread, umadb_spread, *recorder = interleave(
        subjects,
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    goals = (PGBENCH_GOALS[callers], UMADB_GOALS[callers])
    return [
        *_compare_all(f"singles, {callers} tasks", ours, floor, umadb, goals),
        *_compare_all(
            f"singles, {callers} tasks in 2 processes", spread, floor, umadb_spread, goals
        ),
        *_compare_recorder(callers, ours, recorder),
        *_compare_all(f"singles, {callers} threads", threaded, floor, umadb, (NO_GOAL, NO_GOAL)),
        reference(f"pgbench one-row insert, {callers} clients", floor),
        reference(f"umadb singles, {callers} threads", umadb),
    ]


Goal = tuple[float | None, float | None]
NO_GOAL: Goal = (None, None)


def _compare_all(
    name: str, ours: Series, floor: Series, umadb: Series, goals: tuple[Goal, Goal]
) -> list[Figure]:
    (floor_goal, floor_aim), (umadb_goal, umadb_aim) = goals
    return [
        ratio(f"{name} / pgbench", ours, floor, against="pgbench", goal=floor_goal, aim=floor_aim),
        ratio(f"{name} / umadb", ours, umadb, against="umadb", goal=umadb_goal, aim=umadb_aim),
    ]


def _compare_recorder(callers: int, ours: Series, recorder: list[Series]) -> list[Figure]:
    return [
        ratio(
            *(f"singles, {callers} tasks / pyeventsourcing", ours, theirs),
            against="pyeventsourcing",
            goal=RECORDER_GOAL,
        )
        for theirs in recorder
    ]

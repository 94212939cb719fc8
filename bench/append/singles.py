"""Single appends, compared with bare inserts, UmaDB and pyeventsourcing."""

from bench.append.plan import AppendEnvironment
from bench.measurement import Figure, Series, interleave, ratio, reference

FEW, MANY = 32, 128
Goal = tuple[float | None, float | None]  # and the aim
NO_GOAL: Goal = (None, None)

# Compared with pgbench, and with UmaDB.
Goals = tuple[Goal, Goal]
ALONE_GOALS: Goals = ((0.5, 0.7), (1.3, 1.8))
TASK_GOALS: dict[int, Goals] = {FEW: ((1.0, 1.3), (1.8, 2.3)), MANY: ((1.5, 2.0), (2.5, 3.5))}
PROCESS_GOALS: dict[int, Goals] = {FEW: ((1.0, 1.3), NO_GOAL), MANY: ((1.3, 1.8), NO_GOAL)}
THREAD_GOALS: dict[int, Goals] = {FEW: ((0.6, 0.8), (1.1, 1.5)), MANY: (NO_GOAL, NO_GOAL)}
RECORDER_GOAL, RECORDER_AIM = 18.0, 25.0


def singles(environment: AppendEnvironment) -> list[Figure]:
    """Measure 1, 32 and 128 callers.

    Seriatim runs them as asyncio tasks, in one process and in two, and as threads. Competitors use
    as many threads, because their clients block.
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
        *_compare_all("singles, 1 caller", ours, floor, umadb, ALONE_GOALS),
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
    name = f"singles, {callers}"
    return [
        *_compare_all(f"{name} tasks", ours, floor, umadb, TASK_GOALS[callers]),
        *_compare_all(
            f"{name} tasks in 2 processes", spread, floor, umadb_spread, PROCESS_GOALS[callers]
        ),
        *_compare_recorder(callers, ours, recorder),
        *_compare_all(f"{name} threads", threaded, floor, umadb, THREAD_GOALS[callers]),
        reference(f"pgbench one-row insert, {callers} clients", floor),
        reference(f"umadb singles, {callers} threads", umadb),
    ]


def _compare_all(
    name: str, ours: Series, floor: Series, umadb: Series, goals: Goals
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
            aim=RECORDER_AIM,
        )
        for theirs in recorder
    ]

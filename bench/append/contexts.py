"""The cost of a context condition over a plain append, and its effect on other callers."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping

from bench.append.plan import AppendPlan
from bench.measurement import Figure, percentile_ms
from bench.seriatim_log import SeriatimLog
from bench.workload import PAYLOAD_CONTEXTS, TAG_CONTEXTS, WORST_PAYLOAD, WORST_TAGS, Orders
from seriatim import BackendFailure, ExpectedContext, Query, TimedOut

OVERHEAD_GOAL_MS, OVERHEAD_AIM_MS = 0.5, 0.2
BESIDE_GOAL_MS = 3.0
BUDGET_S = 4.0
PLAIN = "plain"

Operation = Callable[[], object]


def contexts(ours: SeriatimLog, plan: AppendPlan, size: str, orders: Orders) -> list[Figure]:
    """Measure conditional appends by tags and by payload at the current size of the log."""
    paths = "declared payload path"
    return [
        *_overheads(ours, plan, f"append_if by tags, {size}", TAG_CONTEXTS, orders),
        *_measure_neighbours(ours, plan, "tags", size, WORST_TAGS, orders),
        *_overheads(ours, plan, f"append_if by {paths}, {size}", PAYLOAD_CONTEXTS, orders),
        *_measure_neighbours(ours, plan, paths, size, WORST_PAYLOAD, orders),
    ]


def _measure_neighbours(
    ours: SeriatimLog, plan: AppendPlan, words: str, size: str, query: Query, orders: Orders
) -> list[Figure]:
    name = f"plain beside worst {words} context, {size}"
    with SeriatimLog(ours.url) as other:
        apart = _measure_beside_worst(ours, other, plan, name, query, orders)
    # No goal for callers of the same process, because they share its committer.
    same = _measure_beside_worst(
        ours, ours, plan, f"{name}, same process", query, orders, goal=None
    )
    return [apart, same]


def _overheads(
    ours: SeriatimLog, plan: AppendPlan, name: str, queries: Mapping[str, Query], orders: Orders
) -> list[Figure]:
    """Append without and with each context in turn; no context matches the appended events."""
    operations: dict[str, Operation] = {PLAIN: lambda: ours.log.append([orders.event()])}
    for words, query in queries.items():
        operations[words] = _conditional(ours, query, orders)
    rounds = [_time_in_turn(operations, plan.context_calls) for _ in range(plan.rounds)]
    figures = []
    for words in queries:
        overs = [_p50(one[words]) - _p50(one[PLAIN]) for one in rounds]
        p50_ms = statistics.median(_p50(one[words]) for one in rounds)
        figures.append(
            Figure(
                name=f"{name}, {words}: p50 over plain",
                measured=statistics.median(overs),
                goal=OVERHEAD_GOAL_MS,
                aim=OVERHEAD_AIM_MS,
                unit="ms",
                at_most=True,
                p50_ms=p50_ms,
                p99_ms=statistics.median(_p99(one[words]) for one in rounds),
                events_per_s=1e3 / p50_ms,
                rounds=tuple(overs),
            )
        )
    return figures


def _conditional(ours: SeriatimLog, query: Query, orders: Orders) -> Operation:
    version = ours.log.query(query, limit=1).context_version
    condition = ExpectedContext(query, version)
    return lambda: ours.log.append([orders.event()], condition)


def _time_in_turn(operations: Mapping[str, Operation], calls: int) -> dict[str, list[float]]:
    """Time `calls` calls of each operation in turn, fewer if its time budget is used up."""
    times: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(calls):
        for name, operation in operations.items():
            if sum(times[name]) < BUDGET_S:
                times[name].append(_time_call(operation))
    return times


def _time_call(operation: Operation) -> float:
    """Return the duration of a call; a call that times out counts with its duration."""
    started = time.perf_counter()
    try:
        operation()
    except (TimedOut, BackendFailure) as error:
        print(f"    {error.code}: {error}")
    return time.perf_counter() - started


def _p50(latencies_s: list[float]) -> float:
    return statistics.median(latencies_s) * 1e3


def _p99(latencies_s: list[float]) -> float:
    return percentile_ms(latencies_s, 0.99) or 0.0


def _measure_beside_worst(
    ours: SeriatimLog,
    other: SeriatimLog,
    plan: AppendPlan,
    name: str,
    query: Query,
    orders: Orders,
    *,
    goal: float | None = BESIDE_GOAL_MS,
) -> Figure:
    """Compare plain appends next to a caller with the worst context and next to a plain one.

    Two handles share only the lock of the database, as two processes do.
    """
    worst = _conditional(other, query, orders)
    overs, p50s, p99s = [], [], []
    for _ in range(plan.rounds):
        baseline = _probe(ours, lambda: other.log.append([orders.event()]), plan, orders)
        worst_case = _probe(ours, worst, plan, orders)
        overs.append(_p99(worst_case) - _p99(baseline))
        p50s.append(_p50(worst_case))
        p99s.append(_p99(worst_case))
    return Figure(
        name=f"{name}: p99 over calm",
        measured=statistics.median(overs),
        goal=goal,
        unit="ms",
        at_most=True,
        p50_ms=statistics.median(p50s),
        p99_ms=statistics.median(p99s),
        rounds=tuple(overs),
    )


def _probe(
    ours: SeriatimLog, neighbour: Operation, plan: AppendPlan, orders: Orders
) -> list[float]:
    """Time plain appends while another caller appends without a pause."""
    stop = threading.Event()

    def append_until_stopped() -> None:
        while not stop.is_set():
            _time_call(neighbour)

    thread = threading.Thread(target=append_until_stopped)
    thread.start()
    latencies: list[float] = []
    deadline = time.perf_counter() + plan.seconds
    try:
        while time.perf_counter() < deadline:
            latencies.append(_time_call(lambda: ours.log.append([orders.event()])))
    finally:
        stop.set()
        thread.join()
    return latencies

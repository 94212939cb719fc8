"""What a context condition costs over a plain append, and whether it makes others wait."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping

from bench.harness import Figure, percentile_ms
from bench.ours import OurLog
from bench.plan import Plan
from bench.workload import PAYLOAD_CONTEXTS, TAG_CONTEXTS, WORST_PAYLOAD, WORST_TAGS, Orders
from seriatim import BackendFailure, ExpectedContext, Query, TimedOut

OVERHEAD_GOAL_MS = 3.0
BUDGET_S = 4.0
PLAIN = "plain"

Act = Callable[[], object]


def contexts(ours: OurLog, plan: Plan, size: str, orders: Orders) -> list[Figure]:
    """Measure `append_if` by tags and by payload at the size the log has."""
    paths = "declared payload path"
    return [
        *_overheads(ours, plan, f"append_if by tags, {size}", TAG_CONTEXTS, orders),
        *_beside(ours, plan, "tags", size, WORST_TAGS, orders),
        *_overheads(ours, plan, f"append_if by {paths}, {size}", PAYLOAD_CONTEXTS, orders),
        *_beside(ours, plan, paths, size, WORST_PAYLOAD, orders),
    ]


def _beside(  # noqa: PLR0913 - a log, and what to do with it
    ours: OurLog, plan: Plan, words: str, size: str, query: Query, orders: Orders
) -> list[Figure]:
    name = f"plain beside worst {words} context, {size}"
    with OurLog(ours.url) as other:
        apart = _beside_worst(ours, other, plan, name, query, orders)
    # No goal is set for callers of the same process, who share its committer.
    same = _beside_worst(ours, ours, plan, f"{name}, same process", query, orders, goal=None)
    return [apart, same]


def _overheads(
    ours: OurLog, plan: Plan, name: str, queries: Mapping[str, Query], orders: Orders
) -> list[Figure]:
    """Append plainly and under each context in turn; the contexts never match what is appended."""
    acts: dict[str, Act] = {PLAIN: lambda: ours.log.append([orders.event()])}
    for words, query in queries.items():
        acts[words] = _conditional(ours, query, orders)
    rounds = [_turns(acts, plan.context_calls) for _ in range(plan.rounds)]
    figures = []
    for words in queries:
        overs = [_p50(one[words]) - _p50(one[PLAIN]) for one in rounds]
        p50_ms = statistics.median(_p50(one[words]) for one in rounds)
        figures.append(
            Figure(
                name=f"{name}, {words}: p50 over plain",
                measured=statistics.median(overs),
                goal=OVERHEAD_GOAL_MS,
                unit="ms",
                at_most=True,
                p50_ms=p50_ms,
                p99_ms=statistics.median(_p99(one[words]) for one in rounds),
                events_per_s=1e3 / p50_ms,
                rounds=tuple(overs),
            )
        )
    return figures


def _conditional(ours: OurLog, query: Query, orders: Orders) -> Act:
    version = ours.log.query(query, limit=1).context_version
    condition = ExpectedContext(query, version)
    return lambda: ours.log.append([orders.event()], condition)


def _turns(acts: Mapping[str, Act], calls: int) -> dict[str, list[float]]:
    """Call each act in turn, so often or until its budget is spent, and time every call."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(calls):
        for name, act in acts.items():
            if sum(times[name]) < BUDGET_S:
                times[name].append(_timed(act))
    return times


def _timed(act: Act) -> float:
    """Return how long an act took, also when it gave up: then it took at least as long."""
    started = time.perf_counter()
    try:
        act()
    except (TimedOut, BackendFailure) as error:
        print(f"    {error.code}: {error}")
    return time.perf_counter() - started


def _p50(latencies_s: list[float]) -> float:
    return statistics.median(latencies_s) * 1e3


def _p99(latencies_s: list[float]) -> float:
    return percentile_ms(latencies_s, 0.99) or 0.0


def _beside_worst(  # noqa: PLR0913 - two logs and what to do with them
    ours: OurLog,
    other: OurLog,
    plan: Plan,
    name: str,
    query: Query,
    orders: Orders,
    *,
    goal: float | None = OVERHEAD_GOAL_MS,
) -> Figure:
    """Compare plain appends beside a neighbour's worst context with those beside its plain ones.

    With another handle, as with another process, only the database's lock is shared.
    """
    worst = _conditional(other, query, orders)
    overs, p50s, p99s = [], [], []
    for _ in range(plan.rounds):
        calm = _probe(ours, lambda: other.log.append([orders.event()]), plan, orders)
        hard = _probe(ours, worst, plan, orders)
        overs.append(_p99(hard) - _p99(calm))
        p50s.append(_p50(hard))
        p99s.append(_p99(hard))
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


def _probe(ours: OurLog, neighbour: Act, plan: Plan, orders: Orders) -> list[float]:
    """Time plain appends while a neighbour goes on without a pause."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            _timed(neighbour)

    thread = threading.Thread(target=work)
    thread.start()
    latencies: list[float] = []
    deadline = time.perf_counter() + plan.seconds
    try:
        while time.perf_counter() < deadline:
            latencies.append(_timed(lambda: ours.log.append([orders.event()])))
    finally:
        stop.set()
        thread.join()
    return latencies

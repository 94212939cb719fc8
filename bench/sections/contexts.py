"""What a context condition costs over a plain append, and whether it makes others wait."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from bench.harness import Figure, percentile_ms
from bench.ours import OurLog
from bench.plan import Plan
from bench.workload import (
    PAYLOAD_CONTEXTS,
    TAG_CONTEXTS,
    WORST_PAYLOAD,
    WORST_TAGS,
    Orders,
)
from seriatim import ExpectedContext, Query

OVERHEAD_GOAL_MS = 3.0
BUDGET_S = 20.0
PLAIN = "plain"

Act = Callable[[], object]


def contexts(ours: OurLog, plan: Plan, size: str, orders: Orders) -> list[Figure]:
    """Measure `append_if` by tags and by payload at the size the log has."""
    figures = [
        *_overheads(ours, plan, f"append_if by tags, {size}", TAG_CONTEXTS, orders),
        *_overheads(ours, plan, f"append_if by payload, {size}", PAYLOAD_CONTEXTS, orders),
    ]
    for words, query in (("tags", WORST_TAGS), ("payload", WORST_PAYLOAD)):
        name = f"plain append beside the worst {words} context, {size}"
        figures.append(_beside_worst(ours, plan, name, query, orders))
    return figures


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
        p99s = [percentile_ms(one[words], 0.99) or 0.0 for one in rounds]
        p50_ms = statistics.median(_p50(one[words]) for one in rounds)
        figures.append(
            Figure(
                name=f"{name}, {words}: p50 over plain",
                measured=statistics.median(overs),
                goal=OVERHEAD_GOAL_MS,
                unit="ms",
                at_most=True,
                p50_ms=p50_ms,
                p99_ms=statistics.median(p99s),
                events_per_s=1e3 / p50_ms,
                rounds=tuple(overs),
            )
        )
    return figures


def _conditional(ours: OurLog, query: Query, orders: Orders) -> Act:
    condition = ExpectedContext(query, ours.log.query(query, limit=1).context_version)
    return lambda: ours.log.append([orders.event()], condition)


def _turns(acts: Mapping[str, Act], calls: int) -> dict[str, list[float]]:
    """Call each act in turn, so often or until the budget is spent, and time every call."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    deadline = time.perf_counter() + BUDGET_S
    for _ in range(calls):
        for name, act in acts.items():
            started = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - started)
        if time.perf_counter() > deadline:
            break
    return times


def _p50(latencies_s: list[float]) -> float:
    return statistics.median(latencies_s) * 1e3


def _beside_worst(ours: OurLog, plan: Plan, name: str, query: Query, orders: Orders) -> Figure:
    """Compare plain appends beside another process' worst context with those beside its plain ones.

    The context is asked through a log handle of its own: only the database's lock is shared.
    """
    with ExitStack() as stack:
        other = stack.enter_context(OurLog(ours.url))
        worst = _conditional(other, query, orders)
        overs, p50s, p99s = [], [], []
        for _ in range(plan.rounds):
            calm = _probe(ours, lambda: other.log.append([orders.event()]), plan, orders)
            hard = _probe(ours, worst, plan, orders)
            overs.append((percentile_ms(hard, 0.99) or 0.0) - (percentile_ms(calm, 0.99) or 0.0))
            p50s.append(_p50(hard))
            p99s.append(percentile_ms(hard, 0.99) or 0.0)
    return Figure(
        name=f"{name}: p99 over plain",
        measured=statistics.median(overs),
        goal=OVERHEAD_GOAL_MS,
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
            neighbour()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        latencies = []
        deadline = time.perf_counter() + plan.seconds
        while (started := time.perf_counter()) < deadline:
            ours.log.append([orders.event()])
            latencies.append(time.perf_counter() - started)
    finally:
        stop.set()
        thread.join()
    return latencies

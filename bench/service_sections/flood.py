"""One tenant's flood, and what another tenant's appends have to wait meanwhile."""

import threading

from bench.harness import Figure, Sample, Series
from bench.http_load import load
from bench.service_plan import ServiceStage

GOAL = 3.0
FLOOD = 64  # connections that never pause
QUIET = 1


def flood(stage: ServiceStage) -> list[Figure]:
    """Measure the p99 of one caller alone, and beside another tenant's flood."""
    quiet, beside = [], []
    for _ in range(stage.plan.rounds):
        quiet.append(_calm(stage))
        beside.append(_flooded(stage))
    alone, flooded = Series.of(quiet), Series.of(beside)
    return [
        Figure(
            name="append beside a tenant's flood / quiet, p99",
            measured=(flooded.p99_ms or 0.0) / (alone.p99_ms or 1.0),
            goal=GOAL,
            at_most=True,
            p50_ms=flooded.p50_ms,
            p99_ms=flooded.p99_ms,
            against=f"quiet, p99 {alone.p99_ms:.2f} ms",
            rounds=tuple(
                their / our for our, their in zip(alone.p99s_ms, flooded.p99s_ms, strict=False)
            ),
        )
    ]


def _calm(stage: ServiceStage) -> Sample:
    orders = stage.orders(2)
    return load(
        stage.port,
        QUIET,
        lambda: stage.request("/v1/events", [orders.event()], stage.other_token),
    )(stage.plan.seconds)


def _flooded(stage: ServiceStage) -> Sample:
    orders = stage.orders(3)
    waves = load(stage.port, FLOOD, lambda: stage.request("/v1/events", [orders.event()]))
    water = threading.Thread(target=waves, args=(stage.plan.seconds + 1.0,))
    water.start()
    try:
        return _calm(stage)
    finally:
        water.join()

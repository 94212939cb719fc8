"""The latency of one tenant while another tenant floods the service."""

import threading

from bench.measurement import Figure, Sample, Series
from bench.service.http_load import load
from bench.service.plan import ServiceEnvironment

GOAL = 3.0
FLOOD = 64  # connections that send without a pause
QUIET = 1


def flood(environment: ServiceEnvironment) -> list[Figure]:
    """Measure the p99 latency of one caller, alone and during the flood of another tenant."""
    quiet_samples, flooded_samples = [], []
    for _ in range(environment.plan.rounds):
        quiet_samples.append(_measure_quiet(environment))
        flooded_samples.append(_measure_flooded(environment))
    alone, flooded = Series.of(quiet_samples), Series.of(flooded_samples)
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


def _measure_quiet(environment: ServiceEnvironment) -> Sample:
    orders = environment.orders(2)
    return load(
        environment.port,
        QUIET,
        lambda: environment.request("/v1/events", [orders.event()], environment.other_token),
    )(environment.plan.seconds)


def _measure_flooded(environment: ServiceEnvironment) -> Sample:
    orders = environment.orders(3)
    send_flood = load(
        environment.port, FLOOD, lambda: environment.request("/v1/events", [orders.event()])
    )
    flood_thread = threading.Thread(target=send_flood, args=(environment.plan.seconds + 1.0,))
    flood_thread.start()
    try:
        return _measure_quiet(environment)
    finally:
        flood_thread.join()

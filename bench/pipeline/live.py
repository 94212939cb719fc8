"""The latency from an append to the changed row, compared with Spark's rate source."""

import random
import statistics
import time

import psycopg

from bench.measurement import Figure, Stopwatch, percentile_ms
from bench.pipeline.baselines import POLL_S, TIMEOUT_S, RateSourceBaseline
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.read_models import ORDERS
from bench.pipeline.seriatim_jobs import live as run_live
from bench.seriatim_log import SeriatimLog
from bench.workload import STREAM_TYPE, new_id, payload
from seriatim import NewEvent

GOAL = 1.4
DATABASE, SCHEMA = "live", "live_read"
PAUSE_S = (0.5, 1.0)  # the baseline emits a row per second


def live(environment: PipelineEnvironment) -> list[Figure]:
    """Append to a small log that a projection follows, then run the baseline, in rounds."""
    with SeriatimLog(environment.server.create_database(DATABASE)) as log:
        log.log.append([_event()])
        floor = RateSourceBaseline(environment.spark, log.url, environment.home)
        try:
            _round(environment, log, floor)  # warm-up: Spark compiles during the first round
            rounds = [_round(environment, log, floor) for _ in range(environment.plan.rounds)]
        finally:
            floor.close()
    ours, floors = (tuple(column) for column in zip(*rounds, strict=True))
    environment.report(f"    append to row p50 {statistics.median(ours):.0f} ms")
    environment.report(f"    rate source to row p50 {statistics.median(floors):.0f} ms")
    return [
        Figure(
            name="live, append to row p50 / rate source p50",
            measured=statistics.median(ours) / statistics.median(floors),
            goal=GOAL,
            at_most=True,
            p50_ms=statistics.median(ours),
            against=f"rate source {statistics.median(floors):.0f} ms",
            rounds=tuple(rate / reference_rate for rate, reference_rate in rounds),
        )
    ]


def _round(
    environment: PipelineEnvironment, log: SeriatimLog, floor: RateSourceBaseline
) -> tuple[float, float]:
    """Return both median latencies in milliseconds; only one stream runs at a time."""
    count = environment.plan.live_events
    with run_live(environment.spark, ORDERS, log.url, SCHEMA):
        ours = _latencies(log, count)
    baseline = floor.latencies(count)
    return percentile_ms(ours, 0.5) or 0.0, percentile_ms(baseline, 0.5) or 0.0


def _latencies(log: SeriatimLog, count: int) -> list[float]:
    chance = random.Random(count)
    seconds: list[float] = []
    with psycopg.connect(log.url, autocommit=True) as observer:
        _wait_for_table(observer)
        for _ in range(count + 1):  # the first one includes the start of the stream
            time.sleep(chance.uniform(*PAUSE_S))
            event = _event()
            assert event.stream is not None
            watch = Stopwatch()
            log.log.append([event])
            _wait_for_row(observer, event.stream[1], watch)
            seconds.append(watch.seconds)
    return seconds[1:]


def _event() -> NewEvent:
    return NewEvent("order.placed", payload(0, None), stream=(STREAM_TYPE, new_id()))


def _wait_for_table(observer: psycopg.Connection) -> None:
    watch = Stopwatch()
    name = f"{SCHEMA}.{ORDERS.name}"
    while observer.execute("select to_regclass(%s)", (name,)).fetchone() == (None,):
        assert watch.seconds < TIMEOUT_S, "the projection does not start"
        time.sleep(POLL_S)


def _wait_for_row(observer: psycopg.Connection, stream_id: str, watch: Stopwatch) -> None:
    statement = f"select 1 from {SCHEMA}.{ORDERS.name} where stream_id = %s"
    while observer.execute(statement, (stream_id,)).fetchone() is None:
        assert watch.seconds < TIMEOUT_S, "an appended event does not reach the read model"
        time.sleep(POLL_S)

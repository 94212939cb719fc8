"""From an append to the row that it changes, against Spark's own floor under the same sink."""

import random
import statistics
import time

import psycopg

from bench.harness import Figure, Stopwatch, percentile_ms
from bench.models import ORDERS
from bench.our_pipeline import live as running
from bench.ours import OurLog
from bench.pipeline_floors import PATIENCE_S, POLL_S, RateFloor
from bench.pipeline_plan import PipelineStage
from bench.workload import STREAM_TYPE, new_id, payload
from seriatim import NewEvent

GOAL = 1.5
DATABASE, SCHEMA = "live", "live_read"
PAUSE_S = (0.5, 1.0)  # the floor has a row a second


def live(stage: PipelineStage) -> list[Figure]:
    """Append to a small log now and then while a projection follows it; let the floor run too."""
    with OurLog(stage.server.create_database(DATABASE)) as log:
        log.log.append([_event()])
        floor = RateFloor(stage.spark, log.url, stage.home)
        try:
            _round(stage, log, floor)  # Spark compiles as it goes: the first one warms it up
            rounds = [_round(stage, log, floor) for _ in range(stage.plan.rounds)]
        finally:
            floor.close()
    ours, floors = (tuple(column) for column in zip(*rounds, strict=True))
    stage.say(f"    append to row p50 {statistics.median(ours):.0f} ms")
    stage.say(f"    rate source to row p50 {statistics.median(floors):.0f} ms")
    return [
        Figure(
            name="live, append to row p50 / rate source p50",
            measured=statistics.median(ours) / statistics.median(floors),
            goal=GOAL,
            at_most=True,
            p50_ms=statistics.median(ours),
            against=f"rate source {statistics.median(floors):.0f} ms",
            rounds=tuple(one / other for one, other in rounds),
        )
    ]


def _round(stage: PipelineStage, log: OurLog, floor: RateFloor) -> tuple[float, float]:
    """Return both medians in milliseconds; one stream runs at a time."""
    count = stage.plan.live_events
    with running(stage.spark, ORDERS, log.url, SCHEMA):
        ours = _latencies(log, count)
    floors = floor.latencies(count)
    return percentile_ms(ours, 0.5) or 0.0, percentile_ms(floors, 0.5) or 0.0


def _latencies(log: OurLog, count: int) -> list[float]:
    chance = random.Random(count)
    found: list[float] = []
    with psycopg.connect(log.url, autocommit=True) as eye:
        _await_table(eye)
        for _ in range(count + 1):  # the first one waits for the stream's start
            time.sleep(chance.uniform(*PAUSE_S))
            event = _event()
            assert event.stream is not None
            watch = Stopwatch()
            log.log.append([event])
            _await_row(eye, event.stream[1], watch)
            found.append(watch.seconds)
    return found[1:]


def _event() -> NewEvent:
    return NewEvent("order.placed", payload(0, None), stream=(STREAM_TYPE, new_id()))


def _await_table(eye: psycopg.Connection) -> None:
    watch = Stopwatch()
    name = f"{SCHEMA}.{ORDERS.name}"
    while eye.execute("select to_regclass(%s)", (name,)).fetchone() == (None,):
        assert watch.seconds < PATIENCE_S, "the projection does not start"
        time.sleep(POLL_S)


def _await_row(eye: psycopg.Connection, stream_id: str, watch: Stopwatch) -> None:
    wanted = f"select 1 from {SCHEMA}.{ORDERS.name} where stream_id = %s"
    while eye.execute(wanted, (stream_id,)).fetchone() is None:
        assert watch.seconds < PATIENCE_S, "an appended event does not come through"
        time.sleep(POLL_S)

"""The latency from an append to the changed row in a follower, compared with a bare append."""

import sqlite3
import statistics
import time
from collections.abc import Callable
from contextlib import closing

import psycopg

from bench.local.plan import LocalEnvironment
from bench.measurement import Figure, Stopwatch, percentile_ms
from bench.pipeline.baselines import TIMEOUT_S
from bench.pipeline.read_models import ORDERS
from bench.seriatim_log import SeriatimLog
from bench.workload import STREAM_TYPE, new_id, payload
from seriatim import NewEvent

GOAL = 3.0
PAUSE_S = 0.01
POLL_S = 0.0002

# Returns whether the row of an order is visible to another connection.
IsVisible = Callable[[str], bool]


def live(environment: LocalEnvironment) -> list[Figure]:
    """Append to a small log without a follower and with one, in rounds."""
    url = environment.server.create_database("local_live")
    with (
        SeriatimLog(url) as log,
        closing(psycopg.connect(url, autocommit=True)) as postgres,
    ):
        query = "select 1 from seriatim_read.orders where stream_id = %s"
        on_postgres = _measure(
            environment,
            "Postgres",
            log,
            lambda key: bool(postgres.execute(query, [key]).fetchone()),
        )
    with SeriatimLog(f"sqlite:///{environment.home}/live.db") as log:
        reader: list[sqlite3.Connection] = []

        def is_visible(key: str) -> bool:
            if not reader:  # the file exists when the projection has run
                file = f"file:{environment.home}/live.read.db?mode=ro"
                reader.append(sqlite3.connect(file, uri=True, isolation_level=None))
            found = reader[0].execute("select 1 from orders where stream_id = ?", [key]).fetchone()
            return found is not None

        on_sqlite = _measure(environment, "SQLite", log, is_visible)
        reader[0].close()
    return [on_postgres, on_sqlite]


def _measure(
    environment: LocalEnvironment, backend: str, log: SeriatimLog, is_visible: IsVisible
) -> Figure:
    count = environment.plan.live_events
    _time_appends(log, count)  # warm-up
    rounds: list[tuple[float, float, float]] = []
    for _ in range(environment.plan.rounds):
        bare = _time_appends(log, count)
        with log.log.projections.follow(ORDERS):
            log.log.projections.wait_for(ORDERS.name, log.log.head())
            visible = _time_rows(log, count, is_visible)
        rounds.append(
            (
                percentile_ms(bare, 0.5) or 0.0,
                percentile_ms(visible, 0.5) or 0.0,
                percentile_ms(visible, 0.99) or 0.0,
            )
        )
    bare_ms, visible_ms, p99_ms = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    environment.report(f"    {backend}: append {bare_ms:.2f} ms, to row {visible_ms:.2f} ms")
    return Figure(
        name=f"local live, append to row p50 / bare append p50, {backend}",
        measured=visible_ms / bare_ms,
        goal=GOAL,
        at_most=True,
        p50_ms=visible_ms,
        p99_ms=p99_ms,
        against=f"append {bare_ms:.2f} ms",
        rounds=tuple(to_row / append for append, to_row, _ in rounds),
    )


def _time_appends(log: SeriatimLog, count: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        time.sleep(PAUSE_S)
        event = _make_event()
        watch = Stopwatch()
        log.log.append([event])
        seconds.append(watch.seconds)
    return seconds


def _time_rows(log: SeriatimLog, count: int, is_visible: IsVisible) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        time.sleep(PAUSE_S)
        event = _make_event()
        assert event.stream is not None
        watch = Stopwatch()
        log.log.append([event])
        while not is_visible(event.stream[1]):
            assert watch.seconds < TIMEOUT_S, "an appended event does not reach the read model"
            time.sleep(POLL_S)
        seconds.append(watch.seconds)
    return seconds


def _make_event() -> NewEvent:
    return NewEvent("order.placed", payload(0, None), stream=(STREAM_TYPE, new_id()))

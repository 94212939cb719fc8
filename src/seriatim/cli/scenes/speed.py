"""How fast single durable appends are, alone and with many callers waiting at once."""

from __future__ import annotations

import statistics
import threading
import time

import msgspec

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.core.event import NewEvent

CALLERS = 32
SECONDS = 1.5


class Figure(msgspec.Struct, frozen=True):
    """What one run measured."""

    callers: int
    events: int
    seconds: float
    times_ms: list[float]

    @property
    def rate(self) -> float:
        """Acknowledged appends a second."""
        return self.events / self.seconds


def play(stage: Stage) -> None:
    """Measure both, and show that waiting callers share commits."""
    stage.scene(
        "single durable appends, measured here and now",
        "Proves: callers that wait share a durable commit; no answer comes before the disk has it.",
    )
    before = stage.log.head()
    figures = [measured(stage, callers) for callers in (1, CALLERS)]
    shown = sheet("callers", "appends", "events/s", "p50 ms", "p99 ms", right=_NUMBERS)
    for one in figures:
        cuts = statistics.quantiles(one.times_ms, n=100)
        shown.add_row(
            str(one.callers),
            f"{one.events:,}",
            f"{one.rate:,.0f}",
            f"{cuts[49]:.2f}",
            f"{cuts[98]:.2f}",
        )
    stage.show(shown)
    stored = stage.log.head() - before
    total = sum(one.events for one in figures)
    stage.check(f"{total:,} answers, {stored:,} events in the log", stored == total)


_NUMBERS = ("callers", "appends", "events/s", "p50 ms", "p99 ms")


def measured(stage: Stage, callers: int) -> Figure:
    """Append one event after another from so many threads, for a while."""
    times_ms: list[list[float]] = [[] for _ in range(callers)]
    deadline = time.perf_counter() + SECONDS

    def work(caller: int) -> None:
        stream = ("sensor", f"s-{callers}-{caller}")
        mine = times_ms[caller]
        while (started := time.perf_counter()) < deadline:
            reading = {"sensor": caller, "celsius": 21.5, "battery": 87, "note": "x" * 200}
            stage.log.append([NewEvent("sensor.read", reading, stream=stream)])
            mine.append((time.perf_counter() - started) * 1000)

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    every = [each for mine in times_ms for each in mine]
    return Figure(callers, len(every), took, every)

"""Demo step: the throughput of durable single appends, with one and with many callers."""

from __future__ import annotations

import statistics
import threading
import time

import msgspec

from seriatim import NewEvent
from seriatim.examples.demo_report import DemoReport, make_demo_table

CALLERS = 32
SECONDS = 1.5


class ThroughputSample(msgspec.Struct, frozen=True):
    """The result of one measurement."""

    callers: int
    events: int
    seconds: float
    latencies_ms: list[float]

    @property
    def rate(self) -> float:
        """Acknowledged appends per second."""
        return self.events / self.seconds


def run(report: DemoReport) -> None:
    """Measure appends with one and with many callers, which share commits."""
    report.start_step(
        "durable single appends, measured on this machine",
        "Proves: concurrent callers share a durable commit; no receipt precedes the sync to disk.",
    )
    before = report.log.head()
    samples = [measure_appends(report, callers) for callers in (1, CALLERS)]
    table = make_demo_table("callers", "appends", "events/s", "p50 ms", "p99 ms", right=_NUMBERS)
    for sample in samples:
        percentiles = statistics.quantiles(sample.latencies_ms, n=100)
        table.add_row(
            str(sample.callers),
            f"{sample.events:,}",
            f"{sample.rate:,.0f}",
            f"{percentiles[49]:.2f}",
            f"{percentiles[98]:.2f}",
        )
    report.print(table)
    stored = report.log.head() - before
    total = sum(sample.events for sample in samples)
    report.check(f"{total:,} receipts, {stored:,} events in the log", stored == total)


_NUMBERS = ("callers", "appends", "events/s", "p50 ms", "p99 ms")


def measure_appends(report: DemoReport, callers: int) -> ThroughputSample:
    """Append single events from `callers` threads for some seconds."""
    times_ms: list[list[float]] = [[] for _ in range(callers)]
    deadline = time.perf_counter() + SECONDS

    def work(caller: int) -> None:
        stream = ("sensor", f"s-{callers}-{caller}")
        own_times = times_ms[caller]
        while (started := time.perf_counter()) < deadline:
            reading = {"sensor": caller, "celsius": 21.5, "battery": 87, "note": "x" * 200}
            report.log.append([NewEvent("sensor.read", reading, stream=stream)])
            own_times.append((time.perf_counter() - started) * 1000)

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    latencies = [latency for own_times in times_ms for latency in own_times]
    return ThroughputSample(callers, len(latencies), elapsed, latencies)

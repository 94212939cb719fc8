"""The memory growth of a process that reads or exports the log.

Run as a program, it is the measured child:
`python -m bench.append.memory URL OPERATION EVENTS`.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil

import seriatim
from bench.append.plan import AppendEnvironment
from bench.measurement import Figure, Stopwatch
from seriatim.log.export_format import export_log

GROWTH_GOAL_MIB = 16.0
EVENTS_MAX = 400_000
WARM_UP_SHARE = 0.1  # of the events, before growth counts
MIB = 1 << 20

Progress = Callable[[int], None]


def memory(environment: AppendEnvironment) -> list[Figure]:
    """Let a new process read and export a part of the log, and measure its growth."""
    events = min(environment.plan.events, EVENTS_MAX)
    return [
        _figure(environment, f"memory growth while {words} {events:,} events", operation, events)
        for words, operation in (("reading", "read"), ("exporting", "export"))
    ]


def _figure(environment: AppendEnvironment, name: str, operation: str, events: int) -> Figure:
    growths, rates = [], []
    for _ in range(environment.plan.rounds):
        done = subprocess.run(
            [sys.executable, "-m", __name__, environment.log.url, operation, str(events)],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout)
        growths.append(found["growth_mib"])
        rates.append(events / found["seconds"])
    return Figure(
        name=name,
        measured=statistics.median(growths),
        goal=GROWTH_GOAL_MIB,
        unit="MiB",
        at_most=True,
        events_per_s=statistics.median(rates),
        rounds=tuple(growths),
    )


class MemoryWatch:
    """Records the resident size after the warm-up and its maximum after that."""

    def __init__(self, events: int) -> None:
        self._warm_up_events = events * WARM_UP_SHARE
        self._process = psutil.Process()
        self._early = self._peak = 0

    def __call__(self, done: int) -> None:
        """Sample the resident size after `done` events."""
        size = self._process.memory_info().rss
        if done <= self._warm_up_events or not self._early:
            self._early = size
        self._peak = max(self._peak, size)

    @property
    def growth_mib(self) -> float:
        """The growth after the warm-up in MiB."""
        return (self._peak - self._early) / MIB


def read(log: seriatim.Log, events: int, progress: Progress) -> None:
    """Read records one by one."""
    for done, _ in enumerate(_limited(log, events), start=1):
        if done % 1000 == 0:
            progress(done)


def _limited(log: seriatim.Log, events: int) -> Iterator[seriatim.EventRecord]:
    return log.read(limit=events)


def export(log: seriatim.Log, events: int, progress: Progress) -> None:
    """Export and discard the output."""
    export_log(
        log.store,
        len,
        until=events,
        progress=lambda position, _: progress(position),
    )


def main(url: str, operation: str, events: str) -> None:
    """Run one operation and print the growth of this process as JSON."""
    watch = MemoryWatch(int(events))
    with seriatim.open(url) as log:
        clock = Stopwatch()
        {"read": read, "export": export}[operation](log, int(events), watch)
        print(json.dumps({"growth_mib": watch.growth_mib, "seconds": clock.seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

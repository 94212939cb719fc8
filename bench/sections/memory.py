"""Whether the process stays as small while it reads or exports as it was when it began.

Run as a program it is the child that reads: `python -m bench.sections.memory URL ACT EVENTS`.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil

import seriatim
from bench.harness import Figure, Stopwatch
from bench.plan import Stage
from seriatim.log.transfer import export_log

GROWTH_GOAL_MIB = 16.0
EVENTS_MAX = 400_000
BEGINNING = 0.1
MIB = 1 << 20

Progress = Callable[[int], None]


def memory(stage: Stage) -> list[Figure]:
    """Let a fresh process read and export much of the log, and watch how it grows."""
    events = min(stage.plan.events, EVENTS_MAX)
    return [
        _figure(stage, f"memory growth while {words} {events:,} events", act, events)
        for words, act in (("reading", "read"), ("exporting", "export"))
    ]


def _figure(stage: Stage, name: str, act: str, events: int) -> Figure:
    growths, rates = [], []
    for _ in range(stage.plan.rounds):
        done = subprocess.run(
            [sys.executable, "-m", __name__, stage.log.url, act, str(events)],
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


class Watch:
    """The resident size after the beginning, and the largest after that."""

    def __init__(self, events: int) -> None:
        self._beginning = events * BEGINNING
        self._process = psutil.Process()
        self._early = self._peak = 0

    def __call__(self, done: int) -> None:
        """Look once more, so many events on."""
        size = self._process.memory_info().rss
        if done <= self._beginning or not self._early:
            self._early = size
        self._peak = max(self._peak, size)

    @property
    def growth_mib(self) -> float:
        """How much was added after the beginning."""
        return (self._peak - self._early) / MIB


def read(log: seriatim.Log, events: int, progress: Progress) -> None:
    """Read records one by one as a user does."""
    for done, _ in enumerate(_limited(log, events), start=1):
        if done % 1000 == 0:
            progress(done)


def _limited(log: seriatim.Log, events: int) -> Iterator[seriatim.EventRecord]:
    return log.read(limit=events)


def export(log: seriatim.Log, events: int, progress: Progress) -> None:
    """Export to nowhere."""
    export_log(
        log.store,
        len,
        until=events,
        progress=lambda position, _: progress(position),
    )


def main(url: str, act: str, events: str) -> None:
    """Do one act and print how much the process grew."""
    watch = Watch(int(events))
    with seriatim.open(url) as log:
        clock = Stopwatch()
        {"read": read, "export": export}[act](log, int(events), watch)
        print(json.dumps({"growth_mib": watch.growth_mib, "seconds": clock.seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

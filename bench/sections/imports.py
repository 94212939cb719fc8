"""Importing an export, against a bare COPY of the very same rows."""

import itertools
from collections.abc import Callable
from pathlib import Path

import seriatim
from bench.floors import BareCopy
from bench.harness import Contestant, Figure, Sample, Stopwatch, beside, interleave, ratio
from bench.plan import Stage
from bench.workload import EVENTS_PER_STREAM, STREAM_TYPE, new_id, payload
from seriatim import NewEvent
from seriatim.log.importing import import_events
from seriatim.log.transfer import export_log

GOAL = 0.7
SHAPES = {"exported appends of 1,000": 1000, "exported single appends": 1}

_files = itertools.count(1)


def imports(stage: Stage) -> list[Figure]:
    """Import fresh events again and again; after each, COPY what came of it to a bare table."""
    stage.say("  making a bare table with the log's rows and indexes")
    bare = BareCopy(stage.log.url)
    return [
        figure
        for words, size in SHAPES.items()
        for figure in _against_copy(stage, bare, words, size)
    ]


def _against_copy(stage: Stage, bare: BareCopy, words: str, size: int) -> list[Figure]:
    span = [0, 0]  # the positions of the last import

    def ours(_: float) -> Sample:
        path = stage.home / f"import-{next(_files)}.ndjson"
        _write_export(path, stage.plan.import_events, size)
        span[0] = stage.log.log.head()
        with path.open("rb") as lines:
            watch = Stopwatch()
            report = import_events(stage.log.log, lines)
            seconds = watch.seconds
        path.unlink()
        assert report.ok, report
        assert report.appended == stage.plan.import_events, report
        span[1] = stage.log.log.head()
        return Sample(report.appended, seconds)

    floor: Contestant = _ignoring_time(lambda: bare.repeat(span[0], span[1]))
    imported, copied = interleave(
        {f"import, {words}": ours, f"bare COPY, {words}": floor},
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        ratio(f"import, {words} / bare COPY", imported, copied, against="bare COPY", goal=GOAL),
        beside(f"bare COPY, {words}", copied),
    ]


def _ignoring_time(act: Callable[[], Sample]) -> Contestant:
    return lambda _: act()


def _write_export(path: Path, events: int, size: int) -> None:
    """Write a real export of a log in memory that took its events in appends of this size."""
    prefix = new_id()
    with seriatim.open("memory:") as source, path.open("wb") as file:
        for first in range(0, events, size):
            source.append([_event(prefix, index) for index in range(first, first + size)])
        export_log(source.store, file.write)


def _event(prefix: str, index: int) -> NewEvent:
    stream_id = f"{prefix}-{index // EVENTS_PER_STREAM}"
    return NewEvent(
        "order.imported",
        payload(index, None),
        stream=(STREAM_TYPE, stream_id),
        event_id=new_id(),
    )

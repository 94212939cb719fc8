"""The import of an export, compared with a bare COPY of the same rows."""

import itertools
from collections.abc import Callable
from pathlib import Path

import seriatim
from bench.append.plan import AppendEnvironment
from bench.baselines import CopyBaseline
from bench.measurement import Figure, Sample, Stopwatch, Subject, interleave, ratio, reference
from bench.workload import EVENTS_PER_STREAM, STREAM_TYPE, new_id, payload
from seriatim import NewEvent
from seriatim.log.export_format import export_log
from seriatim.log.importer import import_events

# The events of each append, the goal and the aim.
SHAPES = {
    "exported appends of 1,000": (1000, 0.6, 0.8),
    "exported single appends": (1, 0.4, 0.6),
}

_files = itertools.count(1)


def imports(environment: AppendEnvironment) -> list[Figure]:
    """Import new events repeatedly, and copy the resulting rows to a bare table each time."""
    environment.report("  creating a bare table with the log's rows and indexes")
    bare = CopyBaseline(environment.log.url)
    return [figure for words in SHAPES for figure in _compare_with_copy(environment, bare, words)]


def _compare_with_copy(
    environment: AppendEnvironment, bare: CopyBaseline, words: str
) -> list[Figure]:
    size, goal, aim = SHAPES[words]
    span = [0, 0]  # the first and last position of the last import

    def ours(_: float) -> Sample:
        path = environment.home / f"import-{next(_files)}.ndjson"
        _write_export(path, environment.plan.import_events, size)
        span[0] = environment.log.log.head()
        with path.open("rb") as lines:
            watch = Stopwatch()
            report = import_events(environment.log.log, lines)
            seconds = watch.seconds
        path.unlink()
        assert report.ok, report
        assert report.appended == environment.plan.import_events, report
        span[1] = environment.log.log.head()
        return Sample(report.appended, seconds)

    floor: Subject = _ignoring_time(lambda: bare.repeat(span[0], span[1]))
    imported, copied = interleave(
        {f"import, {words}": ours, f"bare COPY, {words}": floor},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [
        ratio(
            *(f"import, {words} / bare COPY", imported, copied),
            against="bare COPY",
            goal=goal,
            aim=aim,
        ),
        reference(f"bare COPY, {words}", copied),
    ]


def _ignoring_time(operation: Callable[[], Sample]) -> Subject:
    return lambda _: operation()


def _write_export(path: Path, events: int, size: int) -> None:
    """Write the export of a log in memory whose appends have this size."""
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

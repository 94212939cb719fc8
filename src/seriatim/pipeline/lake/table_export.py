"""Export of a log to a lake table: Spark tasks write files, the driver commits range by range.

The commit that adds events also sets the exported position. So a range is in the table exactly
once, whenever a process is killed. Files without a commit are orphans, which the table's own
maintenance removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import pairwise
from typing import IO, Protocol

import msgspec
from pyspark.sql import SparkSession

from seriatim.config import Settings
from seriatim.core.errors import InvalidArgument, LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.factory import open_store
from seriatim.pipeline.archive.segment_file import HashingSink, SegmentWriter
from seriatim.pipeline.archive.segment_tasks import PositionRange, RangeSummary, run_tasks
from seriatim.pipeline.scan.scanner import ALL_EVENTS, scan

FILE_EVENTS = 250_000

Progress = Callable[[int, int], None]


class ExportedFile(msgspec.Struct, frozen=True):
    """A file with the events of a range of positions, before its commit."""

    name: str
    first: int
    last: int
    bytes: int


class ExportState(msgspec.Struct, frozen=True):
    """The progress of a table.

    Attributes:
        position: The last exported position.
        epoch: The epoch of the log at the last export.
        last_event_id: The id of the table's event at `position`.
    """

    position: int
    epoch: int = 0
    last_event_id: str | None = None


class LakeTable(Protocol):
    """A lake table that events can be exported to."""

    def read_state(self, identity: LogIdentity) -> ExportState:
        """Return the progress of the table; create the table if it does not exist.

        Raises:
            LogIdentityChanged: The table belongs to another log.
        """
        ...

    def make_file_opener(
        self,
    ) -> Callable[[PositionRange], tuple[str, AbstractContextManager[IO[bytes]]]]:
        """Return a function for tasks that opens a new file: its name, and a context manager."""
        ...

    def commit(self, files: Sequence[ExportedFile], identity: LogIdentity) -> bool:
        """Add files and set the position atomically; return False if another exporter was first."""
        ...


class ExportReport(msgspec.Struct, kw_only=True):
    """The result of an export.

    Attributes:
        position: The last exported position.
        events: The number of events that this run added.
        commits: The number of commits that this run made.
    """

    position: int
    events: int = 0
    commits: int = 0


def export(
    spark: SparkSession,
    url: str,
    table: LakeTable,
    *,
    until: int | None,
    file_events: int,
    accept_epoch: bool,
    progress: Progress | None,
) -> ExportReport:
    """Add the log's events after the table's last position.

    Args:
        spark: A session.
        url: The URL of the log.
        table: The target.
        until: The last position to export; None means the head.
        file_events: The number of events in a file.
        accept_epoch: Continue although the log has another epoch than at the last export.
        progress: Called after each commit with the exported position and the target.

    Raises:
        InvalidArgument: `file_events` is below 1.
        LogIdentityChanged: The table is not the past of this log.
    """
    if file_events < 1:
        msg = "file_events must be at least 1"
        raise InvalidArgument(msg, details={"argument": "file_events"})
    with closing(open_store(url, Settings(), create=False)) as store:
        identity = store.identity()
        head = store.head()
        state = table.read_state(identity)
        event_id = store.event_id_at(state.position) if state.position else None
    _check_log(state, identity, head, event_id, accept_epoch=accept_epoch)
    target = head if until is None else min(head, until)
    report = ExportReport(position=state.position)
    width = max(1, spark.sparkContext.defaultParallelism)
    write = partial(write_file, url, table.make_file_opener())
    while report.position < target:
        spans = _split_range(report.position, target, file_events)[:width]
        # One commit per round of parallel tasks: fewer files wait uncommitted if this is killed.
        files = list(run_tasks(spark, write, spans))
        if commit(table, files, identity):
            report.position = files[-1].last
            report.events += files[-1].last - files[0].first + 1
            report.commits += 1
        else:
            # Another exporter committed this range first: continue after its position.
            report.position = table.read_state(identity).position
        if progress is not None:
            progress(report.position, target)
    return report


def commit(table: LakeTable, files: Sequence[ExportedFile], identity: LogIdentity) -> bool:
    """Commit the files of a range to a table; return False if another exporter was first."""
    return table.commit(files, identity)


def _split_range(after: int, until: int, size: int) -> list[PositionRange]:
    bounds = [*range(after, until, size), until]
    return [PositionRange(low + 1, high) for low, high in pairwise(bounds)]


def _check_log(
    state: ExportState,
    identity: LogIdentity,
    head: int,
    event_id: str | None,
    *,
    accept_epoch: bool,
) -> None:
    """Raise if the log has lost or changed exported events, or was restored (F8)."""
    problem = None
    if head < state.position:
        problem = f"ends at {head}, the table at {state.position}"
    elif event_id != state.last_event_id:
        problem = f"has another event at position {state.position} than the table"
    elif state.position and state.epoch != identity.epoch and not accept_epoch:
        problem = (
            f"is in epoch {identity.epoch}, the table of epoch {state.epoch}: check that the table "
            "is still the past of the log, then export with --accept-epoch (accept_epoch=True)"
        )
    if problem is not None:
        msg = f"the log {problem}"
        raise LogIdentityChanged(msg, details={"position": state.position, "head": head})


def write_file(
    url: str,
    open_file: Callable[[PositionRange], tuple[str, AbstractContextManager[IO[bytes]]]],
    span: PositionRange,
) -> ExportedFile:
    """Write the events of a range to a new file; this runs in a task.

    Args:
        url: The URL of the log.
        open_file: Returns the name of a new file, and a context manager that opens it.
        span: The range of positions.

    Raises:
        BackendFailure: The log lacks or repeats a position of the range.
    """
    summary = RangeSummary(span.first)
    name, opened = open_file(span)
    with opened as sink:
        hashed = HashingSink(sink)
        writer = SegmentWriter(hashed, {})
        for batch in scan(url, ALL_EVENTS, span.first - 1, span.last):
            summary.add(batch)
            writer.write(batch)
        writer.close()
    return ExportedFile(name, span.first, span.last, hashed.bytes)

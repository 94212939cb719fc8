"""The export of a log to a table: files written by Spark's tasks, committed one range at a time.

The last exported position is part of the commit that adds its events, so a range is in the table
once, whatever was killed when; files that no commit speaks of are the table's garbage to clean.
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
from seriatim.opening import open_store
from seriatim.pipeline.archive.files import HashingSink, SegmentWriter
from seriatim.pipeline.archive.tasks import Contents, Span, on_spark
from seriatim.pipeline.scan import EVERYTHING, scan

FILE_EVENTS = 250_000

Progress = Callable[[int, int], None]


class Written(msgspec.Struct, frozen=True):
    """A file with the events of a range, not yet part of the table."""

    name: str
    first: int
    last: int
    bytes: int


class Exported(msgspec.Struct, frozen=True):
    """How far a table has come: in which log, and the id of the last event that it holds."""

    position: int
    epoch: int = 0
    tip: str | None = None


class Table(Protocol):
    """A table that takes events."""

    def exported(self, identity: LogIdentity) -> Exported:
        """Look how far the table is; refuse one of another log."""
        ...

    def writer(self) -> Callable[[Span], tuple[str, AbstractContextManager[IO[bytes]]]]:
        """Return what makes a file in a task: its name, and the file to write."""
        ...

    def commit(self, files: Sequence[Written], identity: LogIdentity) -> bool:
        """Add files and move the position, at once; False when another exporter was first."""
        ...


class ExportReport(msgspec.Struct, kw_only=True):
    """What an export did: how far the table is now, and what this run added."""

    position: int
    events: int = 0
    commits: int = 0


def export(  # noqa: PLR0913 - what, where to, how much
    spark: SparkSession,
    url: str,
    table: Table,
    *,
    until: int | None,
    file_events: int,
    accept_epoch: bool,
    progress: Progress | None,
) -> ExportReport:
    """Add the log's events behind the table's last position, up to the head or `until`."""
    if file_events < 1:
        msg = "file_events must be at least 1"
        raise InvalidArgument(msg, details={"argument": "file_events"})
    with closing(open_store(url, Settings(), create=False)) as store:
        identity = store.identity()
        head = store.head()
        done = table.exported(identity)
        tip = store.event_id_at(done.position) if done.position else None
    _check(done, identity, head, tip, accept_epoch=accept_epoch)
    target = head if until is None else min(head, until)
    report = ExportReport(position=done.position)
    width = max(1, spark.sparkContext.defaultParallelism)
    write = partial(write_file, url, table.writer())
    while report.position < target:
        spans = _spans(report.position, target, file_events)[:width]
        files = list(on_spark(spark, write, spans))
        if commit(table, files, identity):
            report.position = files[-1].last
            report.events += files[-1].last - files[0].first + 1
            report.commits += 1
        else:
            report.position = table.exported(identity).position
        if progress is not None:
            progress(report.position, target)
    return report


def commit(table: Table, files: Sequence[Written], identity: LogIdentity) -> bool:
    """Make a range part of the table."""
    return table.commit(files, identity)


def _spans(after: int, until: int, size: int) -> list[Span]:
    bounds = [*range(after, until, size), until]
    return [Span(low + 1, high) for low, high in pairwise(bounds)]


def _check(
    done: Exported, identity: LogIdentity, head: int, tip: str | None, *, accept_epoch: bool
) -> None:
    """Refuse a log that has lost or changed what was exported (F8)."""
    problem = None
    if head < done.position:
        problem = f"ends at {head}, the table at {done.position}"
    elif tip != done.tip:
        problem = f"has another event at position {done.position} than the table"
    elif done.position and done.epoch != identity.epoch and not accept_epoch:
        problem = (
            f"is in epoch {identity.epoch}, the table of epoch {done.epoch}: check that the table "
            "still is its past (seriatim archive verify does so for an archive), then accept it"
        )
    if problem is not None:
        msg = f"the log {problem}"
        raise LogIdentityChanged(msg, details={"position": done.position, "head": head})


def write_file(
    url: str,
    make: Callable[[Span], tuple[str, AbstractContextManager[IO[bytes]]]],
    span: Span,
) -> Written:
    """Write the events of a range to a new file, as a task does."""
    contents = Contents(span.first)
    name, opened = make(span)
    with opened as sink:
        hashed = HashingSink(sink)
        writer = SegmentWriter(hashed, {})
        for batch in scan(url, EVERYTHING, span.first - 1, span.last):
            contents.add(batch)
            writer.write(batch)
        writer.close()
    return Written(name, span.first, span.last, hashed.bytes)

"""Reads that cross from the archive to the log: what is sealed comes from there, the rest live."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.patterns import Names
from seriatim.pipeline.archive.catalog import Archive, read_segment
from seriatim.pipeline.archive.seals import Segment
from seriatim.pipeline.planning import Range, cut
from seriatim.pipeline.wanted import NAMED, Scan, Window

_WINDOWS = {"occurred": "occurred_at", "recorded": "recorded_at"}


class Sealed(Range):
    """A part of a range that lies in one segment of an archive."""

    def __init__(self, after: int, until: int, segment: Segment) -> None:
        super().__init__(after, until)
        self.segment = segment


def plan(archive: Archive | None, after: int, until: int, wanted: int | None) -> list[Range]:
    """Cut a range into parts, each of which lies in one segment or in the log."""
    if archive is None or after >= archive.end:
        return cut(after, until, wanted)
    parts: list[Range] = []
    for segment in archive.segments:
        low, high = max(after, segment.first - 1), min(until, segment.last)
        share = wanted and max(1, wanted * (high - low) // max(1, until - after))
        parts += [Sealed(one.after, one.until, segment) for one in cut(low, high, share)]
    live = max(after, archive.end)
    share = wanted and max(1, wanted - len(parts))
    return parts + cut(live, until, share)


def read_sealed(at: str, wanted: Scan, part: Sealed) -> Iterator[pa.RecordBatch]:
    """Read what is wanted of a part of a segment."""
    columns = list(dict.fromkeys((*wanted.columns, *_asked(wanted))))
    for batch in read_segment(at, part.segment, columns, part.after, part.until):
        found = batch.filter(matching(batch, wanted)) if wanted.filtered else batch
        if found.num_rows:
            yield found.select(list(wanted.columns))


def _asked(wanted: Scan) -> Iterator[str]:
    """Name the columns that decide whether an event is wanted."""
    for part, column in NAMED.items():
        if getattr(wanted, part) is not None:
            yield column
    for part, column in _WINDOWS.items():
        if getattr(wanted, part) != Window():
            yield column


def matching(batch: pa.RecordBatch, wanted: Scan) -> pa.Array:
    """Say for each event whether it is wanted; unknown counts as no."""
    answers = pa.repeat(pa.scalar(True), batch.num_rows)
    for part, column in NAMED.items():
        names: Names | None = getattr(wanted, part)
        if names is not None:
            answers = pc.and_(answers, _named(batch.column(column), names))
    for part, column in _WINDOWS.items():
        window: Window = getattr(wanted, part)
        moments = batch.column(column).view(pa.int64()) if window != Window() else None
        if window.after is not None:
            answers = pc.and_(answers, pc.greater(moments, window.after))
        if window.until is not None:
            answers = pc.and_(answers, pc.less_equal(moments, window.until))
    return answers


def _named(values: pa.Array, names: Names) -> pa.Array:
    found = pc.is_in(values, pa.array(names.values, pa.string()))
    for prefix in names.prefixes:
        found = pc.or_(found, pc.starts_with(values, prefix).fill_null(False))
    return found

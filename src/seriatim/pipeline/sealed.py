"""Reads that combine archive and log: sealed positions come from the archive, later ones live."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.patterns import Names
from seriatim.pipeline.archive.catalog import Archive, read_segment
from seriatim.pipeline.archive.seals import Segment
from seriatim.pipeline.planning import Range, cut
from seriatim.pipeline.wanted import NAMED, Scan, Window

_TIME_COLUMNS = {"occurred": "occurred_at", "recorded": "recorded_at"}


class Sealed(Range):
    """A partition that lies within one segment of an archive."""

    def __init__(self, after: int, until: int, segment: Segment) -> None:
        super().__init__(after, until)
        self.segment = segment


def plan(archive: Archive | None, after: int, until: int, count: int | None) -> list[Range]:
    """Split a range into partitions, each of which lies in one segment or in the log.

    Args:
        archive: The archive that holds the beginning of the log, if any.
        after: The position before the range.
        until: The last position of the range.
        count: The approximate number of partitions; None lets sizes decide.
    """
    if archive is None or after >= archive.end:
        return cut(after, until, count)
    parts: list[Range] = []
    for segment in archive.segments:
        low, high = max(after, segment.first - 1), min(until, segment.last)
        share = count and max(1, count * (high - low) // max(1, until - after))
        parts += [Sealed(part.after, part.until, segment) for part in cut(low, high, share)]
    live = max(after, archive.end)
    rest = count and max(1, count - len(parts))
    return parts + cut(live, until, rest)


def read_sealed(at: str, spec: Scan, part: Sealed) -> Iterator[pa.RecordBatch]:
    """Yield the matching events of a partition from its archive segment.

    Args:
        at: The location of the archive.
        spec: Filters and columns.
        part: The partition.
    """
    columns = list(dict.fromkeys((*spec.columns, *_find_filter_columns(spec))))
    for batch in read_segment(at, part.segment, columns, part.after, part.until):
        matches = batch.filter(matching(batch, spec)) if spec.filtered else batch
        if matches.num_rows:
            yield matches.select(list(spec.columns))


def _find_filter_columns(spec: Scan) -> Iterator[str]:
    """Yield the columns that the filters of a scan need."""
    for field, column in NAMED.items():
        if getattr(spec, field) is not None:
            yield column
    for field, column in _TIME_COLUMNS.items():
        if getattr(spec, field) != Window():
            yield column


def matching(batch: pa.RecordBatch, spec: Scan) -> pa.Array:
    """Return a boolean array that is true for events that match; a null value never matches."""
    mask = pa.repeat(pa.scalar(True), batch.num_rows)
    for field, column in NAMED.items():
        names: Names | None = getattr(spec, field)
        if names is not None:
            mask = pc.and_(mask, _match_names(batch.column(column), names))
    for field, column in _TIME_COLUMNS.items():
        interval: Window = getattr(spec, field)
        times = batch.column(column).view(pa.int64()) if interval != Window() else None
        if interval.after is not None:
            mask = pc.and_(mask, pc.greater(times, interval.after))
        if interval.until is not None:
            mask = pc.and_(mask, pc.less_equal(times, interval.until))
    return mask


def _match_names(values: pa.Array, names: Names) -> pa.Array:
    mask = pc.is_in(values, pa.array(names.values, pa.string()))
    for prefix in names.prefixes:
        mask = pc.or_(mask, pc.starts_with(values, prefix).fill_null(False))
    return mask

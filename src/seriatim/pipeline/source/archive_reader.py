"""Reads that combine archive and log: sealed positions come from the archive, later ones live."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.patterns import NameFilter
from seriatim.pipeline.archive.catalog import Archive, read_segment
from seriatim.pipeline.archive.manifest import Segment
from seriatim.pipeline.scan.scan_spec import NAME_COLUMNS, Interval, ScanSpec
from seriatim.pipeline.source.partitions import RangePartition, split_range

_TIME_COLUMNS = {"occurred": "occurred_at", "recorded": "recorded_at"}


class SegmentPartition(RangePartition):
    """A partition that lies within one segment of an archive."""

    def __init__(self, after: int, until: int, segment: Segment) -> None:
        super().__init__(after, until)
        self.segment = segment


def plan_partitions(
    archive: Archive | None, after: int, until: int, count: int | None
) -> list[RangePartition]:
    """Split a range into partitions, each of which lies in one segment or in the log.

    Args:
        archive: The archive that holds the beginning of the log, if any.
        after: The position before the range.
        until: The last position of the range.
        count: The approximate number of partitions; None lets sizes decide.
    """
    if archive is None or after >= archive.end:
        return split_range(after, until, count)
    parts: list[RangePartition] = []
    for segment in archive.segments:
        low, high = max(after, segment.first - 1), min(until, segment.last)
        share = count and max(1, count * (high - low) // max(1, until - after))
        parts += [
            SegmentPartition(part.after, part.until, segment)
            for part in split_range(low, high, share)
        ]
    live = max(after, archive.end)
    rest = count and max(1, count - len(parts))
    return parts + split_range(live, until, rest)


def read_segment_partition(
    at: str, spec: ScanSpec, part: SegmentPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the matching events of a partition from its archive segment.

    Args:
        at: The location of the archive.
        spec: Filters and columns.
        part: The partition.
    """
    columns = list(dict.fromkeys((*spec.columns, *_find_filter_columns(spec))))
    for batch in read_segment(at, part.segment, columns, part.after, part.until):
        matches = batch.filter(match_events(batch, spec)) if spec.is_filtered else batch
        if matches.num_rows:
            yield matches.select(list(spec.columns))


def _find_filter_columns(spec: ScanSpec) -> Iterator[str]:
    """Yield the columns that the filters of a scan need."""
    for field, column in NAME_COLUMNS.items():
        if getattr(spec, field) is not None:
            yield column
    for field, column in _TIME_COLUMNS.items():
        if getattr(spec, field) != Interval():
            yield column


def match_events(batch: pa.RecordBatch, spec: ScanSpec) -> pa.Array:
    """Return a boolean array that is true for events that match; a null value never matches."""
    mask = pa.repeat(pa.scalar(True), batch.num_rows)
    for field, column in NAME_COLUMNS.items():
        names: NameFilter | None = getattr(spec, field)
        if names is not None:
            mask = pc.and_(mask, _match_names(batch.column(column), names))
    for field, column in _TIME_COLUMNS.items():
        interval: Interval = getattr(spec, field)
        times = batch.column(column).view(pa.int64()) if interval != Interval() else None
        if interval.after is not None:
            mask = pc.and_(mask, pc.greater(times, interval.after))
        if interval.until is not None:
            mask = pc.and_(mask, pc.less_equal(times, interval.until))
    return mask


def _match_names(values: pa.Array, names: NameFilter) -> pa.Array:
    mask = pc.is_in(values, pa.array(names.values, pa.string()))
    for prefix in names.prefixes:
        mask = pc.or_(mask, pc.starts_with(values, prefix).fill_null(False))
    return mask

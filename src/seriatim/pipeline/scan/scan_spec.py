"""Specification of a scan: which events are read, and which of their columns."""

from __future__ import annotations

import msgspec

from seriatim.core.patterns import NameFilter
from seriatim.pipeline.columns import EVENT_COLUMNS

MAX_POSITION = (1 << 63) - 1  # larger than any position of a log


class Interval(msgspec.Struct, frozen=True):
    """A half-open interval of integers, (after, until]; None means unbounded.

    Times are microseconds since the Unix epoch.
    """

    after: int | None = None
    until: int | None = None

    def intersect(self, other: Interval) -> Interval:
        """Return the intersection with another interval."""
        afters = [bound for bound in (self.after, other.after) if bound is not None]
        untils = [bound for bound in (self.until, other.until) if bound is not None]
        return Interval(max(afters, default=None), min(untils, default=None))


class KeyPartition(msgspec.Struct, frozen=True):
    """One of several hash partitions of all events: events with equal columns stay together.

    Attributes:
        columns: The columns that are hashed.
        nth: The index of this partition, from 0.
        of: The number of partitions.
    """

    columns: tuple[str, ...]
    index: int
    count: int


class ScanSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and columns of a scan; a filter that is None matches every event."""

    columns: tuple[str, ...] = EVENT_COLUMNS
    tenants: NameFilter | None = None
    types: NameFilter | None = None
    stream_types: NameFilter | None = None
    stream_ids: NameFilter | None = None
    event_ids: NameFilter | None = None
    correlation_ids: NameFilter | None = None
    causation_ids: NameFilter | None = None
    occurred: Interval = Interval()
    recorded: Interval = Interval()
    key_partition: KeyPartition | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether the scan may skip events of its range."""
        return self.with_all_columns != ALL_EVENTS

    @property
    def with_all_columns(self) -> ScanSpec:
        """The same filters with every column."""
        return msgspec.structs.replace(self, columns=EVENT_COLUMNS)


ALL_EVENTS = ScanSpec()
# The fields of a scan that filter by name, and the event column that each one filters.
NAME_COLUMNS = {
    "tenants": "tenant_id",
    "types": "event_type",
    "stream_types": "stream_type",
    "stream_ids": "stream_id",
    "event_ids": "event_id",
    "correlation_ids": "correlation_id",
    "causation_ids": "causation_id",
}

"""Specification of a scan: which events are read, and which of their columns."""

from __future__ import annotations

import msgspec

from seriatim.core.patterns import Names
from seriatim.pipeline.columns import NAMES

END = (1 << 63) - 1  # larger than any position of a log


class Window(msgspec.Struct, frozen=True):
    """A half-open interval of integers, (after, until]; None means unbounded.

    Times are microseconds since the Unix epoch.
    """

    after: int | None = None
    until: int | None = None

    def both(self, other: Window) -> Window:
        """Return the intersection with another interval."""
        afters = [bound for bound in (self.after, other.after) if bound is not None]
        untils = [bound for bound in (self.until, other.until) if bound is not None]
        return Window(max(afters, default=None), min(untils, default=None))


class Share(msgspec.Struct, frozen=True):
    """One of several hash partitions of all events: events with equal columns stay together.

    Attributes:
        columns: The columns that are hashed.
        nth: The index of this partition, from 0.
        of: The number of partitions.
    """

    columns: tuple[str, ...]
    nth: int
    of: int


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and columns of a scan; a filter that is None matches every event."""

    columns: tuple[str, ...] = NAMES
    tenants: Names | None = None
    types: Names | None = None
    stream_types: Names | None = None
    stream_ids: Names | None = None
    event_ids: Names | None = None
    correlation_ids: Names | None = None
    causation_ids: Names | None = None
    occurred: Window = Window()
    recorded: Window = Window()
    share: Share | None = None

    @property
    def filtered(self) -> bool:
        """Whether the scan may skip events of its range."""
        return self.whole != EVERYTHING

    @property
    def whole(self) -> Scan:
        """The same filters with every column."""
        return msgspec.structs.replace(self, columns=NAMES)


EVERYTHING = Scan()
# The fields of a scan that filter by name, and the event column that each one filters.
NAMED = {
    "tenants": "tenant_id",
    "types": "event_type",
    "stream_types": "stream_type",
    "stream_ids": "stream_id",
    "event_ids": "event_id",
    "correlation_ids": "correlation_id",
    "causation_ids": "causation_id",
}

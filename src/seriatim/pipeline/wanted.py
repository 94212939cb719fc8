"""Which events a read wants, and which of their columns."""

from __future__ import annotations

import msgspec

from seriatim.core.patterns import Names
from seriatim.pipeline.columns import NAMES

END = (1 << 63) - 1  # a position that no log reaches


class Window(msgspec.Struct, frozen=True):
    """An interval of microseconds: after the first, up to and with the last."""

    after: int | None = None
    until: int | None = None

    def both(self, other: Window) -> Window:
        """Return the time in which both are."""
        afters = [one for one in (self.after, other.after) if one is not None]
        untils = [one for one in (self.until, other.until) if one is not None]
        return Window(max(afters, default=None), min(untils, default=None))


class Share(msgspec.Struct, frozen=True):
    """One of so many parts of all events, in which those with equal columns stay together."""

    columns: tuple[str, ...]
    nth: int
    of: int


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are read, and which of their columns; None asks for nothing in particular."""

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
        """Whether some events of a range may be passed over."""
        return self.whole != EVERYTHING

    @property
    def whole(self) -> Scan:
        """The same events with every column."""
        return msgspec.structs.replace(self, columns=NAMES)


EVERYTHING = Scan()
# The parts of a scan that hold names, and the columns that they speak of.
NAMED = {
    "tenants": "tenant_id",
    "types": "event_type",
    "stream_types": "stream_type",
    "stream_ids": "stream_id",
    "event_ids": "event_id",
    "correlation_ids": "correlation_id",
    "causation_ids": "causation_id",
}

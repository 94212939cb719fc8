"""Which events a read wants, and which of their columns."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from seriatim.pipeline.columns import NAMES

END = (1 << 63) - 1  # a position that no log reaches
_WILD = ".*"


class Names(msgspec.Struct, frozen=True):
    """The names that a column may have: any of the values, or any that begins like this."""

    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Take exact names, and patterns such as `order.*`."""
        given = tuple(names)
        return cls(
            tuple(one for one in given if not one.endswith(_WILD)),
            tuple(one[:-1] for one in given if one.endswith(_WILD)),
        )

    def both(self, other: Names | None) -> Names:
        """Return the names that these and the others allow."""
        if other is None:
            return self
        values = [one for one in self.values if other.allows(one)]
        values += [one for one in other.values if self.allows(one)]
        prefixes = [one for one in self.prefixes if one.startswith(other.prefixes)]
        prefixes += [one for one in other.prefixes if one.startswith(self.prefixes)]
        return Names(tuple(dict.fromkeys(values)), tuple(dict.fromkeys(prefixes)))

    def allows(self, name: str) -> bool:
        """Tell whether a name is one of these."""
        return name in self.values or name.startswith(self.prefixes)


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
}

"""The limits of the log in one immutable value, with their defaults."""

from __future__ import annotations

import msgspec

from seriatim.core.errors import InvalidArgument, LimitExceeded

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Configurable bounds that keep one caller from degrading the service of the others.

    Example:
        small = Settings(limits=Limits(append_events=100, payload_bytes=64 * 1024))
    """

    payload_bytes: int = MIB
    payload_depth: int = 64
    integer_digits: int = 4300  # Python's own limit for converting text to int
    append_events: int = 10_000
    append_bytes: int = 16 * MIB
    tags: int = 64
    tag_bytes: int = 256
    index_terms: int = 1000
    metadata_entries: int = 64
    metadata_bytes: int = 8 * 1024
    conditions: int = 64
    condition_filters: int = 256
    filters: int = 64
    predicates: int = 64
    predicate_values: int = 4096
    page: int = 10_000
    subscriptions: int = 10_000
    queue_events: int = 100_000
    queue_bytes: int = 256 * MIB

    def check(self, name: str, value: int) -> None:
        """Raise `LimitExceeded` if a size exceeds the bound called `name`."""
        bound: int = getattr(self, name)
        if value > bound:
            raise limit_error(name, bound, value)

    def check_page(self, name: str, value: object) -> int:
        """Return a valid page size: a whole number from 1 to `page`.

        Args:
            name: The name of the caller's argument, for the error.
            value: The requested size.

        Raises:
            InvalidArgument: The value is not a whole number in that range.
        """
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= self.page:
            msg = f"{name} must be a whole number from 1 to {self.page}"
            raise InvalidArgument(msg, details={"argument": name, "maximum": self.page})
        return value


def limit_error(name: str, bound: int, value: int) -> LimitExceeded:
    """Build the error for a size that exceeds a bound."""
    msg = f"{name} is {value}, over the limit of {bound}"
    return LimitExceeded(msg, details={"limit": name, "bound": bound, "actual": value})


DEFAULT_LIMITS = Limits()

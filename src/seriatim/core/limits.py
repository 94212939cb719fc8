"""Every bound of the log in one frozen value, with the defaults the contract names."""

from __future__ import annotations

import msgspec

from seriatim.core.errors import InvalidArgument, LimitExceeded

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that keep one caller from hurting the others; all can be configured."""

    payload_bytes: int = MIB
    payload_depth: int = 64
    integer_digits: int = 4300  # Python's own bound for turning text into integers
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
        """Refuse a size over the bound `name`, saying which bound it was."""
        bound: int = getattr(self, name)
        if value > bound:
            raise over(name, bound, value)

    def check_page(self, name: str, value: object) -> int:
        """Return a limit or batch size that lies between 1 and the page bound."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= self.page:
            msg = f"{name} must be a whole number from 1 to {self.page}"
            raise InvalidArgument(msg, details={"argument": name, "maximum": self.page})
        return value


def over(name: str, bound: int, value: int) -> LimitExceeded:
    """Make the error for a size over a bound."""
    msg = f"{name} is {value}, over the bound of {bound}"
    return LimitExceeded(msg, details={"limit": name, "bound": bound, "actual": value})


DEFAULT_LIMITS = Limits()

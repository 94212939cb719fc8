"""Dead letters outside the registry: where they go besides its own table."""

from __future__ import annotations

from typing import Protocol

import msgspec

from seriatim.core.handling import Delivery


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that could not be handled, and everything needed to replay it."""

    handler: str
    delivery: Delivery
    error: str
    attempts: int


class Letters(Protocol):
    """A place for dead letters that does not need the registry's database."""

    def send(self, letters: list[Letter]) -> None:
        """Deliver letters, or raise."""
        ...

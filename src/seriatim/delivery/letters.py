"""Dead letters that are also sent outside the registry's database."""

from __future__ import annotations

from typing import Protocol

import msgspec

from seriatim.core.handling import Delivery


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a handler could not process, with everything needed to replay it."""

    handler: str
    delivery: Delivery
    error: str
    attempts: int


class Letters(Protocol):
    """A destination of dead letters that does not depend on the registry's database."""

    def send(self, letters: list[Letter]) -> None:
        """Deliver dead letters; raise if not all of them were delivered."""
        ...

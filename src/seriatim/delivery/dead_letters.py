"""Dead letters that are also sent outside the registry's database."""

from __future__ import annotations

from typing import Protocol

import msgspec

from seriatim.core.handler import Delivery


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a handler could not process, with everything needed to replay it."""

    handler: str
    delivery: Delivery
    error: str
    attempts: int


class DeadLetterTarget(Protocol):
    """A destination of dead letters that does not depend on the registry's database."""

    def send(self, dead_letters: list[DeadLetter]) -> None:
        """Deliver dead letters; raise if not all of them were delivered."""
        ...

"""The processed-event registry: who may have the effect of an event, and who has had it."""

from __future__ import annotations

import msgspec

from seriatim.core.errors import Conflict
from seriatim.core.event import EventRecord
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.aio import AsyncRegistry
from seriatim.delivery.claiming import Claiming
from seriatim.delivery.holding import Held
from seriatim.delivery.operating import Operating
from seriatim.delivery.outage import OnOutage
from seriatim.delivery.waiting import Waiting


class Registry(Claiming, Waiting, Operating):
    """One row for each handler and event, in a database of yours."""

    @property
    def aio(self) -> AsyncRegistry:
        """The same registry for asyncio."""
        return AsyncRegistry(self)

    def another(self, on_outage: OnOutage | None = None) -> Registry:
        """Return the same registry on a connection of its own, for another thread."""
        settings = msgspec.structs.replace(
            self.settings, on_outage=on_outage or self.settings.on_outage
        )
        return Registry(self.engine.another(), settings)

    def declare(self, handler: Handler, *, replace: bool = False) -> None:
        """Make a handler known, or check that it is known as this one."""
        declaration = handler.declaration
        self._run(
            "declare",
            {"handler": handler.name, "declaration": declaration, "replace": int(replace)},
        )
        [(known, *_)] = self._look("handler", {"handler": handler.name})
        if known != declaration:
            msg = (
                f"handler {handler.name!r:.80} is declared as {known}, not as {declaration}: "
                "take another name, or declare it anew on purpose (replace=True, --redeclare)"
            )
            raise Conflict(msg, details={"handler": handler.name})

    def held_up(self, handler: Handler) -> str | None:
        """Say why a handler does not run, None when it may."""
        found = self._look("handler", {"handler": handler.name})
        if not found or found[0][1] == "ready":
            return None
        _, status, reason = found[0]
        return f"{status}: {reason}" if reason else str(status)

    def claim(self, handler: Handler, event: EventRecord | Delivery) -> Held:
        """Claim one event for the length of a `with` block."""
        delivery = event if isinstance(event, Delivery) else Delivery.of(event)
        return Held(self, handler, delivery)

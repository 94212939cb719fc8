"""The processed-event registry: who may have the effect of an event, and who has had it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from seriatim.core.errors import Conflict, InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.aio import AsyncRegistry
from seriatim.delivery.claiming import Claiming
from seriatim.delivery.holding import Held
from seriatim.delivery.loop import Tally
from seriatim.delivery.operating import Operating
from seriatim.delivery.outage import OnOutage
from seriatim.delivery.reset import Resetting
from seriatim.delivery.settlement import settle
from seriatim.delivery.waiting import Waiting


class Registry(Claiming, Waiting, Operating, Resetting):
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
        return Registry(self.engine.another(), settings, self.origin)

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

    def declare_once(self, handler: Handler) -> None:
        """Declare a handler unless this registry has done so."""
        known = (handler.name, handler.declaration)
        if known not in self._declared:
            self.declare(handler)
            self._declared.add(known)

    def held_up(self, handler: Handler) -> str | None:
        """Say why a handler does not run, None when it may."""
        found = self._look("handler", {"handler": handler.name})
        if not found or found[0][1] == "ready":
            return None
        _, status, reason = found[0]
        return f"{status}: {reason}" if reason else str(status)

    def handle(
        self,
        handler: Handler,
        events: EventRecord | Delivery | Iterable[EventRecord | Delivery],
        *,
        wait_s: float = 0.0,
    ) -> Tally:
        """Handle one event or a batch, and return when the verdict of each is final.

        Each event is done, was done before, is stale, is passed over by the handler's filter, or is
        a dead letter: the caller may move its cursor or offset. Otherwise `EventNotSettled` is
        raised, so that a subscription keeps its cursor and delivers the same batch again; nothing
        that was done is done twice then. `wait_s` is how long to wait here for a backoff, an
        earlier event or another consumer before that. Events that were kept for this handler and
        are due, such as dead letters that an operator retries, are handled first; without events,
        only these.

            log.subscribe("mailer").run(lambda batch: registry.handle(receipts, batch))
        """
        return settle(self, handler, self.deliveries(events), wait_s=wait_s)

    def deliveries(
        self, events: EventRecord | Delivery | Iterable[EventRecord | Delivery]
    ) -> list[Delivery]:
        """Return records and deliveries as deliveries that name their log."""
        given: list[Any] = [events] if isinstance(events, EventRecord | Delivery) else list(events)
        for one in given:
            if not isinstance(one, EventRecord | Delivery):
                msg = f"events are records or deliveries, not {type(one).__name__}"
                raise InvalidArgument(msg, details={"argument": "events"})
        return self.identified(
            one if isinstance(one, Delivery) else Delivery.of(one) for one in given
        )

    def claim(
        self,
        handler: Handler,
        event: EventRecord | Delivery,
        *,
        unsettled: Literal["raise", "return"] = "raise",
    ) -> Held:
        """Claim one event for the length of a `with` block.

        The block is entered with a claim, or with a verdict that is final. For any other verdict
        `EventNotSettled` is raised, because a consumer that moved on would lose the effect;
        `unsettled="return"` enters the block with it instead. `handle` does all of this by itself.
        """
        [delivery] = self.deliveries(event)
        return Held(self, handler, delivery, unsettled=unsettled)

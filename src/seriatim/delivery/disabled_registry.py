"""The disabled registry: every delivery has its effect, and nothing is stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

from seriatim.config.delivery import OnOutage, RegistrySettings
from seriatim.core.event import EventRecord
from seriatim.core.handler import Delivery, Handler
from seriatim.core.tenants import check_tenant
from seriatim.delivery.aio import AsyncRegistry
from seriatim.delivery.claims import Claim
from seriatim.delivery.entries import StatusCount
from seriatim.delivery.handler_loop import Counts, settle
from seriatim.delivery.registry import Registry
from seriatim.delivery.registry_database import OutageRetry

logger = logging.getLogger("seriatim")


def open_disabled_registry(settings: RegistrySettings) -> Registry:
    """Return the registry for `enabled=False`, which claims everything, and log a warning."""
    logger.warning(
        "the processed-event registry is OFF: duplicates, crashes and replays repeat effects, "
        "failed events are not retried, and a restart begins at the handler's start"
    )
    return cast("Registry", _DisabledRegistry(settings))


class _DisabledRegistry:
    """Claims every event; failures are only logged, as there is no table to store them in."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self.origin = None
        self.outage = OutageRetry("fail_fast")
        self._cursors: dict[tuple[str, str], str] = {}

    @property
    def aio(self) -> AsyncRegistry:
        return AsyncRegistry(cast("Registry", self))

    def handle(self, handler: Handler, events: Any, *, wait_s: float = 0.0) -> Counts:
        return settle(cast("Registry", self), handler, self.deliveries(events), wait_s=wait_s)

    def deliveries(self, events: Any) -> list[Delivery]:
        items = [events] if isinstance(events, EventRecord | Delivery) else list(events)
        return [item if isinstance(item, Delivery) else Delivery.of(item) for item in items]

    def claim_all(
        self, _handler: Handler, deliveries: Sequence[Delivery], _passing: Any = ()
    ) -> list[Claim]:
        for tenant_id in {delivery.tenant_id for delivery in deliveries}:
            check_tenant(tenant_id)
        return [Claim(delivery=delivery, verdict="claimed", attempt=1) for delivery in deliveries]

    def mark_failed(
        self, handler: Handler, claim: Claim, error: str, *, pause_s: float | None = None
    ) -> None:
        del pause_s  # nothing is retried
        logger.error(
            "handler %s failed on event %s, which is not retried because the registry is off: %s",
            handler.name,
            claim.delivery.event_id,
            error,
        )

    def reject_invalid(self, handler: Handler, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            logger.error(
                "message %s is not an event, handler %s skips it: %s",
                delivery.event_id,
                handler.name,
                delivery.flaw,
            )

    def cursor(self, handler: Handler, source: str) -> str | None:
        return self._cursors.get((handler.name, source))

    def move_cursor(self, handler: Handler, source: str, cursor: str) -> None:
        self._cursors[handler.name, source] = cursor

    def clone(self, on_outage: OnOutage | None = None) -> _DisabledRegistry:
        del on_outage  # no database, no outage
        return self

    def due(self, *_: Any) -> list[Delivery]:
        return []

    def counts(self, **_: Any) -> list[StatusCount]:
        return []

    def _do_nothing(self, *_: object, **__: object) -> None:
        """Store nothing, for every operation that only changes the registry."""

    declare = declare_once = has_deferred = inactive_reason = heartbeat = mark_done = release = (
        _do_nothing
    )
    defer = mark_stale = pass_over = pass_ranges = close = _do_nothing

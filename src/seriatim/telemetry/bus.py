"""In-process telemetry events: what happened, how long it took, and to whom.

Names: `store.append.stop`, `store.append.exception`, `store.idempotency.reuse`,
`store.read_batch.stop`, `subscription.exception`. Metadata never holds payloads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Literal

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.request import Prepared, Request

logger = logging.getLogger("seriatim")

Name = Literal[
    "store.append.stop",
    "store.append.exception",
    "store.idempotency.reuse",
    "store.read_batch.stop",
    "subscription.exception",
]


class TelemetryEvent(msgspec.Struct, frozen=True):
    """One thing that happened: numbers in `measurements`, names in `metadata`."""

    name: Name
    measurements: Mapping[str, float]
    metadata: Mapping[str, Any]


Listener = Callable[[TelemetryEvent], None]


class Telemetry:
    """The listeners of one log; without any, telemetry costs nothing."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    @property
    def active(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener for every event, in the thread where it happens; returns its undoing."""
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return unsubscribe

    def emit(
        self, name: Name, measurements: Mapping[str, float], metadata: Mapping[str, Any]
    ) -> None:
        """Tell every listener; one that fails is logged and harms nobody."""
        event = TelemetryEvent(name, measurements, metadata)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a telemetry listener failed on %s", name)


def append_metadata(request: Request | None, tenant_id: str, **more: Any) -> dict[str, Any]:
    """Describe an append by the first of its events."""
    known: dict[str, Any] = {"tenant_id": tenant_id, **more}
    return known if request is None else known | _described(request.events[0])


def reuse_metadata(record: EventRecord) -> dict[str, Any]:
    """Describe a record that a retry got back."""
    return {"tenant_id": record.tenant_id, **_described(record)}


_DESCRIBING = ("stream_type", "stream_id", "event_type", "producer_id", "request_id")
_describing = attrgetter(*_DESCRIBING)


def _described(event: Prepared | EventRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in zip(_DESCRIBING, _describing(event), strict=True)
        if value is not None
    }

"""In-process telemetry events of a log.

Names: `store.append.stop`, `store.append.exception`, `store.idempotency.reuse`,
`store.read_batch.stop`, `subscription.exception`, `subscription.park`, `subscription.skip`.
Metadata never holds payloads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Literal

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.request import AppendRequest, PreparedEvent

logger = logging.getLogger("seriatim")

EventName = Literal[
    "store.append.stop",
    "store.append.exception",
    "store.idempotency.reuse",
    "store.read_batch.stop",
    "subscription.exception",
    "subscription.park",
    "subscription.skip",
]


class TelemetryEvent(msgspec.Struct, frozen=True):
    """A telemetry event: numbers in `measurements`, names and ids in `metadata`."""

    name: EventName
    measurements: Mapping[str, float]
    metadata: Mapping[str, Any]


Listener = Callable[[TelemetryEvent], None]


class Telemetry:
    """The listeners of one log. Without listeners, no events are created."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    @property
    def active(self) -> bool:
        """Whether there are listeners."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener for every event, in the thread that causes it.

        Returns:
            A function that removes the listener.

        Example:
            unsubscribe = log.telemetry.subscribe(print)
        """
        # A new tuple: `emit` may be iterating over the old one in another thread.
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def emit(
        self, name: EventName, measurements: Mapping[str, float], metadata: Mapping[str, Any]
    ) -> None:
        """Call every listener; an exception in a listener is logged, not raised."""
        event = TelemetryEvent(name, measurements, metadata)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a telemetry listener failed on the event %s", name)


def make_append_metadata(
    request: AppendRequest | None, tenant_id: str, **more: bool | str
) -> dict[str, Any]:
    """Return the metadata of an append: its tenant, and fields of its first event."""
    metadata: dict[str, Any] = {"tenant_id": tenant_id, **more}
    return metadata if request is None else metadata | _describe(request.events[0])


def make_reuse_metadata(record: EventRecord) -> dict[str, Any]:
    """Return the metadata of a record that was returned by a replay."""
    return {"tenant_id": record.tenant_id, **_describe(record)}


_METADATA_FIELDS = ("stream_type", "stream_id", "event_type", "producer_id", "request_id")
_get_metadata = attrgetter(*_METADATA_FIELDS)


def _describe(event: PreparedEvent | EventRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in zip(_METADATA_FIELDS, _get_metadata(event), strict=True)
        if value is not None
    }

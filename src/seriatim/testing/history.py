"""Histories of tests: events of any form, stored by a log as it would store them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import ENVELOPE_TEXTS, EventRecord, NewEvent, StreamRef
from seriatim.factory import Log
from seriatim.log.catalogue import Catalogue

HistoryEvent = Any
"""A `NewEvent`, a mapping of its fields, an event type, a record, or an instance of a class."""


def to_event(
    value: HistoryEvent, catalogue: Catalogue | None = None, stream: StreamRef | None = None
) -> NewEvent:
    """Return an event of any form as a `NewEvent`.

    Args:
        value: The event.
        catalogue: The catalogue that binds the classes of instances.
        stream: The stream of events that name none.

    Raises:
        InvalidArgument: The value is no event, or its class is not bound.
    """
    if isinstance(value, NewEvent):
        event = value
    elif isinstance(value, EventRecord):
        event = _copy_record(value)
    elif isinstance(value, Mapping):
        event = NewEvent.from_mapping(value)
    elif isinstance(value, str):
        event = NewEvent(value)
    elif catalogue is not None:
        event = catalogue.new_event(value)
    else:
        msg = (
            f"{value!r:.80} is no event: use a NewEvent, a mapping of its fields, an event type, "
            "or name the catalogue of its class with catalogue=…"
        )
        raise InvalidArgument(msg, details={"argument": "events"})
    return event if event.stream else msgspec.structs.replace(event, stream=stream)


def _copy_record(record: EventRecord) -> NewEvent:
    """Return a record as a new event, without what the log assigns."""
    texts = {name: getattr(record, name) for name in ENVELOPE_TEXTS}
    return NewEvent(
        record.event_type,
        record.payload,
        stream=record.stream,
        event_id=record.event_id,
        event_version=record.event_version,
        occurred_at=record.occurred_at,
        metadata=record.metadata,
        tags=record.tags,
        **texts,
    )


def append_history(
    log: Log,
    events: Iterable[HistoryEvent],
    catalogue: Catalogue | None = None,
    stream: StreamRef | None = None,
) -> list[EventRecord]:
    """Append events one by one, in their order, and return their records."""
    records: list[EventRecord] = []
    for value in events:
        records += log.append([to_event(value, catalogue, stream)]).records
    return records

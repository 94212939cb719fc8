"""Span attributes of appends, reads and queries, and trace headers in event metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from seriatim.core.guard import Guard, ScannedEvent
from seriatim.core.limits import Limits
from seriatim.core.request import AppendRequest, PreparedEvent
from seriatim.store.port import ReadSpec

if TYPE_CHECKING:
    from seriatim.log.batches import Page
    from seriatim.log.query_execution import QueryResult

Events = tuple[PreparedEvent, ...]


def append_attributes(request: AppendRequest | None, tenant_id: str) -> dict[str, Any]:
    """Return the attributes of an append: ids and types of its first event, never payloads."""
    attributes: dict[str, Any] = {"seriatim.tenant": tenant_id}
    if request is not None:
        first = request.events[0]
        attributes |= {
            "seriatim.event_type": first.event_type,
            "seriatim.event_id": first.event_id,
            "seriatim.stream_type": first.stream_type,
            "seriatim.stream_id": first.stream_id,
            "seriatim.request_id": first.request_id,
        }
    return attributes


def read_attributes(spec: ReadSpec, page: Page) -> dict[str, Any]:
    """Return the attributes of a page read."""
    return {
        "seriatim.tenant": spec.tenant_id or "*",
        "seriatim.count": len(page.records),
        "seriatim.after": spec.after,
        "seriatim.last_scanned": page.last_scanned,
    }


def query_attributes(tenant_id: str, result: QueryResult) -> dict[str, Any]:
    """Return the attributes of a query."""
    return {
        "seriatim.tenant": tenant_id,
        "seriatim.count": len(result.records),
        "seriatim.head": result.head,
        "seriatim.context_version": result.context_version,
    }


def add_trace_headers(
    events: Events, trace_headers: Mapping[str, str], guard: Guard, limits: Limits
) -> Events:
    """Add trace headers to the metadata of events that have none.

    A tracer must never make an append fail, nor make its export impossible to import: headers that
    the guard would refuse, or that would exceed a limit, are left out.
    """
    if guard.scan(ScannedEvent({}, "{}", metadata=trace_headers)) is not None:
        return events
    return tuple(_add_headers(event, trace_headers, limits) for event in events)


def _add_headers(
    event: PreparedEvent, trace_headers: Mapping[str, str], limits: Limits
) -> PreparedEvent:
    if "traceparent" in event.metadata:
        return event
    metadata = {**event.metadata, **trace_headers}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if len(metadata) > limits.metadata_entries or size > limits.metadata_bytes:
        return event
    return msgspec.structs.replace(event, metadata=metadata)

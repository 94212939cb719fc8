"""Spans around the calls of a handler; they continue the trace of the event's append."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from seriatim.core.handler import Handler
from seriatim.telemetry import tracer


def trace_handler(handler: Handler) -> Handler:
    """Return the handler with a span around each call; unchanged if tracing is off."""

    def run(event: Any, context: Any) -> Any:
        if inspect.iscoroutinefunction(handler.run):  # the span must include the awaiting
            return _run_async(handler, event, context)
        with _span(handler, event):
            return handler.run(event, context)

    return msgspec.structs.replace(handler, run=run) if tracer.is_active() else handler


async def _run_async(handler: Handler, event: Any, context: Any) -> Any:
    with _span(handler, event):
        return await handler.run(event, context)


def _span(handler: Handler, event: Any) -> tracer.Span:
    """Create the span of one call; an event that is not a record has no trace to continue."""
    metadata = getattr(event, "metadata", None)
    return tracer.span(
        "seriatim.handle",
        "consumer",
        {
            "seriatim.handler": handler.name,
            "seriatim.tenant": getattr(event, "tenant_id", None),
            "seriatim.event_type": getattr(event, "event_type", None),
            "seriatim.event_id": getattr(event, "event_id", None),
            "seriatim.stream_type": getattr(event, "stream_type", None),
            "seriatim.stream_id": getattr(event, "stream_id", None),
            "seriatim.position": getattr(event, "position", None),
        },
        tracer.extract(metadata) if isinstance(metadata, dict) else None,
    )

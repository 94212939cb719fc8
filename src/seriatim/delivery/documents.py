"""Handlers that maintain one document per stream in an external store, such as a search index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from seriatim.core.errors import InvalidEvent
from seriatim.core.event import EventRecord
from seriatim.core.handler import Handler, RetryPolicy, handler

Document = Mapping[str, Any]


class DocumentIndex(Protocol):
    """A store of versioned documents: a search index, a cache, a table in another database."""

    def put(self, key: str, version: int, document: Document | None) -> None:
        """Store a document unless the stored one has this version or a higher one.

        Args:
            key: The id of the document.
            version: The sequence number of the stream's event.
            document: The document. None deletes it; its version must still be stored, so that a
                lower version that arrives later does not restore the document.

        """
        ...


def documents(
    name: str,
    index: DocumentIndex | Callable[[], DocumentIndex],
    *,
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    start: int = 0,
    retry: RetryPolicy | None = None,
) -> Callable[[Callable[[EventRecord], Document | None]], Handler]:
    """Declare a handler that stores one document per stream, computed from its latest event.

    Args:
        name: The name of the handler.
        index: Where to store documents, or a function that opens it. The function is called in
            the process that handles events, once in each process.
        events: Types or patterns of the events to handle.
        stream_types: Stream types to handle; None for all.
        start: The position after which the handler starts.
        retry: The retry policy.

    Returns:
        A decorator for a function that converts an event to a document, or to None to delete it.

    Raises:
        InvalidArgument: The declaration is invalid; the decorator raises it.

    Example:
        def open_index():
            ...  # a client of your search engine

        @documents("orders-index", open_index, stream_types=["order"])
        def order_document(event):
            return {"status": event.event_type, "at": event.recorded_at}

    """
    indexes: list[DocumentIndex] = []

    def declare(convert: Callable[[EventRecord], Document | None]) -> Handler:
        def put(event: EventRecord, _context: object) -> None:
            if event.stream_seq is None:
                msg = (
                    f"event {event.event_id} belongs to no stream and therefore has no document: "
                    "restrict the handler with stream_types"
                )
                raise InvalidEvent(msg, details={"event_id": event.event_id})
            if not indexes:
                indexes.append(index() if callable(index) else index)
            indexes[0].put(document_id(event), event.stream_seq, convert(event))

        return handler(
            name,
            effect="keyed",
            mode="latest_wins",
            events=events,
            stream_types=stream_types,
            start=start,
            on_poison="skip",
            retry=retry,
        )(put)

    return declare


def document_id(event: EventRecord) -> str:
    """Return the id of a stream's document, unique among all streams of all tenants."""
    parts = (event.tenant_id, event.stream_type or "", event.stream_id or "")
    return "/".join(quote(part, safe="") for part in parts)

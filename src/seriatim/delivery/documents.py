"""Read models outside the log's database: documents with stable ids and versions that only rise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from seriatim.core.errors import InvalidEvent
from seriatim.core.event import EventRecord
from seriatim.core.handling import Handler, RetryPolicy, handler

Document = Mapping[str, Any]


class Index(Protocol):
    """A search index, a cache, a table elsewhere."""

    def put(self, key: str, version: int, document: Document | None) -> None:
        """Store a document unless the one there has this version or a higher one.

        None takes the document away, and its version must still be known: a lower one that comes
        later is not to bring it back.
        """
        ...


def documents(  # noqa: PLR0913 - a declaration is its parts
    name: str,
    index: Index | Callable[[], Index],
    *,
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    start: int = 0,
    retry: RetryPolicy | None = None,
) -> Callable[[Callable[[EventRecord], Document | None]], Handler]:
    """Make a handler that keeps one document for each stream, out of a function of its last event.

    `index` may be a function that opens one: it is called in the tasks, once in each process.
    """
    opened: list[Index] = []

    def declare(make: Callable[[EventRecord], Document | None]) -> Handler:
        def put(event: EventRecord, _context: object) -> None:
            if event.stream_seq is None:
                msg = "an event without a stream has no document: choose stream_types"
                raise InvalidEvent(msg, details={"event_id": event.event_id})
            if not opened:
                opened.append(index() if callable(index) else index)
            opened[0].put(document_id(event), event.stream_seq, make(event))

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
    """Return the id of a stream's document, which no other stream of any tenant has."""
    parts = (event.tenant_id, event.stream_type or "", event.stream_id or "")
    return "/".join(quote(part, safe="") for part in parts)

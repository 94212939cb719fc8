"""The facts profile: append, query, append if the context has not changed; no streams needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Thread
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from seriatim.core.doors import FACTS
from seriatim.core.errors import ConditionalAppendConflict, Flaw
from seriatim.core.event import COMMITTED_FIELDS, AppendResult, EventRecord, NewEvent, StreamRef
from seriatim.core.query import EVERYTHING, Query
from seriatim.core.request import ExpectedContext
from seriatim.log.base import Events
from seriatim.log.subscription import Subscription, Tail
from seriatim.profiles.acts import Appending, Profile, Words, appends, streams

__all__ = [
    "DurableFactStream",
    "FactAppendConflict",
    "FactAppendResult",
    "FactQueryResult",
    "FactRecord",
    "FactStream",
    "Facts",
]

_WORDS = Words({"expected_version": "expected_context_version"})
_COMMITTED = COMMITTED_FIELDS | {"sequence_number"}

EventQuery = Query | Mapping[str, Any]


class FactRecord(msgspec.Struct, frozen=True):
    """One committed event: its place in the one order, and what happened."""

    sequence_number: int
    occurred_at: str
    event_type: str
    payload: Any
    event_id: str
    stream: StreamRef | None = None
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: EventRecord) -> FactRecord:
        """Return a record in the profile's vocabulary."""
        return cls(
            record.position,
            record.occurred_at,
            record.event_type,
            record.data,
            record.event_id,
            record.stream,
            record.tags,
        )


class FactQueryResult(msgspec.Struct, frozen=True):
    """What a query found; the last number returned and the context's version stay separate.

    `more` tells that a limit cut the records: ask again with `after` the last returned number
    and `head` of this result, and the pages are of one snapshot.
    """

    event_records: list[FactRecord]
    last_returned_sequence_number: int | None
    current_context_version: int | None
    head: int
    more: bool = False


class FactAppendResult(msgspec.Struct, frozen=True):
    """The receipt of one committed batch; it says nothing about any context's version."""

    first_sequence_number: int
    last_sequence_number: int
    committed_count: int
    replayed: bool = False


class FactAppendConflict(msgspec.Struct, frozen=True):
    """The context changed since it was read and nothing was stored; it counts as false."""

    expected_context_version: int | None
    actual_context_version: int | None
    after: int | None = None

    def __bool__(self) -> bool:
        """Tell it from a receipt: `if facts.append_if(...)`."""
        return False


class FactStream:
    """Batches of records, one per committed append, from a live or a durable subscription."""

    def __init__(self, source: Tail | Subscription) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[FactRecord]]:
        """Yield each batch; a durable stream takes the next request as the batch's handling."""
        for batch in self._source:
            yield _facts(batch)

    def stop(self) -> None:
        """End the iteration, from any thread."""
        self._source.stop()


class DurableFactStream(FactStream):
    """A named stream: its cursor moves only after a batch was handled."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.subscription = subscription

    def run(self, handler: Callable[[list[FactRecord]], object]) -> None:
        """Call a handler for each batch; a failing one is called again with the same."""
        self.subscription.run(lambda batch: handler(_facts(batch)))

    def start(self, handler: Callable[[list[FactRecord]], object]) -> Thread:
        """Run a handler in a thread of its own."""
        return self.subscription.start(lambda batch: handler(_facts(batch)))


class Facts(Profile):
    """The minimal event store: facts, queries over them, and the context of a command."""

    @appends
    def append(
        self,
        new_events: Events,
        *,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> Appending[FactAppendResult]:
        """Commit a batch, all or nothing, and return its range of sequence numbers."""
        draft = self._log.draft(FACTS, _new_events(new_events), None, idempotency_key)
        return Appending(self._log, draft, _receipt, _WORDS, timeout=timeout, connection=connection)

    @appends
    def append_if(  # noqa: PLR0913 - the profile's three, and an append's manners
        self,
        new_events: Events,
        context_query: EventQuery,
        expected_context_version: int | UnsetType | None = UNSET,
        *,
        after: int | UnsetType = UNSET,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> Appending[FactAppendResult | FactAppendConflict]:
        """Commit only if the context has not changed; a conflict is returned, not raised.

        Give the version that the context must still have, or `after`: a number after which nothing
        that matches may have been committed.
        """
        condition = ExpectedContext(_query(context_query), expected_context_version, after)
        draft = self._log.draft(FACTS, _new_events(new_events), condition, idempotency_key)
        return Appending[FactAppendResult | FactAppendConflict](
            self._log,
            draft,
            _receipt,
            _WORDS,
            conflict=_conflict,
            timeout=timeout,
            connection=connection,
        )

    def query(  # noqa: PLR0913 - a query and its page
        self,
        event_query: EventQuery | None = None,
        *,
        limit: int | None = None,
        after: int | None = None,
        head: int | None = None,
        until: int | None = None,
        newest_first: bool = False,
    ) -> FactQueryResult:
        """Return the matching records by ascending number, and the version of their context.

        With `newest_first` they come by descending number; the next page has `until` one below the
        last returned number.
        """
        found = self._log.query(
            _query(event_query),
            limit=limit,
            after=after,
            head=head,
            until=until,
            newest_first=newest_first,
        )
        return FactQueryResult(
            _facts(found.records),
            found.last_returned_position,
            found.context_version,
            found.head,
            found.more,
        )

    @streams
    def tail(
        self, event_query: EventQuery | None = None, *, after: int | None = None, **options: Any
    ) -> FactStream:
        """Follow a query live from a number (now, by default), keeping no cursor."""
        return FactStream(self._log.tail(_query(event_query), after=after, **options))

    @streams
    def subscribe(
        self, name: str, event_query: EventQuery | None = None, **options: Any
    ) -> DurableFactStream:
        """Follow a query under a durable name: catch up, then live; see `Log.subscribe`."""
        return DurableFactStream(self._log.subscribe(name, _query(event_query), **options))


def _query(given: EventQuery | None) -> Query:
    if given is None:
        return EVERYTHING
    return given if isinstance(given, Query) else Query.from_mapping(given)


def _new_events(given: Events) -> Any:
    """Refuse what only this profile refuses; everything else is checked with the append."""
    if isinstance(given, NewEvent | Mapping | str) or not isinstance(given, Iterable):
        return given
    events = list(given)
    for index, event in enumerate(events):
        if isinstance(event, Mapping):
            if committed := sorted(_COMMITTED & event.keys()):
                raise FACTS.error(Flaw("envelope", committed[0], "is set by the log alone"), index)
            if "payload" not in event:
                raise FACTS.error(Flaw("envelope", "payload", "is required"), index)
    return events


def _facts(records: Iterable[EventRecord]) -> list[FactRecord]:
    return [FactRecord.of(record) for record in records]


def _receipt(receipt: AppendResult) -> FactAppendResult:
    return FactAppendResult(
        receipt.first_position, receipt.last_position, receipt.count, receipt.replayed
    )


def _conflict(error: ConditionalAppendConflict) -> FactAppendConflict:
    return FactAppendConflict(error.expected, error.actual, error.after)

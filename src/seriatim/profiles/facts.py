"""The facts profile: append, query, and append if a context has not changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from threading import Thread
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from seriatim.core.errors import ConditionalAppendConflict, InvalidEvent, ValidationError
from seriatim.core.event import COMMITTED_FIELDS, AppendResult, EventRecord, NewEvent, StreamRef
from seriatim.core.handler import OnPoison, RetryPolicy
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules, register_profile
from seriatim.core.query import MATCH_ALL, Query
from seriatim.core.request import ExpectedContext
from seriatim.log.base import Events
from seriatim.log.failure_policy import BACKOFF_CAP_S, BACKOFF_S
from seriatim.log.subscription import Subscription, Tail
from seriatim.profiles.base import (
    AsyncProfile,
    FieldNames,
    PlannedAppend,
    Profile,
    append_method,
    iterate_async,
)

__all__ = [
    "AsyncFacts",
    "DurableFactStream",
    "FactAppendConflict",
    "FactAppendResult",
    "FactQueryResult",
    "FactRecord",
    "FactStream",
    "Facts",
]

FACTS_PROFILE = register_profile(
    ProfileRules(
        name="facts",
        error_types=dict.fromkeys(LOG_PROFILE.error_types, InvalidEvent),
        any_payload=True,
        log_sets_time=True,
    )
)

_FIELD_NAMES = FieldNames({"expected_version": "expected_context_version"})
_COMMITTED = COMMITTED_FIELDS | {"sequence_number"}

EventQuery = Query | Mapping[str, Any]


class FactRecord(msgspec.Struct, frozen=True):
    """One stored event; `sequence_number` is its position in the log."""

    sequence_number: int
    occurred_at: str
    event_type: str
    payload: Any
    event_id: str
    stream: StreamRef | None = None
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: EventRecord) -> FactRecord:
        """Convert a record of the log."""
        return cls(
            record.position,
            record.occurred_at,
            record.event_type,
            record.payload,
            record.event_id,
            record.stream,
            record.tags,
        )


class FactQueryResult(msgspec.Struct, frozen=True):
    """The result of a query: the records, and the version of their context.

    If `more` is true, the limit truncated the records. Query again with `after` set to the last
    returned number and `head` to the head of this result: all pages are of one snapshot.
    """

    event_records: list[FactRecord]
    last_returned_sequence_number: int | None
    current_context_version: int | None
    head: int
    more: bool = False


class FactAppendResult(msgspec.Struct, frozen=True):
    """The receipt of one append; it does not include the version of a context."""

    first_sequence_number: int
    last_sequence_number: int
    committed_count: int
    replayed: bool = False


class FactAppendConflict(msgspec.Struct, frozen=True):
    """A conflict: the context changed since it was read, and nothing was stored. It is falsy."""

    expected_context_version: int | None
    actual_context_version: int | None
    after: int | None = None

    def __bool__(self) -> bool:
        """Return False, so that callers can write `if facts.append_if(...)`."""
        return False


class FactStream:
    """Batches of records from a live tail or a durable subscription, one per append."""

    def __init__(self, source: Tail | Subscription) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[FactRecord]]:
        """Yield each batch; in a durable stream, requesting the next batch confirms the last."""
        for batch in self._source:
            yield _to_facts(batch)

    def stop(self) -> None:
        """End the iteration, from any thread."""
        self._source.stop()


class DurableFactStream(FactStream):
    """A stream with a durable name; its cursor moves only after a batch was handled."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.subscription = subscription

    def run(self, handler: Callable[[list[FactRecord]], object]) -> None:
        """Call a handler for each batch; after an error it is called again with the same batch."""
        self.subscription.run(lambda batch: handler(_to_facts(batch)))

    def start(self, handler: Callable[[list[FactRecord]], object]) -> Thread:
        """Call a handler for each batch in a new thread, and return the thread."""
        return self.subscription.start(lambda batch: handler(_to_facts(batch)))


class Facts(Profile):
    """The minimal event store: facts, queries over them, and conditional appends."""

    @append_method
    def append(
        self,
        new_events: Events,
        *,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> PlannedAppend[FactAppendResult]:
        """Append a batch atomically and return its range of sequence numbers.

        Args:
            new_events: The events, as mappings or `NewEvent` objects.
            idempotency_key: A key under which the append is stored once.
            timeout: The timeout in seconds; None for the log's.
            connection: A database connection of the caller to append in.

        Raises:
            SeriatimError: The append is refused, timed out or failed, as in `Log.append`.

        Example:
            log.facts.append([{"event_type": "seat.reserved", "payload": {"seat": "12A"}}])
        """
        draft = self._log.draft(FACTS_PROFILE, _check_events(new_events), None, idempotency_key)
        return PlannedAppend(
            self._log, draft, _to_result, _FIELD_NAMES, timeout=timeout, connection=connection
        )

    @append_method
    def append_if(
        self,
        new_events: Events,
        context_query: EventQuery,
        expected_context_version: int | UnsetType | None = UNSET,
        *,
        after: int | UnsetType = UNSET,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> PlannedAppend[FactAppendResult | FactAppendConflict]:
        """Append a batch only if the context has not changed; a conflict is returned, not raised.

        Args:
            new_events: The events, as mappings or `NewEvent` objects.
            context_query: The query that defines the context.
            expected_context_version: The version that the context must still have; None means that
                nothing may match.
            after: A number after which no matching event may have been appended, instead of a
                version.
            idempotency_key: A key under which the append is stored once.
            timeout: The timeout in seconds; None for the log's.
            connection: A database connection of the caller to append in.

        Returns:
            The receipt, or a `FactAppendConflict`, which is falsy.

        Raises:
            SeriatimError: The append is refused, timed out or failed, as in `Log.append`.

        Example:
            booked = Query([Filter(types=["seat.booked"], tags=["seat:12A"])])
            event = NewEvent("seat.booked", {"seat": "12A"}, tags=("seat:12A",))
            if not log.facts.append_if([event], booked, None):
                print("the seat is taken")
        """
        condition = ExpectedContext(_to_query(context_query), expected_context_version, after)
        draft = self._log.draft(
            FACTS_PROFILE, _check_events(new_events), condition, idempotency_key
        )
        return PlannedAppend[FactAppendResult | FactAppendConflict](
            self._log,
            draft,
            _to_result,
            _FIELD_NAMES,
            conflict=_to_conflict,
            timeout=timeout,
            connection=connection,
        )

    def query(
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

        Args:
            event_query: The events to return, as a `Query` or a mapping; by default all.
            limit: The maximum number of records; None means all.
            after: The exclusive start; for the next page, the last returned number.
            head: The head of the snapshot; for the next page, the `head` of the first result.
            until: The inclusive end; for the next page with `newest_first`, one less than the
                last returned number.
            newest_first: Whether to return the records in descending order.

        Raises:
            InvalidQuery: The query is malformed.
            InvalidArgument: A number is malformed, or `head` is after the log's head.

        Example:
            found = log.facts.query({"filters": [{"types": ["order.paid"]}]})
            print(found.current_context_version)
        """
        result = self._log.query(
            _to_query(event_query),
            limit=limit,
            after=after,
            head=head,
            until=until,
            newest_first=newest_first,
        )
        return FactQueryResult(
            _to_facts(result.records),
            result.last_returned_position,
            result.context_version,
            result.head,
            result.more,
        )

    def tail(
        self,
        event_query: EventQuery | None = None,
        *,
        after: int | None = None,
        idle_timeout: float | None = None,
        poll_s: float = 1.0,
        on_scanned: Callable[[int], None] | None = None,
    ) -> FactStream:
        """Follow a query live without a stored cursor.

        Args:
            event_query: The events to receive; by default all.
            after: The number after which to start; by default from now on.
            idle_timeout: Seconds without an event after which the iteration ends; None: never.
            poll_s: How often to look for new events if no wake-up arrives.
            on_scanned: Called with the number up to which the log was scanned, when caught up.

        Raises:
            InvalidArgument: `after` is malformed or after the head.
            LimitExceeded: The process has too many open subscriptions and tails.

        Example:
            for batch in log.facts.tail(after=0, idle_timeout=0.1):
                print([record.event_type for record in batch])
        """
        tail = self._log.tail(
            _to_query(event_query),
            after=after,
            idle_timeout=idle_timeout,
            poll_s=poll_s,
            on_scanned=on_scanned,
        )
        return FactStream(tail)

    def subscribe(
        self,
        name: str,
        event_query: EventQuery | None = None,
        *,
        start: int | Literal["head"] = 0,
        lease_s: float = 10.0,
        poll_s: float = 1.0,
        idle_timeout: float | None = None,
        backoff_s: float = BACKOFF_S,
        backoff_cap_s: float = BACKOFF_CAP_S,
        retry: RetryPolicy | None = None,
        on_poison: OnPoison = "park",
    ) -> DurableFactStream:
        """Follow a query under a durable name: catch up, then live.

        Args:
            name: The name under which the cursor is stored.
            event_query: The events to receive; by default all.
            start: The number after which a new subscription starts, or `"head"`.
            lease_s: How long the lease lasts without being renewed.
            poll_s: How often to look for new events if no wake-up arrives.
            idle_timeout: Seconds without an event after which the iteration ends; None: never.
            backoff_s: The delay after the first failure of a handler; it doubles each time.
            backoff_cap_s: The longest such delay.
            retry: How often a batch is attempted and with which delays, instead of `backoff_s`;
                None repeats it until it succeeds.
            on_poison: What the last failed attempt does: `park` the subscription until an operator
                acts, `skip` the batch and record it, or `stop`: park it and raise an error.

        Raises:
            Conflict: The subscription exists with another query.
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.
            LimitExceeded: The process has too many open subscriptions and tails.

        Example:
            for batch in log.facts.subscribe("mailer", idle_timeout=0.1):
                print("send", len(batch), "mails")
        """
        subscription = self._log.subscribe(
            name,
            _to_query(event_query),
            start=start,
            lease_s=lease_s,
            poll_s=poll_s,
            idle_timeout=idle_timeout,
            backoff_s=backoff_s,
            backoff_cap_s=backoff_cap_s,
            retry=retry,
            on_poison=on_poison,
        )
        return DurableFactStream(subscription)

    @cached_property
    def aio(self) -> AsyncFacts:
        """The same methods for asyncio: coroutines and async iterators."""
        return AsyncFacts(self)


class AsyncFacts(AsyncProfile[Facts]):
    """The facts profile for asyncio; parameters, results and errors are those of `Facts`."""

    async def append(
        self,
        new_events: Events,
        *,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> FactAppendResult:
        """Append a batch atomically; see `Facts.append`.

        Example:
            event = {"event_type": "seat.reserved", "payload": {"seat": "12A"}}
            receipt = await log.facts.aio.append([event])
        """
        return await self._append(
            Facts.append,
            new_events,
            idempotency_key=idempotency_key,
            timeout=timeout,
            connection=connection,
        )

    async def append_if(
        self,
        new_events: Events,
        context_query: EventQuery,
        expected_context_version: int | UnsetType | None = UNSET,
        *,
        after: int | UnsetType = UNSET,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> FactAppendResult | FactAppendConflict:
        """Append a batch only if the context has not changed; see `Facts.append_if`.

        Example:
            booked = Query([Filter(types=["seat.booked"])])
            result = await log.facts.aio.append_if([NewEvent("seat.booked")], booked, None)
        """
        return await self._append(
            Facts.append_if,
            new_events,
            context_query,
            expected_context_version,
            after=after,
            idempotency_key=idempotency_key,
            timeout=timeout,
            connection=connection,
        )

    async def query(
        self,
        event_query: EventQuery | None = None,
        *,
        limit: int | None = None,
        after: int | None = None,
        head: int | None = None,
        until: int | None = None,
        newest_first: bool = False,
    ) -> FactQueryResult:
        """Return the matching records and the version of their context; see `Facts.query`.

        Example:
            found = await log.facts.aio.query(Query([Filter(types=["order.paid"])]))
        """
        return await asyncio.to_thread(
            self._profile.query,
            event_query,
            limit=limit,
            after=after,
            head=head,
            until=until,
            newest_first=newest_first,
        )

    def tail(
        self,
        event_query: EventQuery | None = None,
        *,
        after: int | None = None,
        idle_timeout: float | None = None,
        poll_s: float = 1.0,
        on_scanned: Callable[[int], None] | None = None,
    ) -> AsyncGenerator[list[FactRecord], None]:
        """Follow a query live without a stored cursor; see `Facts.tail`.

        Example:
            async for batch in log.facts.aio.tail(after=0, idle_timeout=0.1):
                print([record.event_type for record in batch])
        """
        return iterate_async(
            self._profile.tail,
            event_query,
            after=after,
            idle_timeout=idle_timeout,
            poll_s=poll_s,
            on_scanned=on_scanned,
        )

    def subscribe(
        self,
        name: str,
        event_query: EventQuery | None = None,
        *,
        start: int | Literal["head"] = 0,
        lease_s: float = 10.0,
        poll_s: float = 1.0,
        idle_timeout: float | None = None,
        backoff_s: float = BACKOFF_S,
        backoff_cap_s: float = BACKOFF_CAP_S,
        retry: RetryPolicy | None = None,
        on_poison: OnPoison = "park",
    ) -> AsyncGenerator[list[FactRecord], None]:
        """Follow a query under a durable name; see `Facts.subscribe`.

        Example:
            async for batch in log.facts.aio.subscribe("mailer", idle_timeout=0.1):
                print("send", len(batch), "mails")
        """
        return iterate_async(
            self._profile.subscribe,
            name,
            event_query,
            start=start,
            lease_s=lease_s,
            poll_s=poll_s,
            idle_timeout=idle_timeout,
            backoff_s=backoff_s,
            backoff_cap_s=backoff_cap_s,
            retry=retry,
            on_poison=on_poison,
        )


def _to_query(query: EventQuery | None) -> Query:
    if query is None:
        return MATCH_ALL
    return query if isinstance(query, Query) else Query.from_mapping(query)


def _check_events(new_events: Events) -> Any:
    """Apply the checks of this profile; the append makes all others."""
    if isinstance(new_events, NewEvent | Mapping | str) or not isinstance(new_events, Iterable):
        return new_events
    # An iterator could be read only once, and the append reads the events again.
    events = list(new_events)
    for index, event in enumerate(events):
        if isinstance(event, Mapping):
            if committed := sorted(_COMMITTED & event.keys()):
                raise FACTS_PROFILE.error(
                    ValidationError("envelope", committed[0], "is set only by the log"), index
                )
            if "payload" not in event:
                raise FACTS_PROFILE.error(
                    ValidationError("envelope", "payload", "is required"), index
                )
    return events


def _to_facts(records: Iterable[EventRecord]) -> list[FactRecord]:
    return [FactRecord.of(record) for record in records]


def _to_result(receipt: AppendResult) -> FactAppendResult:
    return FactAppendResult(
        receipt.first_position, receipt.last_position, receipt.count, receipt.replayed
    )


def _to_conflict(error: ConditionalAppendConflict) -> FactAppendConflict:
    return FactAppendConflict(error.expected, error.actual, error.after)

"""The traces profile: decision traces, numbered by their producer, from start to finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec

from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.event import EventRecord, StreamRef
from seriatim.log.arguments import ReadFilters, check_name, invalid_argument
from seriatim.log.base import BaseLog
from seriatim.log.cursors import check_cursor, make_cursor
from seriatim.profiles.base import (
    AsyncProfile,
    FieldNames,
    PlannedAppend,
    Profile,
    append_method,
    iterate_async,
)
from seriatim.profiles.trace_rules import TRACE_STREAM_KIND, TRACES_PROFILE
from seriatim.profiles.trace_values import (
    EventEnvelope,
    ProjectionCursor,
    StoredEvent,
    TraceActor,
    TraceSource,
    to_new_event,
    to_projection_cursor,
    to_stored_event,
)

__all__ = [
    "AsyncTraces",
    "EventEnvelope",
    "ProjectionCursor",
    "StoredEvent",
    "TraceActor",
    "TraceSource",
    "Traces",
]

_EVENT_NAMES = FieldNames(
    {
        "stream": "trace_id",
        "stream_id": "trace_id",
        "stream_seq": "trace_seq",
        "event_version": "schema_version",
        "causation_id": "causation_event_id",
        "source_system": "source.system",
        "source_subsystem": "source.subsystem",
        "actor_type": "actor.actor_type",
        "actor_id": "actor.actor_id",
    }
)
_READ_NAMES = {
    "after": "since_log_seq",
    "until": "until_log_seq",
    "occurred_after": "since_occurred_at",
    "occurred_until": "until_occurred_at",
    "since_seq": "since_trace_seq",
    "stream": "trace_id",
    "types": "event_type",
}
_READ_FIELD_NAMES = FieldNames(_READ_NAMES)
_BATCH_FIELD_NAMES = FieldNames({**_READ_NAMES, "limit": "batch_size"})
_CURSOR_FIELD_NAMES = FieldNames({"position": "last_log_seq"})


class TraceFilters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of `list_events` and `iter_event_batches`."""

    trace_id: str | None
    event_type: str | None
    since_log_seq: int | None
    until_log_seq: int | None
    since_occurred_at: str | None
    until_occurred_at: str | None

    def read_batches(self, log: BaseLog, batch_size: int | None) -> Iterator[list[EventRecord]]:
        """Read all matching events of traces in batches."""
        return log.read_batches(batch_size=batch_size, **self._log_filters())

    def read_page(self, log: BaseLog, limit: int) -> list[EventRecord]:
        """Read the first matching events of traces."""
        return log.page(limit=limit, **self._log_filters()).records

    def _log_filters(self) -> ReadFilters:
        """Return the filters by the log's names."""
        return {
            "scope": "traces",
            "after": 0 if self.since_log_seq is None else self.since_log_seq,
            "until": self.until_log_seq,
            "stream": None if self.trace_id is None else _to_stream(self.trace_id),
            "types": None if self.event_type is None else [self.event_type],
            "occurred_after": self.since_occurred_at,
            "occurred_until": self.until_occurred_at,
        }


class Traces(Profile):
    """The decision traces of a log, in the log's tenant or the `tenant_id` of a call."""

    @append_method
    def append_event(
        self,
        envelope: EventEnvelope | Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> PlannedAppend[StoredEvent]:
        """Append one event of a trace; a repeated append returns the event stored first.

        Args:
            envelope: The event, as an `EventEnvelope` or a mapping of its fields.
            tenant_id: The tenant; None for the tenant of the log.
            timeout: The timeout in seconds; None for the log's.
            connection: A database connection of the caller to append in.

        Raises:
            InvalidArgument: A field of the envelope is missing or invalid.
            SchemaViolation: The payload does not match its event type.
            SeriatimError: The append is rejected or failed.

        Example:
            stored = log.traces.append_event({
                "event_id": "e-2",
                "trace_id": "t-1",
                "trace_seq": 0,
                "event_type": "TraceStarted",
                "occurred_at": "2026-03-01T09:00:00Z",
                "source": {"system": "pricing", "producer_id": "agent-7"},
                "actor": {"actor_type": "agent", "actor_id": "agent-7"},
                "idempotency_key": "t-1/0",
                "payload": {
                    "workflow": "discount",
                    "title": "Ten percent",
                    "primary_entity": {"entity_type": "deal", "entity_id": "d-1"},
                },
            })
        """
        log = self._for_tenant(tenant_id)
        return PlannedAppend(
            log,
            log.draft(TRACES_PROFILE, [to_new_event(envelope)]),
            lambda receipt: to_stored_event(receipt.records[0]),
            _EVENT_NAMES,
            timeout=timeout,
            connection=connection,
        )

    def get_trace_events(
        self,
        trace_id: str,
        *,
        tenant_id: str | None = None,
        since_trace_seq: int | None = None,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        """Return a trace's events by ascending `trace_seq`; empty if it does not exist.

        Args:
            trace_id: The trace.
            tenant_id: The tenant; None for the tenant of the log.
            since_trace_seq: Only events with a greater `trace_seq`.
            limit: The maximum number of events; None means all.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            events = log.traces.get_trace_events("t-1", since_trace_seq=0)
        """
        log = self._for_tenant(tenant_id)
        with _READ_FIELD_NAMES.translate_errors():
            records = log.read_stream(_to_stream(trace_id), since=since_trace_seq, limit=limit)
        return _to_stored_events(records)

    def list_events(
        self,
        *,
        tenant_id: str | None = None,
        limit: int | None = None,
        trace_id: str | None = None,
        event_type: str | None = None,
        since_log_seq: int | None = None,
        until_log_seq: int | None = None,
        since_occurred_at: str | None = None,
        until_occurred_at: str | None = None,
    ) -> list[StoredEvent]:
        """Return the matching events by ascending `log_seq`.

        Args:
            tenant_id: The tenant; None for the tenant of the log.
            limit: The maximum number of events; None means all.
            trace_id: Only events of this trace.
            event_type: Only events of this type.
            since_log_seq: Only events with a greater `log_seq`.
            until_log_seq: Only events up to this `log_seq`.
            since_occurred_at: Only events that occurred after this time.
            until_occurred_at: Only events that occurred up to this time.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            events = log.traces.list_events(event_type="TraceStarted", limit=100)
        """
        log = self._for_tenant(tenant_id)
        filters = TraceFilters(
            trace_id=trace_id,
            event_type=event_type,
            since_log_seq=since_log_seq,
            until_log_seq=until_log_seq,
            since_occurred_at=since_occurred_at,
            until_occurred_at=until_occurred_at,
        )
        with _READ_FIELD_NAMES.translate_errors():
            if limit is not None:
                return _to_stored_events(filters.read_page(log, limit))
            return _to_stored_events(chain.from_iterable(filters.read_batches(log, None)))

    def iter_event_batches(
        self,
        *,
        tenant_id: str | None = None,
        batch_size: int | None = None,
        limit: int | None = None,
        trace_id: str | None = None,
        event_type: str | None = None,
        since_log_seq: int | None = None,
        until_log_seq: int | None = None,
        since_occurred_at: str | None = None,
        until_occurred_at: str | None = None,
    ) -> Iterator[list[StoredEvent]]:
        """Iterate over batches of matching events by ascending `log_seq`.

        The iteration ends after `limit` events, or at the head that the log has when the first
        batch is read.

        Args:
            tenant_id: The tenant; None for the tenant of the log.
            batch_size: The maximum number of events of a batch.
            limit: The maximum number of events; None means all.
            trace_id: Only events of this trace.
            event_type: Only events of this type.
            since_log_seq: Only events with a greater `log_seq`.
            until_log_seq: Only events up to this `log_seq`.
            since_occurred_at: Only events that occurred after this time.
            until_occurred_at: Only events that occurred up to this time.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            for batch in log.traces.iter_event_batches(batch_size=500):
                print(len(batch))
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise invalid_argument("limit", "must be a whole number from 1")
        log = self._for_tenant(tenant_id)
        filters = TraceFilters(
            trace_id=trace_id,
            event_type=event_type,
            since_log_seq=since_log_seq,
            until_log_seq=until_log_seq,
            since_occurred_at=since_occurred_at,
            until_occurred_at=until_occurred_at,
        )
        with _BATCH_FIELD_NAMES.translate_errors():
            batches = filters.read_batches(log, batch_size)
        return _limit_batches(batches, limit)

    def get_last_log_seq(self, *, tenant_id: str | None = None) -> int:
        """Return the last `log_seq` of the whole log, or 0 if it is empty.

        Example:
            head = log.traces.get_last_log_seq()
        """
        return self._for_tenant(tenant_id).head()

    def is_trace_finished(self, trace_id: str, *, tenant_id: str | None = None) -> bool:
        """Return whether a trace has its closing event, after which no event can follow.

        Raises:
            InvalidArgument: The trace id is malformed.

        Example:
            finished = log.traces.is_trace_finished("t-1")
        """
        last = _find_last_event(self._for_tenant(tenant_id), trace_id)
        return last is not None and last.event_type in TRACE_STREAM_KIND.closing_types

    def get_next_trace_seq(self, trace_id: str, *, tenant_id: str | None = None) -> int:
        """Return the `trace_seq` of the next event of a trace.

        Raises:
            InvalidArgument: The trace id is malformed.

        Example:
            trace_seq = log.traces.get_next_trace_seq("t-1")
        """
        last = _find_last_event(self._for_tenant(tenant_id), trace_id)
        return TRACE_STREAM_KIND.first_seq if last is None else (last.stream_seq or 0) + 1

    def get_projection_cursor(
        self, projection_name: str, *, tenant_id: str | None = None
    ) -> ProjectionCursor | None:
        """Return the cursor of a projection, or None if it has none.

        Raises:
            LogIdentityChanged: The cursor belongs to another log, or to a history that a restore
                replaced.

        Example:
            cursor = log.traces.get_projection_cursor("dashboard")
        """
        log = self._for_tenant(tenant_id)
        name = check_name("projection_name", projection_name)
        cursor = log.store.cursor(log.tenant_id, "projection", name)
        if cursor is None:
            return None
        check_cursor(log.store, cursor, cursor.query)
        return to_projection_cursor(cursor)

    def put_projection_cursor(
        self,
        projection_name: str,
        last_log_seq: int,
        *,
        tenant_id: str | None = None,
        reset: bool = False,
    ) -> ProjectionCursor:
        """Store the cursor of a projection.

        Args:
            projection_name: The projection.
            last_log_seq: The last `log_seq` that it has processed.
            tenant_id: The tenant; None for the tenant of the log.
            reset: Whether the cursor may move backwards, or to another history of the log.

        Raises:
            InvalidArgument: An argument is malformed, or `last_log_seq` is after the head.
            Conflict: The cursor would move backwards.
            LogIdentityChanged: The cursor belongs to another log, or to a history that a restore
                replaced.

        Example:
            log.traces.put_projection_cursor("dashboard", log.traces.get_last_log_seq())
        """
        log = self._for_tenant(tenant_id)
        name = check_name("projection_name", projection_name)
        stored = log.store.cursor(log.tenant_id, "projection", name)
        # The store refuses to change the query of a cursor.
        query = "" if stored is None else stored.query
        with _CURSOR_FIELD_NAMES.translate_errors():
            cursor = make_cursor(log.store, log.tenant_id, "projection", name, last_log_seq, query)
            if stored is not None and not reset:
                check_cursor(log.store, stored, stored.query)
            log.store.put_cursor(cursor, lease=None, reset=reset)
        return to_projection_cursor(log.store.cursor(log.tenant_id, "projection", name) or cursor)

    def list_projection_cursors(self, *, tenant_id: str | None = None) -> list[ProjectionCursor]:
        """Return the cursors of all projections, by name.

        Example:
            for cursor in log.traces.list_projection_cursors():
                print(cursor.projection_name, cursor.last_log_seq)
        """
        log = self._for_tenant(tenant_id)
        return [
            to_projection_cursor(cursor)
            for cursor in log.store.cursors(log.tenant_id, "projection")
        ]

    @cached_property
    def aio(self) -> AsyncTraces:
        """The same methods for asyncio: coroutines and an async iterator."""
        return AsyncTraces(self)


class AsyncTraces(AsyncProfile[Traces]):
    """The traces profile for asyncio; parameters, results and errors are those of `Traces`."""

    async def append_event(
        self,
        envelope: EventEnvelope | Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> StoredEvent:
        """Append one event of a trace; see `Traces.append_event`.

        Example:
            deal = {"entity_type": "deal", "entity_id": "d-1"}
            envelope = EventEnvelope(
                event_id="e-2",
                trace_id="t-1",
                trace_seq=0,
                event_type="TraceStarted",
                occurred_at="2026-03-01T09:00:00Z",
                source=TraceSource("pricing", producer_id="agent-7"),
                actor=TraceActor("agent", "agent-7"),
                idempotency_key="t-1/0",
                payload={"workflow": "discount", "title": "10 %", "primary_entity": deal},
            )
            stored = await log.traces.aio.append_event(envelope)
        """
        return await self._append(
            Traces.append_event,
            envelope,
            tenant_id=tenant_id,
            timeout=timeout,
            connection=connection,
        )

    async def get_trace_events(
        self,
        trace_id: str,
        *,
        tenant_id: str | None = None,
        since_trace_seq: int | None = None,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        """Return a trace's events by ascending `trace_seq`; see `Traces.get_trace_events`.

        Example:
            events = await log.traces.aio.get_trace_events("t-1")
        """
        return await asyncio.to_thread(
            self._profile.get_trace_events,
            trace_id,
            tenant_id=tenant_id,
            since_trace_seq=since_trace_seq,
            limit=limit,
        )

    async def list_events(
        self,
        *,
        tenant_id: str | None = None,
        limit: int | None = None,
        trace_id: str | None = None,
        event_type: str | None = None,
        since_log_seq: int | None = None,
        until_log_seq: int | None = None,
        since_occurred_at: str | None = None,
        until_occurred_at: str | None = None,
    ) -> list[StoredEvent]:
        """Return the matching events by ascending `log_seq`; see `Traces.list_events`.

        Example:
            events = await log.traces.aio.list_events(event_type="TraceStarted")
        """
        return await asyncio.to_thread(
            self._profile.list_events,
            tenant_id=tenant_id,
            limit=limit,
            trace_id=trace_id,
            event_type=event_type,
            since_log_seq=since_log_seq,
            until_log_seq=until_log_seq,
            since_occurred_at=since_occurred_at,
            until_occurred_at=until_occurred_at,
        )

    def iter_event_batches(
        self,
        *,
        tenant_id: str | None = None,
        batch_size: int | None = None,
        limit: int | None = None,
        trace_id: str | None = None,
        event_type: str | None = None,
        since_log_seq: int | None = None,
        until_log_seq: int | None = None,
        since_occurred_at: str | None = None,
        until_occurred_at: str | None = None,
    ) -> AsyncGenerator[list[StoredEvent], None]:
        """Iterate over batches of matching events; see `Traces.iter_event_batches`.

        Example:
            async for batch in log.traces.aio.iter_event_batches(batch_size=500):
                print(len(batch))
        """
        return iterate_async(
            self._profile.iter_event_batches,
            tenant_id=tenant_id,
            batch_size=batch_size,
            limit=limit,
            trace_id=trace_id,
            event_type=event_type,
            since_log_seq=since_log_seq,
            until_log_seq=until_log_seq,
            since_occurred_at=since_occurred_at,
            until_occurred_at=until_occurred_at,
        )

    async def get_last_log_seq(self, *, tenant_id: str | None = None) -> int:
        """Return the last `log_seq` of the whole log; see `Traces.get_last_log_seq`.

        Example:
            head = await log.traces.aio.get_last_log_seq()
        """
        return await asyncio.to_thread(self._profile.get_last_log_seq, tenant_id=tenant_id)

    async def is_trace_finished(self, trace_id: str, *, tenant_id: str | None = None) -> bool:
        """Return whether a trace has its closing event; see `Traces.is_trace_finished`.

        Example:
            finished = await log.traces.aio.is_trace_finished("t-1")
        """
        return await asyncio.to_thread(
            self._profile.is_trace_finished, trace_id, tenant_id=tenant_id
        )

    async def get_next_trace_seq(self, trace_id: str, *, tenant_id: str | None = None) -> int:
        """Return the `trace_seq` of the next event of a trace; see `Traces.get_next_trace_seq`.

        Example:
            trace_seq = await log.traces.aio.get_next_trace_seq("t-1")
        """
        return await asyncio.to_thread(
            self._profile.get_next_trace_seq, trace_id, tenant_id=tenant_id
        )

    async def get_projection_cursor(
        self, projection_name: str, *, tenant_id: str | None = None
    ) -> ProjectionCursor | None:
        """Return the cursor of a projection; see `Traces.get_projection_cursor`.

        Example:
            cursor = await log.traces.aio.get_projection_cursor("dashboard")
        """
        return await asyncio.to_thread(
            self._profile.get_projection_cursor, projection_name, tenant_id=tenant_id
        )

    async def put_projection_cursor(
        self,
        projection_name: str,
        last_log_seq: int,
        *,
        tenant_id: str | None = None,
        reset: bool = False,
    ) -> ProjectionCursor:
        """Store the cursor of a projection; see `Traces.put_projection_cursor`.

        Example:
            await log.traces.aio.put_projection_cursor("dashboard", 1)
        """
        return await asyncio.to_thread(
            self._profile.put_projection_cursor,
            projection_name,
            last_log_seq,
            tenant_id=tenant_id,
            reset=reset,
        )

    async def list_projection_cursors(
        self, *, tenant_id: str | None = None
    ) -> list[ProjectionCursor]:
        """Return the cursors of all projections, by name; see `Traces.list_projection_cursors`.

        Example:
            cursors = await log.traces.aio.list_projection_cursors()
        """
        return await asyncio.to_thread(self._profile.list_projection_cursors, tenant_id=tenant_id)


def _to_stream(trace_id: str) -> StreamRef:
    return TRACE_STREAM_TYPE, check_name("trace_id", trace_id)


def _find_last_event(log: BaseLog, trace_id: str) -> EventRecord | None:
    return log.last_event(_to_stream(trace_id))


def _to_stored_events(records: Iterable[EventRecord]) -> list[StoredEvent]:
    return [to_stored_event(record) for record in records]


def _limit_batches(
    batches: Iterator[list[EventRecord]], limit: int | None
) -> Iterator[list[StoredEvent]]:
    remaining = limit
    for batch in batches:
        yield _to_stored_events(batch if remaining is None else batch[:remaining])
        if remaining is not None:
            remaining -= len(batch)
            if remaining <= 0:
                return

"""The traces profile: decision traces that open, run in the producer's own numbers, and close."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypedDict, Unpack

from seriatim.core.doors import TRACES
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.kinds import TRACE, TRACE_KIND
from seriatim.log.arguments import bad, check_name
from seriatim.log.base import BaseLog
from seriatim.log.cursors import check_cursor, new_cursor
from seriatim.profiles.acts import Appending, Profile, Words, appends, streams
from seriatim.profiles.trace_values import (
    Actor,
    EventEnvelope,
    ProjectionCursor,
    Source,
    StoredEvent,
    new_event,
    projection_cursor,
    stored_event,
)

__all__ = ["Actor", "EventEnvelope", "ProjectionCursor", "Source", "StoredEvent", "Traces"]

_EVENT_WORDS = Words(
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
_READ_WORDS = Words(_READ_NAMES, prose=_READ_NAMES)
_BATCH_NAMES = {**_READ_NAMES, "limit": "batch_size"}
_BATCH_WORDS = Words(_BATCH_NAMES, prose=_BATCH_NAMES)
_CURSOR_NAMES = {"position": "last_log_seq"}
_CURSOR_WORDS = Words(_CURSOR_NAMES, prose=_CURSOR_NAMES)


class TraceFilters(TypedDict, total=False):
    """What `list_events` and `iter_event_batches` can be narrowed to."""

    trace_id: str | None
    event_type: str | None
    since_log_seq: int | None
    until_log_seq: int | None
    since_occurred_at: str | None
    until_occurred_at: str | None


class Traces(Profile):
    """The log of decision traces, within the log's tenant or the one that a call names."""

    @appends
    def append_event(
        self,
        envelope: EventEnvelope | Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> Appending[StoredEvent]:
        """Append one event of a trace; a repeated one returns what was stored the first time."""
        log = self._within(tenant_id)
        return Appending(
            log,
            log.draft(TRACES, [new_event(envelope)]),
            lambda receipt: stored_event(receipt.records[0]),
            _EVENT_WORDS,
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
        """Return a trace's events by ascending trace_seq; none for a trace that is not there."""
        log = self._within(tenant_id)
        with _READ_WORDS.spoken():
            found = log.read_stream(_stream(trace_id), since=since_trace_seq, limit=limit)
        return _stored(found)

    def list_events(
        self,
        *,
        tenant_id: str | None = None,
        limit: int | None = None,
        **filters: Unpack[TraceFilters],
    ) -> list[StoredEvent]:
        """Return events by ascending log_seq, all that match or the first `limit` of them.

        Filters: trace_id, event_type, since_log_seq (exclusive), until_log_seq (inclusive),
        since_occurred_at (exclusive), until_occurred_at (inclusive).
        """
        log = self._within(tenant_id)
        with _READ_WORDS.spoken():
            wanted = _filters(filters)
            if limit is not None:
                return _stored(log.page(limit=limit, scope="traces", **wanted).records)
            return _stored(chain.from_iterable(log.read_batches(scope="traces", **wanted)))

    @streams
    def iter_event_batches(
        self,
        *,
        tenant_id: str | None = None,
        batch_size: int | None = None,
        limit: int | None = None,
        **filters: Unpack[TraceFilters],
    ) -> Iterator[list[StoredEvent]]:
        """Iterate over non-overlapping batches by ascending log_seq; filters as `list_events`.

        It ends at the last event of the log as it is at the first batch, or after `limit` events.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise bad("limit", "must be a whole number from 1")
        log = self._within(tenant_id)
        with _BATCH_WORDS.spoken():
            wanted = _filters(filters)
            batches = log.read_batches(batch_size=batch_size, scope="traces", **wanted)
        return _limited(batches, limit)

    def get_last_log_seq(self, *, tenant_id: str | None = None) -> int:
        """Return the last log_seq of the whole log, 0 when it is empty."""
        return self._within(tenant_id).head()

    def is_trace_finished(self, trace_id: str, *, tenant_id: str | None = None) -> bool:
        """Tell whether a trace holds its closing event; nothing follows it."""
        last = _last(self._within(tenant_id), trace_id)
        return last is not None and last.event_type in TRACE.closing_types

    def get_next_trace_seq(self, trace_id: str, *, tenant_id: str | None = None) -> int:
        """Return the number that a trace's next event must carry."""
        last = _last(self._within(tenant_id), trace_id)
        return TRACE.first_seq if last is None else (last.stream_seq or 0) + 1

    def get_projection_cursor(
        self, projection_name: str, *, tenant_id: str | None = None
    ) -> ProjectionCursor | None:
        """Return a projection's cursor, None when it has none yet.

        A cursor of another log, or of a past that was restored over, is refused, not returned.
        """
        log = self._within(tenant_id)
        name = check_name("projection_name", projection_name)
        found = log.store.cursor(log.tenant_id, "projection", name)
        if found is None:
            return None
        check_cursor(log.store, found, found.query)
        return projection_cursor(found)

    def put_projection_cursor(
        self,
        projection_name: str,
        last_log_seq: int,
        *,
        tenant_id: str | None = None,
        reset: bool = False,
    ) -> ProjectionCursor:
        """Store how far a projection has come; backwards only with `reset`."""
        log = self._within(tenant_id)
        name = check_name("projection_name", projection_name)
        known = log.store.cursor(log.tenant_id, "projection", name)
        query = "" if known is None else known.query
        with _CURSOR_WORDS.spoken():
            moved = new_cursor(log.store, log.tenant_id, "projection", name, last_log_seq, query)
            if known is not None and not reset:
                check_cursor(log.store, known, known.query)
            log.store.put_cursor(moved, lease=None, reset=reset)
        return projection_cursor(log.store.cursor(log.tenant_id, "projection", name) or moved)

    def list_projection_cursors(self, *, tenant_id: str | None = None) -> list[ProjectionCursor]:
        """Return every projection's cursor, by name."""
        log = self._within(tenant_id)
        return [projection_cursor(one) for one in log.store.cursors(log.tenant_id, "projection")]


def _stream(trace_id: str) -> StreamRef:
    return TRACE_KIND, check_name("trace_id", trace_id)


def _last(log: BaseLog, trace_id: str) -> EventRecord | None:
    return log.last_event(_stream(trace_id))


def _stored(records: Iterable[EventRecord]) -> list[StoredEvent]:
    return [stored_event(record) for record in records]


def _filters(given: TraceFilters) -> dict[str, Any]:
    """Return the log's filters for the profile's."""
    for name in given:
        if name not in TraceFilters.__annotations__:
            raise bad(name[:80], "is no filter of traces")
    trace_id, event_type = given.get("trace_id"), given.get("event_type")
    since = given.get("since_log_seq")
    return {
        "after": 0 if since is None else since,
        "until": given.get("until_log_seq"),
        "stream": None if trace_id is None else _stream(trace_id),
        "types": None if event_type is None else [event_type],
        "occurred_after": given.get("since_occurred_at"),
        "occurred_until": given.get("until_occurred_at"),
    }


def _limited(
    batches: Iterator[list[EventRecord]], limit: int | None
) -> Iterator[list[StoredEvent]]:
    left = limit
    for batch in batches:
        yield _stored(batch if left is None else batch[:left])
        if left is not None:
            left -= len(batch)
            if left <= 0:
                return

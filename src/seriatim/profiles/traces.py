"""The traces profile: decision traces, numbered by their producer, from start to finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypedDict, Unpack

from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.kinds import TRACE_STREAM_KIND, TRACE_STREAM_TYPE
from seriatim.core.profile_rules import TRACES_PROFILE
from seriatim.log.arguments import check_name, invalid_argument
from seriatim.log.base import BaseLog
from seriatim.log.cursors import check_cursor, make_cursor
from seriatim.profiles.base import (
    FieldNames,
    PlannedAppend,
    Profile,
    append_method,
    iterator_method,
)
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


class TraceFilters(TypedDict, total=False):
    """The filters of `list_events` and `iter_event_batches`."""

    trace_id: str | None
    event_type: str | None
    since_log_seq: int | None
    until_log_seq: int | None
    since_occurred_at: str | None
    until_occurred_at: str | None


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
        """Return a trace's events by ascending `trace_seq`; empty if it does not exist."""
        log = self._for_tenant(tenant_id)
        with _READ_FIELD_NAMES.translate_errors():
            found = log.read_stream(_stream(trace_id), since=since_trace_seq, limit=limit)
        return _to_stored(found)

    def list_events(
        self,
        *,
        tenant_id: str | None = None,
        limit: int | None = None,
        **filters: Unpack[TraceFilters],
    ) -> list[StoredEvent]:
        """Return the matching events by ascending `log_seq`, at most `limit` of them.

        Filters: trace_id, event_type, since_log_seq (exclusive), until_log_seq (inclusive),
        since_occurred_at (exclusive), until_occurred_at (inclusive).
        """
        log = self._for_tenant(tenant_id)
        with _READ_FIELD_NAMES.translate_errors():
            criteria = _log_filters(filters)
            if limit is not None:
                return _to_stored(log.page(limit=limit, scope="traces", **criteria).records)
            return _to_stored(chain.from_iterable(log.read_batches(scope="traces", **criteria)))

    @iterator_method
    def iter_event_batches(
        self,
        *,
        tenant_id: str | None = None,
        batch_size: int | None = None,
        limit: int | None = None,
        **filters: Unpack[TraceFilters],
    ) -> Iterator[list[StoredEvent]]:
        """Iterate over batches of matching events by ascending `log_seq`.

        The filters are those of `list_events`. The iteration ends after `limit` events, or at the
        head that the log has when the first batch is read.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise invalid_argument("limit", "must be a whole number from 1")
        log = self._for_tenant(tenant_id)
        with _BATCH_FIELD_NAMES.translate_errors():
            criteria = _log_filters(filters)
            batches = log.read_batches(batch_size=batch_size, scope="traces", **criteria)
        return _limit_batches(batches, limit)

    def get_last_log_seq(self, *, tenant_id: str | None = None) -> int:
        """Return the last `log_seq` of the whole log, or 0 if it is empty."""
        return self._for_tenant(tenant_id).head()

    def is_trace_finished(self, trace_id: str, *, tenant_id: str | None = None) -> bool:
        """Return whether a trace has its closing event, after which no event can follow."""
        last = _last_event(self._for_tenant(tenant_id), trace_id)
        return last is not None and last.event_type in TRACE_STREAM_KIND.closing_types

    def get_next_trace_seq(self, trace_id: str, *, tenant_id: str | None = None) -> int:
        """Return the `trace_seq` of the next event of a trace."""
        last = _last_event(self._for_tenant(tenant_id), trace_id)
        return TRACE_STREAM_KIND.first_seq if last is None else (last.stream_seq or 0) + 1

    def get_projection_cursor(
        self, projection_name: str, *, tenant_id: str | None = None
    ) -> ProjectionCursor | None:
        """Return the cursor of a projection, or None if it has none.

        Raises:
            LogIdentityChanged: The cursor belongs to another log, or to a history that a restore
                replaced.
        """
        log = self._for_tenant(tenant_id)
        name = check_name("projection_name", projection_name)
        found = log.store.cursor(log.tenant_id, "projection", name)
        if found is None:
            return None
        check_cursor(log.store, found, found.query)
        return to_projection_cursor(found)

    def put_projection_cursor(
        self,
        projection_name: str,
        last_log_seq: int,
        *,
        tenant_id: str | None = None,
        reset: bool = False,
    ) -> ProjectionCursor:
        """Store the cursor of a projection; it moves backwards only with `reset`."""
        log = self._for_tenant(tenant_id)
        name = check_name("projection_name", projection_name)
        known = log.store.cursor(log.tenant_id, "projection", name)
        query = "" if known is None else known.query
        with _CURSOR_FIELD_NAMES.translate_errors():
            moved = make_cursor(log.store, log.tenant_id, "projection", name, last_log_seq, query)
            if known is not None and not reset:
                check_cursor(log.store, known, known.query)
            log.store.put_cursor(moved, lease=None, reset=reset)
        return to_projection_cursor(log.store.cursor(log.tenant_id, "projection", name) or moved)

    def list_projection_cursors(self, *, tenant_id: str | None = None) -> list[ProjectionCursor]:
        """Return the cursors of all projections, by name."""
        log = self._for_tenant(tenant_id)
        return [to_projection_cursor(one) for one in log.store.cursors(log.tenant_id, "projection")]


def _stream(trace_id: str) -> StreamRef:
    return TRACE_STREAM_TYPE, check_name("trace_id", trace_id)


def _last_event(log: BaseLog, trace_id: str) -> EventRecord | None:
    return log.last_event(_stream(trace_id))


def _to_stored(records: Iterable[EventRecord]) -> list[StoredEvent]:
    return [to_stored_event(record) for record in records]


def _log_filters(filters: TraceFilters) -> dict[str, Any]:
    """Convert the profile's filters to those of the log."""
    for name in filters:
        if name not in TraceFilters.__annotations__:
            raise invalid_argument(name[:80], "is not a filter of traces")
    trace_id, event_type = filters.get("trace_id"), filters.get("event_type")
    since = filters.get("since_log_seq")
    return {
        "after": 0 if since is None else since,
        "until": filters.get("until_log_seq"),
        "stream": None if trace_id is None else _stream(trace_id),
        "types": None if event_type is None else [event_type],
        "occurred_after": filters.get("since_occurred_at"),
        "occurred_until": filters.get("until_occurred_at"),
    }


def _limit_batches(
    batches: Iterator[list[EventRecord]], limit: int | None
) -> Iterator[list[StoredEvent]]:
    left = limit
    for batch in batches:
        yield _to_stored(batch if left is None else batch[:left])
        if left is not None:
            left -= len(batch)
            if left <= 0:
                return

"""The aggregates profile: entities of a control plane, owned by organisations or shared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import EllipsisType
from typing import Any, Literal

from seriatim.core.event import DEFAULT_TENANT, INFRASTRUCTURE_TENANT, NewEvent, StreamRef
from seriatim.core.request import Command, ExpectedSeq
from seriatim.core.tenants import is_infrastructure
from seriatim.log.arguments import check_name, invalid_argument
from seriatim.log.base import BaseLog, Events
from seriatim.log.batches import Page
from seriatim.profiles.aggregate_values import (
    AGGREGATES_PROFILE,
    Aggregate,
    AggregateAppendResult,
    AggregateEvent,
    AggregatePage,
    event_error,
    event_fields,
    to_new_event,
)
from seriatim.profiles.base import AsyncProfile, FieldNames, PlannedAppend, Profile, append_method

__all__ = [
    "Aggregate",
    "AggregateAppendResult",
    "AggregateEvent",
    "AggregatePage",
    "Aggregates",
    "AsyncAggregates",
]

_EVENT_NAMES = FieldNames(
    {
        "event_id": "record_id",
        "stream": "aggregate_id",
        "stream_id": "aggregate_id",
        "stream_seq": "aggregate_seq",
        "stream_type": "aggregate_type",
        "tenant_id": "org_id",
        "condition.seq": "expected_seq",
    }
)
_READ_NAMES = {
    "after": "after_event_id",
    "until": "until_event_id",
    "stream": "aggregate_id",
    "since_seq": "after_aggregate_seq",
    "types": "event_type",
    "tenant_id": "org_id",
    "occurred_after": "since",
    "occurred_until": "until",
    "recorded_after": "since",
    "recorded_until": "until",
}
_READ_FIELD_NAMES = FieldNames(_READ_NAMES)

ExpectedSeqs = int | None | EllipsisType | Mapping[StreamRef, int | None]


class Aggregates(Profile):
    """Events of aggregates; an organisation is a tenant, infrastructure has a reserved tenant."""

    @append_method
    def append(
        self,
        events: Events,
        *,
        org_id: str | None = None,
        expected_seq: ExpectedSeqs = ...,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        actor_type: str | None = None,
        actor_id: str | None = None,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        app_id: str | None = None,
        env_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> PlannedAppend[AggregateAppendResult]:
        """Append the events of a command atomically.

        Args:
            events: The events; their fields override those from `aggregate_type` on.
            org_id: The organisation; leave it out for infrastructure.
            expected_seq: The expected last number, None for a new aggregate, by default any; for
                several aggregates, a mapping from `(type, id)` to numbers.
            command: The command; a duplicate returns the stored response.
            timeout: The timeout in seconds; None for the log's.
            connection: A database connection of the caller to append in.
            aggregate_type: The type of the aggregate.
            aggregate_id: The id of the aggregate.
            actor_type: The type of the actor.
            actor_id: The id of the actor.
            request_id: The id of the request.
            idempotency_key: A key under which the events are stored once; by default the command's.
            app_id: The application.
            env_id: The environment.
            correlation_id: The id that related events share.
            causation_id: The id of the event or command that caused the events.

        Raises:
            EventSequenceInvalid: An aggregate is not at its expected number.
            SeriatimError: The append is rejected or failed.

        Example:
            placed = NewEvent("OrderPlaced", {"total": 12}, stream=("order", "8"))
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            log.aggregates.append([placed], org_id="acme", expected_seq=None, **actor)
        """
        common = _common_fields(
            command,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            actor_type=actor_type,
            actor_id=actor_id,
            request_id=request_id,
            idempotency_key=idempotency_key,
            app_id=app_id,
            env_id=env_id,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        new_events = _to_new_events(events, common)
        log = self._log_for_append(org_id, new_events)
        condition = _to_conditions(expected_seq, new_events)
        draft = log.draft(AGGREGATES_PROFILE, new_events, condition, command=command)
        finish, names = AggregateAppendResult, _EVENT_NAMES
        return PlannedAppend(log, draft, finish, names, timeout=timeout, connection=connection)

    def load(
        self,
        aggregate_type: str,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> Aggregate:
        """Return an aggregate with its events by ascending `aggregate_seq`.

        The events are empty if the aggregate does not exist.

        Args:
            aggregate_type: The type of the aggregate.
            aggregate_id: The id of the aggregate.
            org_id: The organisation; leave it out for infrastructure.
            after_aggregate_seq: Only events with a greater `aggregate_seq`.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            order = log.aggregates.load("order", "7", org_id="acme")
            print(order.aggregate_seq, [event.event_type for event in order.events])
        """
        kind = check_name("aggregate_type", aggregate_type)
        infrastructure = org_id is None and self._is_infrastructure(kind)
        log = self._log_for_read(org_id, infrastructure)
        stream = kind, check_name("aggregate_id", aggregate_id)
        with _READ_FIELD_NAMES.translate_errors():
            records = list(log.read_stream(stream, since=after_aggregate_seq))
        seq = records[-1].stream_seq if records else None
        if not records and after_aggregate_seq is not None:
            last = log.last_event(stream)
            seq = None if last is None else last.stream_seq
        return Aggregate(kind, aggregate_id, seq, [AggregateEvent.of(record) for record in records])

    def read(
        self,
        after_event_id: int = 0,
        limit: int | None = None,
        *,
        org_id: str | None = None,
        infrastructure: bool = False,
        until_event_id: int | None = None,
        event_type: str | Sequence[str] | None = None,
        app_id: str | None = None,
        env_id: str | None = None,
    ) -> AggregatePage:
        """Return one page of an organisation's events after a cursor, by ascending `event_id`.

        Args:
            after_event_id: The cursor: the `last_event_id` of the previous page.
            limit: The maximum number of events; None for the limit `page`.
            org_id: The organisation.
            infrastructure: Whether to read the events of infrastructure instead.
            until_event_id: The inclusive end.
            event_type: Only these event types, or patterns such as `route.*`.
            app_id: Only events of this application.
            env_id: Only events of this environment.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            page = log.aggregates.read(org_id="acme", event_type="OrderPlaced")
            following = log.aggregates.read(page.last_event_id, org_id="acme")
        """
        log = self._log_for_read(org_id, infrastructure)
        with _READ_FIELD_NAMES.translate_errors():
            page = log.page(
                limit=limit,
                scope="aggregates",
                after=after_event_id,
                until=until_event_id,
                types=_to_types(event_type),
                app_id=app_id,
                env_id=env_id,
            )
        return _to_aggregate_page(page)

    def audit(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        clock: Literal["occurred_at", "recorded_at"] = "occurred_at",
        after_event_id: int = 0,
        limit: int | None = None,
        org_id: str | None = None,
        infrastructure: bool = False,
        until_event_id: int | None = None,
        event_type: str | Sequence[str] | None = None,
        app_id: str | None = None,
        env_id: str | None = None,
    ) -> AggregatePage:
        """Return one page of the events in a time window, by ascending `event_id`.

        Args:
            since: The exclusive start time; None for the beginning of the log.
            until: The inclusive end time; None for no end.
            clock: The time that is compared: `occurred_at` or `recorded_at`.
            after_event_id: The cursor: the `last_event_id` of the previous page.
            limit: The maximum number of events; None for the limit `page`.
            org_id: The organisation.
            infrastructure: Whether to read the events of infrastructure instead.
            until_event_id: The inclusive end of the ids.
            event_type: Only these event types, or patterns such as `route.*`.
            app_id: Only events of this application.
            env_id: Only events of this environment.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            page = log.aggregates.audit(org_id="acme", since="2026-11-01T00:00:00Z")
        """
        if clock not in ("occurred_at", "recorded_at"):
            raise invalid_argument("clock", "must be occurred_at or recorded_at")
        occurred = (since, until) if clock == "occurred_at" else (None, None)
        recorded = (since, until) if clock == "recorded_at" else (None, None)
        log = self._log_for_read(org_id, infrastructure)
        with _READ_FIELD_NAMES.translate_errors():
            page = log.page(
                limit=limit,
                scope="aggregates",
                after=after_event_id,
                until=until_event_id,
                types=_to_types(event_type),
                app_id=app_id,
                env_id=env_id,
                occurred_after=occurred[0],
                occurred_until=occurred[1],
                recorded_after=recorded[0],
                recorded_until=recorded[1],
            )
        return _to_aggregate_page(page)

    @cached_property
    def aio(self) -> AsyncAggregates:
        """The same methods for asyncio, as coroutines."""
        return AsyncAggregates(self)

    def _log_for_append(self, org_id: str | None, events: Any) -> BaseLog:
        """Return the log of the organisation of the events, which must be named."""
        new_events = events if isinstance(events, list) else []
        owner = org_id or next((event.tenant_id for event in new_events if event.tenant_id), None)
        owned = self._list_owned(new_events)
        if owner is not None or not new_events:
            if len(owned) < len(new_events):
                raise invalid_argument(
                    "org_id", "must be left out: infrastructure belongs to no organisation"
                )
            return self._log_for_read(owner, infrastructure=False)
        if owned and self._log.tenant_id == DEFAULT_TENANT:
            self._log.appender.reload_rules()  # another process may have declared the kind
            owned = self._list_owned(new_events)
            if owned:
                raise event_error("org_id", "is required", owned[0])
        return self._log if owned else self._log_for_read(None, infrastructure=True)

    def _list_owned(self, events: list[NewEvent]) -> list[int]:
        """Return the indexes of the events whose aggregate belongs to an organisation."""
        kinds = [event.stream[0] for event in events if event.stream is not None]
        return [index for index, kind in enumerate(kinds) if not self._is_infrastructure(kind)]

    def _log_for_read(self, org_id: str | None, infrastructure: bool) -> BaseLog:
        if org_id is not None and is_infrastructure(org_id):
            raise invalid_argument("org_id", "is reserved for infrastructure")
        if infrastructure:
            if org_id is not None:
                raise invalid_argument(
                    "org_id", "must be left out: infrastructure belongs to no organisation"
                )
            return self._log.for_tenant(INFRASTRUCTURE_TENANT)
        with _READ_FIELD_NAMES.translate_errors():
            return self._for_tenant(org_id)

    def _is_infrastructure(self, aggregate_type: str) -> bool:
        return self._log.appender.rules.kind_of(aggregate_type).infrastructure


class AsyncAggregates(AsyncProfile[Aggregates]):
    """The aggregates profile for asyncio; parameters and results are those of `Aggregates`."""

    async def append(
        self,
        events: Events,
        *,
        org_id: str | None = None,
        expected_seq: ExpectedSeqs = ...,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        actor_type: str | None = None,
        actor_id: str | None = None,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        app_id: str | None = None,
        env_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> AggregateAppendResult:
        """Append the events of a command atomically; see `Aggregates.append`.

        Example:
            event = NewEvent("OrderPlaced", {"total": 12}, stream=("order", "7"))
            result = await log.aggregates.aio.append(
                [event], org_id="acme", actor_type="user", actor_id="u-1", request_id="r-1"
            )
        """
        return await self._append(
            Aggregates.append,
            events,
            org_id=org_id,
            expected_seq=expected_seq,
            command=command,
            timeout=timeout,
            connection=connection,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            actor_type=actor_type,
            actor_id=actor_id,
            request_id=request_id,
            idempotency_key=idempotency_key,
            app_id=app_id,
            env_id=env_id,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )

    async def load(
        self,
        aggregate_type: str,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> Aggregate:
        """Return an aggregate with its events; see `Aggregates.load`.

        Example:
            order = await log.aggregates.aio.load("order", "7", org_id="acme")
        """
        return await asyncio.to_thread(
            self._profile.load,
            aggregate_type,
            aggregate_id,
            org_id=org_id,
            after_aggregate_seq=after_aggregate_seq,
        )

    async def read(
        self,
        after_event_id: int = 0,
        limit: int | None = None,
        *,
        org_id: str | None = None,
        infrastructure: bool = False,
        until_event_id: int | None = None,
        event_type: str | Sequence[str] | None = None,
        app_id: str | None = None,
        env_id: str | None = None,
    ) -> AggregatePage:
        """Return one page of an organisation's events after a cursor; see `Aggregates.read`.

        Example:
            page = await log.aggregates.aio.read(org_id="acme", limit=100)
        """
        return await asyncio.to_thread(
            self._profile.read,
            after_event_id,
            limit,
            org_id=org_id,
            infrastructure=infrastructure,
            until_event_id=until_event_id,
            event_type=event_type,
            app_id=app_id,
            env_id=env_id,
        )

    async def audit(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        clock: Literal["occurred_at", "recorded_at"] = "occurred_at",
        after_event_id: int = 0,
        limit: int | None = None,
        org_id: str | None = None,
        infrastructure: bool = False,
        until_event_id: int | None = None,
        event_type: str | Sequence[str] | None = None,
        app_id: str | None = None,
        env_id: str | None = None,
    ) -> AggregatePage:
        """Return one page of the events in a time window; see `Aggregates.audit`.

        Example:
            page = await log.aggregates.aio.audit(org_id="acme", since="2026-11-01T00:00:00Z")
        """
        return await asyncio.to_thread(
            self._profile.audit,
            since=since,
            until=until,
            clock=clock,
            after_event_id=after_event_id,
            limit=limit,
            org_id=org_id,
            infrastructure=infrastructure,
            until_event_id=until_event_id,
            event_type=event_type,
            app_id=app_id,
            env_id=env_id,
        )


def _common_fields(command: Command | None, **fields: str | None) -> Mapping[str, str]:
    """Return the fields that are set, with the key of the command as the default key."""
    common = {name: value for name, value in fields.items() if value is not None}
    if isinstance(command, Command):
        common.setdefault("idempotency_key", command.key)
    return common


def _to_new_events(events: Events, common: Mapping[str, Any]) -> Any:
    """Build the log's events; the append itself rejects an argument that is not a list."""
    if isinstance(events, NewEvent | Mapping | str) or not isinstance(events, Iterable):
        return events
    return [
        to_new_event({**common, **event_fields(event, index)}, index)
        for index, event in enumerate(events)
    ]


def _to_conditions(expected: ExpectedSeqs, events: Any) -> list[ExpectedSeq] | None:
    if isinstance(expected, EllipsisType) or not isinstance(events, list):
        return None
    if isinstance(expected, Mapping):
        return [ExpectedSeq(stream, seq) for stream, seq in expected.items()]
    streams = {event.stream for event in events}
    if len(streams) > 1:
        raise invalid_argument(
            "expected_seq", "must map (type, id) to numbers for several aggregates"
        )
    return [ExpectedSeq(stream, expected) for stream in streams]


def _to_types(event_type: str | Sequence[str] | None) -> Sequence[str] | None:
    return [event_type] if isinstance(event_type, str) else event_type


def _to_aggregate_page(page: Page) -> AggregatePage:
    return AggregatePage([AggregateEvent.of(record) for record in page.records], page.last_scanned)

"""The aggregates profile: entities of a control plane, owned by organisations or shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, TypedDict, Unpack

from seriatim.core.event import DEFAULT_TENANT, INFRASTRUCTURE_TENANT, NewEvent, StreamRef
from seriatim.core.profile_rules import AGGREGATES_PROFILE
from seriatim.core.request import Command, ExpectedSeq
from seriatim.core.tenants import is_infrastructure
from seriatim.log.arguments import check_name, invalid_argument
from seriatim.log.base import BaseLog, Events
from seriatim.profiles.aggregate_values import (
    Aggregate,
    AggregateAppendResult,
    AggregateEvent,
    AggregateEventFields,
    AggregatePage,
    event_error,
    event_fields,
    to_new_event,
)
from seriatim.profiles.base import FieldNames, PlannedAppend, Profile, append_method

__all__ = [
    "Aggregate",
    "AggregateAppendResult",
    "AggregateEvent",
    "AggregateEventFields",
    "AggregateFilters",
    "AggregatePage",
    "Aggregates",
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


class AggregateFilters(TypedDict, total=False):
    """The filters of `read` and `audit`."""

    until_event_id: int | None
    event_type: str | Sequence[str] | None
    app_id: str | None
    env_id: str | None


class Aggregates(Profile):
    """Events of aggregates; an organisation is a tenant, infrastructure has a reserved tenant."""

    @append_method
    def append(  # noqa: PLR0913 - a command, its conditions and options
        self,
        events: Events,
        *,
        org_id: str | None = None,
        expected_seq: ExpectedSeqs = ...,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
        **common: Unpack[AggregateEventFields],
    ) -> PlannedAppend[AggregateAppendResult]:
        """Append the events of a command atomically.

        Args:
            events: The events, as mappings or `NewEvent` objects.
            org_id: The organisation; leave it out for infrastructure.
            expected_seq: The expected last number of the aggregate, None for one that must not
                exist; by default nothing is expected. For several aggregates, a mapping from
                `(type, id)` to numbers.
            command: The command. A duplicate returns the stored response, and its key becomes the
                idempotency key of the events.
            timeout: The timeout in seconds; None for the log's.
            connection: A database connection of the caller to append in.
            **common: Fields for all events, which an event can override.

        Raises:
            EventSequenceInvalid: An aggregate is not at its expected number.
            SeriatimError: The append is rejected or failed.
        """
        new_events = _to_new_events(events, _common_fields(common, command))
        log = self._log_for_append(org_id, new_events)
        condition = _expectations(expected_seq, new_events)
        return PlannedAppend(
            log,
            log.draft(AGGREGATES_PROFILE, new_events, condition, command=command),
            AggregateAppendResult,
            _EVENT_NAMES,
            timeout=timeout,
            connection=connection,
        )

    def load(
        self,
        aggregate_type: str,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> Aggregate:
        """Return an aggregate with its events by ascending `aggregate_seq`.

        The events are empty if the aggregate does not exist. With `after_aggregate_seq` only later
        events are returned.
        """
        kind = check_name("aggregate_type", aggregate_type)
        infrastructure = org_id is None and self._is_infrastructure(kind)
        log = self._log_for_read(org_id, infrastructure)
        stream = kind, check_name("aggregate_id", aggregate_id)
        with _READ_FIELD_NAMES.translate_errors():
            found = list(log.read_stream(stream, since=after_aggregate_seq))
        seq = found[-1].stream_seq if found else None
        if not found and after_aggregate_seq is not None:
            last = log.last_event(stream)
            seq = None if last is None else last.stream_seq
        return Aggregate(kind, aggregate_id, seq, [AggregateEvent.of(one) for one in found])

    def read(
        self,
        after_event_id: int = 0,
        limit: int | None = None,
        *,
        org_id: str | None = None,
        infrastructure: bool = False,
        **filters: Unpack[AggregateFilters],
    ) -> AggregatePage:
        """Return one page of an organisation's events after a cursor, by ascending `event_id`."""
        log = self._log_for_read(org_id, infrastructure)
        return _page(log, after_event_id, limit, filters, {})

    def audit(  # noqa: PLR0913 - a time window and the arguments of a read
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        clock: Literal["occurred_at", "recorded_at"] = "occurred_at",
        after_event_id: int = 0,
        limit: int | None = None,
        org_id: str | None = None,
        infrastructure: bool = False,
        **filters: Unpack[AggregateFilters],
    ) -> AggregatePage:
        """Return one page of the events in a time window, by ascending `event_id`.

        `since` is exclusive and `until` inclusive; `clock` selects the time that is compared.
        """
        if clock not in ("occurred_at", "recorded_at"):
            raise invalid_argument("clock", "must be occurred_at or recorded_at")
        name = clock.removesuffix("_at")
        window = {f"{name}_after": since, f"{name}_until": until}
        log = self._log_for_read(org_id, infrastructure)
        return _page(log, after_event_id, limit, filters, window)

    def _log_for_append(self, org_id: str | None, events: Any) -> BaseLog:
        """Return the log of the organisation of the events, which must be named."""
        new_events = events if isinstance(events, list) else []
        org = org_id or next((one.tenant_id for one in new_events if one.tenant_id), None)
        owned = self._owned_by_organisations(new_events)
        if org is not None or not new_events:
            if len(owned) < len(new_events):
                raise invalid_argument(
                    "org_id", "must be left out: infrastructure belongs to no organisation"
                )
            return self._log_for_read(org, infrastructure=False)
        if owned and self._log.tenant_id == DEFAULT_TENANT:
            self._log.appender.reload_rules()  # another process may have declared the kind
            owned = self._owned_by_organisations(new_events)
            if owned:
                raise event_error("org_id", "is required", owned[0])
        return self._log if owned else self._log_for_read(None, infrastructure=True)

    def _owned_by_organisations(self, events: list[NewEvent]) -> list[int]:
        """Return the indexes of the events whose aggregate belongs to an organisation."""
        kinds = [one.stream[0] for one in events if one.stream is not None]
        return [i for i, kind in enumerate(kinds) if not self._is_infrastructure(kind)]

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


def _common_fields(fields: AggregateEventFields, command: Command | None) -> dict[str, Any]:
    common = {name: value for name, value in fields.items() if value is not None}
    for name in common:
        if name not in AggregateEventFields.__annotations__:
            raise invalid_argument(name[:80], "is not a common field of events")
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


def _expectations(expected: ExpectedSeqs, events: Any) -> list[ExpectedSeq] | None:
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


def _page(
    log: BaseLog,
    after_event_id: int,
    limit: int | None,
    filters: AggregateFilters,
    window: Mapping[str, str | None],
) -> AggregatePage:
    for name in filters:
        if name not in AggregateFilters.__annotations__:
            raise invalid_argument(name[:80], "is not a filter of aggregates")
    types = filters.get("event_type")
    with _READ_FIELD_NAMES.translate_errors():
        page = log.page(
            limit=limit,
            scope="aggregates",
            after=after_event_id,
            until=filters.get("until_event_id"),
            types=[types] if isinstance(types, str) else types,
            app_id=filters.get("app_id"),
            env_id=filters.get("env_id"),
            **window,
        )
    return AggregatePage([AggregateEvent.of(one) for one in page.records], page.last_scanned)

"""The aggregates profile: entities of a control plane, owned by organisations or shared."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Unpack, overload

from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.core.request import Command
from seriatim.log.arguments import check_name, invalid_argument
from seriatim.log.base import BaseLog, Events
from seriatim.log.batches import Page
from seriatim.log.decision import conflict_pause_s
from seriatim.profiles.aggregate_class import Aggregate, AggregateT, check_aggregate_class
from seriatim.profiles.aggregate_commands import (
    CONFLICTS,
    AggregateCommand,
    AsyncAggregateCommand,
    finish_save,
    make_execution,
    plan_save,
)
from seriatim.profiles.aggregate_scope import AggregateScope
from seriatim.profiles.aggregate_values import (
    AGGREGATES_PROFILE,
    EVENT_NAMES,
    READ_FIELD_NAMES,
    AggregateAppendResult,
    AggregateEvent,
    AggregateHistory,
    AggregatePage,
    ExpectedSeqs,
    RequestFields,
    to_conditions,
    to_new_events,
)
from seriatim.profiles.base import AsyncProfile, PlannedAppend, Profile, append_method
from seriatim.profiles.snapshots import SnapshotProof, verify_snapshot

__all__ = [
    "AggregateAppendResult",
    "AggregateEvent",
    "AggregateHistory",
    "AggregatePage",
    "Aggregates",
    "AsyncAggregates",
]


class Aggregates(Profile):
    """Events of aggregates; an organisation is a tenant, infrastructure has a reserved tenant.

    `append`, `load`, `read` and `audit` work with events. `load`, `save` and `execute` work with
    subclasses of `seriatim.Aggregate`, too.
    """

    def __init__(self, log: BaseLog, scope: AggregateScope | None = None) -> None:
        super().__init__(log)
        self.scope = scope or AggregateScope(log, {})

    def for_request(self, **fields: Unpack[RequestFields]) -> Aggregates:
        """Return this profile with the fields of a request, which its calls then need not repeat.

        Args:
            **fields: The organisation, the actor, the request id and others.

        Example:
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            orders = log.aggregates.for_request(org_id="acme", **actor)
            orders.append([NewEvent("order.placed", {"total": 12}, stream=("order", "8"))])
            print(orders.load("order", "8").aggregate_seq)
        """
        return Aggregates(self._log, self.scope.with_fields(fields))

    def snapshots_at(self, url: str) -> Aggregates:
        """Return this profile with its snapshots in the read model at a URL.

        By default they are in the default read model of the log. The log of a service has none.

        Args:
            url: The URL of a read model, `sqlite:///file` or `postgresql://…`.

        Example:
            aggregates = log.aggregates.snapshots_at("sqlite:///snapshots.db")
        """
        return Aggregates(self._log, self.scope.with_snapshots(url))

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
        common = self.scope.join_fields(
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
        new_events = to_new_events(events, common)
        log = self.scope.find_log_for_append(org_id, new_events)
        condition = to_conditions(expected_seq, new_events)
        draft = log.draft(AGGREGATES_PROFILE, new_events, condition, command=command)
        finish, names = AggregateAppendResult, EVENT_NAMES
        return PlannedAppend(log, draft, finish, names, timeout=timeout, connection=connection)

    @overload
    def load(
        self, aggregate_type: type[AggregateT], aggregate_id: str, *, org_id: str | None = None
    ) -> AggregateT: ...
    @overload
    def load(
        self,
        aggregate_type: str,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> AggregateHistory: ...
    def load(
        self,
        aggregate_type: Any,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> Any:
        """Return an aggregate with its state, or with its events by ascending `aggregate_seq`.

        The state is the first one, or the events are empty, if the aggregate does not exist.

        Args:
            aggregate_type: A subclass of `Aggregate`, for its state; a type, for the events.
            aggregate_id: The id of the aggregate.
            org_id: The organisation; leave it out for infrastructure.
            after_aggregate_seq: Only events with a greater `aggregate_seq`.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            order = log.aggregates.load("order", "7", org_id="acme")
            print(order.aggregate_seq, [event.event_type for event in order.events])
        """
        if not isinstance(aggregate_type, str):
            if after_aggregate_seq is not None:
                raise invalid_argument("after_aggregate_seq", "is for loading events only")
            return self._load_state(aggregate_type, aggregate_id, org_id)
        kind = check_name("aggregate_type", aggregate_type)
        log = self.scope.find_log(kind, org_id)
        stream = kind, check_name("aggregate_id", aggregate_id)
        with READ_FIELD_NAMES.translate_errors():
            records = list(log.read_stream(stream, since=after_aggregate_seq))
        seq = records[-1].stream_seq if records else None
        if not records and after_aggregate_seq is not None:
            last = log.last_event(stream)
            seq = None if last is None else last.stream_seq
        events = [AggregateEvent.of(record) for record in records]
        return AggregateHistory(kind, aggregate_id, seq, events)

    def _load_state(
        self, aggregate_class: type[AggregateT], aggregate_id: str, org_id: str | None
    ) -> AggregateT:
        check_aggregate_class(aggregate_class)
        log = self.scope.find_log(aggregate_class.stream_type, org_id)
        aggregate = aggregate_class(check_name("aggregate_id", aggregate_id))
        infrastructure = log.tenant_id == INFRASTRUCTURE_TENANT
        aggregate.org_id = self.scope.find_org(org_id, infrastructure)
        with READ_FIELD_NAMES.translate_errors():
            return self.scope.find_snapshots(log).load(aggregate)

    def save(
        self,
        aggregate: Aggregate[Any],
        *,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
        **fields: Unpack[RequestFields],
    ) -> AggregateAppendResult | None:
        """Append the new events of an aggregate, if it has not changed since it was loaded.

        Repeat it after an ambiguous failure: the same events are stored once.

        Args:
            aggregate: The aggregate.
            command: The command; a duplicate returns the stored response.
            timeout: The timeout in seconds; None for the log's.
            connection: A database connection of the caller to append in. If its transaction is
                rolled back, load the aggregate again.
            **fields: The organisation, the actor, the request id and others of the events, as far
                as `for_request` has not set them.

        Returns:
            The receipt, or None if there are no new events.

        Raises:
            EventSequenceInvalid: The aggregate has changed: load it again.
            Conflict: The aggregate is closed, or the object has a defect.
            SeriatimError: The append is rejected or failed.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order"):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

            order = log.aggregates.load(Order, "8")
            order.record("order.placed", {"total": 12})
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            log.aggregates.save(order, org_id="acme", **actor)
        """
        plan = plan_save(self.scope, aggregate, command, timeout, connection, fields)
        if plan is None:
            return None
        result = plan.run()
        finish_save(self.scope, aggregate, result, connection)
        return result

    def execute(
        self,
        aggregate_class: type[AggregateT],
        aggregate_id: str,
        decide: AggregateCommand[AggregateT],
        *,
        attempts: int = 10,
        command: Command | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        **fields: Unpack[RequestFields],
    ) -> AggregateAppendResult | None:
        """Load an aggregate, call `decide` with it and save it; on a conflict, begin again.

        Args:
            aggregate_class: The subclass of `Aggregate`.
            aggregate_id: The id of the aggregate.
            decide: Calls a method that records events; it may be called several times.
            attempts: How often to load, decide and save before a conflict is raised.
            command: A command under which a retry returns the first receipt, with its response,
                without calling `decide`.
            idempotency_key: The key of such a command of the actor on this aggregate.
            timeout: The timeout of each append in seconds; None for the log's.
            **fields: The organisation, the actor, the request id and others, as for `save`.

        Returns:
            The receipt, or None if no events were recorded.

        Raises:
            EventSequenceInvalid: The aggregate changed at every attempt.
            IdempotencyKeyReuse: The key of the command was used for another request.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order"):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

                def place(self, total):
                    self.record("order.placed", {"total": total})

            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            orders = log.aggregates.for_request(org_id="acme", **actor)
            orders.execute(Order, "8", lambda order: order.place(12))
        """
        execution = make_execution(
            self.scope,
            self.load,
            aggregate_class,
            aggregate_id,
            attempts=attempts,
            command=command,
            idempotency_key=idempotency_key,
            fields=fields,
        )
        for attempt in range(attempts):
            aggregate, receipt = execution.load()
            if receipt is not None:
                return receipt
            decide(aggregate)
            try:
                result = self.save(aggregate, command=execution.command, timeout=timeout, **fields)
            except CONFLICTS:
                if (receipt := execution.find()) is not None:
                    return receipt
                if execution.is_over(attempt):
                    raise
                time.sleep(conflict_pause_s(attempt))
            else:
                return result
        return None

    def verify_snapshot(
        self, aggregate_class: type[Aggregate[Any]], aggregate_id: str, *, org_id: str | None = None
    ) -> SnapshotProof:
        """Compare the snapshot of an aggregate with a fold of all its events; change nothing.

        Args:
            aggregate_class: The subclass of `Aggregate`.
            aggregate_id: The id of the aggregate.
            org_id: The organisation; leave it out for infrastructure.

        Raises:
            NotFound: There is no snapshot.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order", snapshot_every=1):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            orders = log.aggregates.for_request(org_id="acme", **actor)
            placed = NewEvent("order.placed", {"total": 12})
            orders.execute(Order, "8", lambda order: order.record(placed))
            assert orders.verify_snapshot(Order, "8").equal
        """
        check_aggregate_class(aggregate_class)
        aggregate = aggregate_class(check_name("aggregate_id", aggregate_id))
        log = self.scope.find_log(aggregate_class.stream_type, org_id)
        snapshot = self.scope.find_snapshots(log).find(aggregate)
        return verify_snapshot(log, aggregate_class, snapshot, aggregate_id)

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
        log = self.scope.find_log_of(self.scope.find_org(org_id, infrastructure), infrastructure)
        with READ_FIELD_NAMES.translate_errors():
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
        log = self.scope.find_log_of(self.scope.find_org(org_id, infrastructure), infrastructure)
        with READ_FIELD_NAMES.translate_errors():
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

    def for_request(self, **fields: Unpack[RequestFields]) -> AsyncAggregates:
        """Return this profile with the fields of a request; see `Aggregates.for_request`.

        Example:
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            orders = log.aggregates.aio.for_request(org_id="acme", **actor)
            await orders.append([NewEvent("order.placed", {"total": 12}, stream=("order", "8"))])
        """
        return AsyncAggregates(self._profile.for_request(**fields))

    def snapshots_at(self, url: str) -> AsyncAggregates:
        """Return this profile with its snapshots at a URL; see `Aggregates.snapshots_at`.

        Example:
            aggregates = log.aggregates.aio.snapshots_at("sqlite:///snapshots.db")
        """
        return AsyncAggregates(self._profile.snapshots_at(url))

    @overload
    async def load(
        self, aggregate_type: type[AggregateT], aggregate_id: str, *, org_id: str | None = None
    ) -> AggregateT: ...
    @overload
    async def load(
        self,
        aggregate_type: str,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> AggregateHistory: ...
    async def load(
        self,
        aggregate_type: Any,
        aggregate_id: str,
        *,
        org_id: str | None = None,
        after_aggregate_seq: int | None = None,
    ) -> Any:
        """Return an aggregate with its state, or with its events; see `Aggregates.load`.

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

    async def save(
        self,
        aggregate: Aggregate[Any],
        *,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
        **fields: Unpack[RequestFields],
    ) -> AggregateAppendResult | None:
        """Append the new events of an aggregate; see `Aggregates.save`.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order"):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

            order = await log.aggregates.aio.load(Order, "8")
            order.record("order.placed", {"total": 12})
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            await log.aggregates.aio.save(order, org_id="acme", **actor)
        """
        plan = plan_save(self._profile.scope, aggregate, command, timeout, connection, fields)
        if plan is None:
            return None
        result = await plan.run_async()
        await asyncio.to_thread(finish_save, self._profile.scope, aggregate, result, connection)
        return result

    async def execute(
        self,
        aggregate_class: type[AggregateT],
        aggregate_id: str,
        decide: AsyncAggregateCommand[AggregateT],
        *,
        attempts: int = 10,
        command: Command | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        **fields: Unpack[RequestFields],
    ) -> AggregateAppendResult | None:
        """Load an aggregate, call `decide` with it and save it; see `Aggregates.execute`.

        `decide` may be a coroutine function.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order"):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

            placed = NewEvent("order.placed", {"total": 12})
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            orders = log.aggregates.aio.for_request(org_id="acme", **actor)
            await orders.execute(Order, "8", lambda order: order.record(placed))
        """
        execution = make_execution(
            self._profile.scope,
            self._profile.load,
            aggregate_class,
            aggregate_id,
            attempts=attempts,
            command=command,
            idempotency_key=idempotency_key,
            fields=fields,
        )
        for attempt in range(attempts):
            aggregate, receipt = await asyncio.to_thread(execution.load)
            if receipt is not None:
                return receipt
            if inspect.isawaitable(decided := decide(aggregate)):
                await decided
            try:
                return await self.save(
                    aggregate, command=execution.command, timeout=timeout, **fields
                )
            except CONFLICTS:
                receipt = await asyncio.to_thread(execution.find)
                if receipt is not None:
                    return receipt
                if execution.is_over(attempt):
                    raise
                await asyncio.sleep(conflict_pause_s(attempt))
        return None

    async def verify_snapshot(
        self, aggregate_class: type[Aggregate[Any]], aggregate_id: str, *, org_id: str | None = None
    ) -> SnapshotProof:
        """Compare the snapshot of an aggregate with a fold; see `Aggregates.verify_snapshot`.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order", snapshot_every=1):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

            placed = NewEvent("order.placed", {"total": 12})
            actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
            orders = log.aggregates.aio.for_request(org_id="acme", **actor)
            await orders.execute(Order, "8", lambda order: order.record(placed))
            assert (await orders.verify_snapshot(Order, "8")).equal
        """
        return await asyncio.to_thread(
            self._profile.verify_snapshot, aggregate_class, aggregate_id, org_id=org_id
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


def _to_types(event_type: str | Sequence[str] | None) -> Sequence[str] | None:
    return [event_type] if isinstance(event_type, str) else event_type


def _to_aggregate_page(page: Page) -> AggregatePage:
    return AggregatePage([AggregateEvent.of(record) for record in page.records], page.last_scanned)

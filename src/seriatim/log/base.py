"""The synchronous log of one tenant: append, read, query, declare, follow."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, Self, Unpack

from msgspec.structs import replace

from seriatim.config import Settings
from seriatim.core.errors import NotFound
from seriatim.core.event import (
    DEFAULT_TENANT,
    AppendResult,
    EventRecord,
    LogIdentity,
    NewEvent,
    StreamRef,
)
from seriatim.core.explanation import Explanation
from seriatim.core.guard import DEFAULT_GUARD, Guard
from seriatim.core.handler import OnPoison, RetryPolicy
from seriatim.core.kinds import Declaration
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules
from seriatim.core.query import MATCH_ALL, Query, check_query
from seriatim.core.request import Command, Condition, check_stream_ref
from seriatim.core.tenants import check_tenant
from seriatim.log.appender import Appender, Draft
from seriatim.log.arguments import (
    ReadFilters,
    check_count,
    check_declaration,
    check_name,
    check_position,
    check_timeout,
    invalid_argument,
    is_async,
    list_read_filters,
    make_read_spec,
    make_type_range,
)
from seriatim.log.batches import Page, limit_batches
from seriatim.log.catalogue import Catalogue
from seriatim.log.explanation import explain_draft
from seriatim.log.failure_policy import BACKOFF_CAP_S, BACKOFF_S, make_failure_policy
from seriatim.log.lookup import find_stored_by_command, find_stored_by_key, make_receipt
from seriatim.log.projections import Projections, ReadModelConnections
from seriatim.log.query_execution import QueryRange, QueryResult, run_query
from seriatim.log.span_attributes import query_attributes, read_attributes
from seriatim.log.subscription import Subscription, Tail
from seriatim.log.subscriptions import Subscriptions
from seriatim.store.common import is_page_full
from seriatim.store.port import (
    EVENT_TYPES_MAX,
    EventTypeCount,
    ReadSpec,
    Store,
    StreamSummary,
)
from seriatim.telemetry import tracer
from seriatim.telemetry.event_bus import Telemetry

Events = Iterable[NewEvent | Mapping[str, Any]]

_COMMAND_HOURS_MIN = 24  # contract C5: a command can be retried for at least a day

# Weak: a log that its program has dropped must not be kept alive for a fork that may never come.
_OPEN_LOGS: weakref.WeakSet[BaseLog] = weakref.WeakSet()


class BaseLog:
    """A log as one tenant uses it; `seriatim.open` returns a subclass with the profiles."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Settings | None = None,
        guard: Guard = DEFAULT_GUARD,
        tenant_id: str = DEFAULT_TENANT,
        read_models: ReadModelConnections | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or Settings()
        self.tenant_id = check_tenant(tenant_id)
        self.telemetry = Telemetry()
        self.appender = Appender(store, self.settings, guard, self.telemetry)
        self.catalogue = Catalogue(self)
        self.read_models = read_models or ReadModelConnections(lambda _: None, None)
        self._parent: BaseLog | None = None
        # Weak: a follower that its consumer has dropped no longer counts towards the limit.
        self._followers: weakref.WeakSet[Subscription | Tail] = weakref.WeakSet()
        _OPEN_LOGS.add(self)

    def for_tenant(self, tenant_id: str) -> Self:
        """Return this log for another tenant; both share connections and committer.

        Raises:
            InvalidArgument: The tenant id is malformed.

        Example:
            acme = log.for_tenant("acme")
            acme.append([NewEvent("order.placed", {"total": 12})])
        """
        view = type(self).__new__(type(self))
        # Keep the parent alive: after a fork only logs that still exist get new connections.
        view.__dict__.update(self.__dict__, _parent=self)
        view.tenant_id = check_tenant(tenant_id)
        return view

    # -- append

    def append(
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> AppendResult:
        """Append a batch of events atomically and return its receipt.

        Args:
            events: `NewEvent` values, or mappings with the same fields.
            condition: One or several conditions that must hold, or nothing is stored.
            idempotency_key: A key under which the append is stored once per producer; repeating
                the append returns the receipt of the first.
            command: A command whose response is stored with the append.
            timeout: Seconds; by default the setting `timeout_s`.
            connection: A psycopg connection (Postgres only). The append is then part of the
                caller's transaction, and the log's lock is held until the caller commits.

        Returns:
            The receipt, with the positions of the events and whether it is a replay.

        Raises:
            InvalidEvent: An event is malformed; other subclasses of `SeriatimError` report schema
                violations, refused data and exceeded limits.
            ConditionalAppendConflict: A context is not as expected.
            EventSequenceInvalid: A stream does not have the expected sequence number.
            BackendFailure: The store failed. If `details["ambiguous"]` is true, the append may be
                stored: repeat it with the same key or event ids.

        Example:
            event = NewEvent("seat.booked", {"seat": "12A"}, stream=("flight", "LH1"))
            receipt = log.append([event], ExpectedSeq(("flight", "LH1"), None))
            print(receipt.first_position, receipt.replayed)
        """
        draft = self.draft(LOG_PROFILE, events, condition, idempotency_key, command)
        return self.append_draft(draft, timeout=timeout, connection=connection)

    def draft(
        self,
        profile_rules: ProfileRules,
        events: Events,
        condition: Any = None,
        idempotency_key: str | None = None,
        command: Command | None = None,
    ) -> Draft:
        """Return an append that is not validated yet, under the rules of a profile."""
        # An iterator could be read only once, and a draft may have to be validated again.
        reusable = list(events) if isinstance(events, Iterator) else events
        return Draft(
            tenant_id=self.tenant_id,
            profile_rules=profile_rules,
            events=reusable,
            condition=condition,
            idempotency_key=idempotency_key,
            command=command,
        )

    def append_draft(
        self, draft: Draft, *, timeout: float | None = None, connection: Any = None
    ) -> AppendResult:
        """Append a draft; see `append` for the arguments, the result and the errors."""
        if timeout is not None:
            check_timeout(timeout)
        if connection is None:
            return self.appender.append(draft, timeout)
        if is_async(connection):
            raise invalid_argument(
                "connection", "is asynchronous: await log.aio.append(…, connection=…)"
            )
        return self.appender.append_in(connection, draft)

    def explain(
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
    ) -> Explanation:
        """Return what `append` would do with these arguments now, and why; nothing is stored.

        Raises:
            BackendFailure: The store failed. A refusal is not raised, but part of the result.

        Example:
            explanation = log.explain([NewEvent("seat.booked", stream=("flight", "LH1"))])
            print(explanation.outcome, explanation.error)
        """
        return explain_draft(
            self, self.draft(LOG_PROFILE, events, condition, idempotency_key, command)
        )

    # -- read

    @list_read_filters
    def page(self, *, limit: int | None = None, **filters: Unpack[ReadFilters]) -> Page:
        """Read one page by position.

        A page has at most `limit` records, by default as many as the limit `page`; with `scope`
        only those of a profile. All other parameters are filters, see `read_batches`.

        Returns:
            The records, and `last_scanned`, the `after` of the next page. With `newest_first` the
            page starts at `until` and descends: the next page has `until=page.last_scanned - 1`;
            if that is not greater than `after`, there is no next page.

        Raises:
            InvalidArgument: A filter is malformed.
            LimitExceeded: `limit` is greater than the limit `page`.

        Example:
            page = log.page(limit=100)
            following = log.page(after=page.last_scanned, limit=100)
        """
        page_size = self.settings.limits.page if limit is None else limit
        return self.read_page(self._make_spec(page_size, filters))

    def read_page(self, spec: ReadSpec) -> Page:
        """Read one page by a validated specification."""
        with tracer.span("seriatim.read") as span:
            page = self._read_measured(spec)
            span.set(read_attributes(spec, page))
        return page

    def _read_measured(self, spec: ReadSpec) -> Page:
        started = time.perf_counter()
        page = self._scan_page(spec)
        if self.telemetry.active:
            counts = {"duration_s": time.perf_counter() - started, "count": len(page.records)}
            metadata = {"tenant_id": spec.tenant_id or "*", "last_scanned": page.last_scanned}
            self.telemetry.emit("store.read_batch.stop", counts, metadata)
        return page

    def _scan_page(self, spec: ReadSpec) -> Page:
        head = self.store.head()
        # A position after the head may belong to a commit in flight, whose events would be missed
        # if it were counted as scanned.
        until = head if spec.until is None else min(spec.until, head)
        bounded = replace(spec, until=until, until_head=until == head)
        records = [] if until <= spec.after else self.store.read(bounded)
        if records and is_page_full(records, spec.limit, spec.max_bytes):
            return Page(records, records[-1].position)
        return Page(records, spec.after + 1 if spec.newest_first else max(until, spec.after))

    @list_read_filters
    def read_batches(
        self,
        *,
        limit: int | None = None,
        batch_size: int | None = None,
        **filters: Unpack[ReadFilters],
    ) -> Iterator[list[EventRecord]]:
        """Iterate over batches of records up to the head; a bad filter raises `InvalidArgument`.

        Args:
            limit: The maximum number of records; None means all.
            batch_size: How many records are read from the store at a time.
            scope: Which events: all of the log, or those of the profile `traces` or `aggregates`.
            after: The exclusive start position.
            until: The inclusive end position; by default the head.
            stream: Only this stream, as `(stream type, stream id)`.
            since_seq: Only sequence numbers of the stream after this one.
            types: Only these event types, or patterns such as `seat.*`.
            app_id: Only events of this application.
            env_id: Only events of this environment.
            occurred_after: Only events whose `occurred_at` is after this time.
            occurred_until: Only events whose `occurred_at` is not after this time.
            recorded_after: Only events whose `recorded_at` is after this time.
            recorded_until: Only events whose `recorded_at` is not after this time.
            correlation_id: Only events with this correlation id.
            causation_id: Only events with this causation id.
            actor_id: Only events of this actor.
            newest_first: Whether to read in descending order.

        Example:
            sizes = [len(batch) for batch in log.read_batches(batch_size=500, after=1)]
        """
        page_size = min(1000, self.settings.limits.page) if batch_size is None else batch_size
        spec = self._make_spec(page_size, filters)
        return limit_batches(self.iterate_batches(spec), check_count("limit", limit))

    def _make_spec(self, page_size: int, filters: ReadFilters) -> ReadSpec:
        if unknown := filters.keys() - ReadFilters.__annotations__.keys():
            names = ", ".join(ReadFilters.__annotations__)
            msg = f"a read has no filter {min(unknown)!r}; its filters are {names}"
            raise TypeError(msg)
        return make_read_spec(
            self.settings.limits, tenant_id=self.tenant_id, limit=page_size, **filters
        )

    @list_read_filters
    def read(
        self,
        *,
        limit: int | None = None,
        batch_size: int | None = None,
        **filters: Unpack[ReadFilters],
    ) -> Iterator[EventRecord]:
        """Iterate over records in order, up to the current head.

        The parameters are those of `read_batches`.

        Raises:
            InvalidArgument: A filter is malformed.

        Example:
            newest = list(log.read(types=["order.*"], newest_first=True, limit=10))
        """
        batches = self.read_batches(limit=limit, batch_size=batch_size, **filters)
        return chain.from_iterable(batches)

    def iterate_batches(self, spec: ReadSpec) -> Iterator[list[EventRecord]]:
        """Iterate over the batches of a validated specification, up to the current head."""
        # Read once: on a log that grows as fast as it is read, the iteration would never end.
        head = self.store.head()
        until = head if spec.until is None else min(spec.until, head)
        after = spec.after
        while after < until:
            page = self.read_page(replace(spec, after=after, until=until))
            if page.records:
                yield page.records
            if spec.newest_first:
                until = page.last_scanned - 1
            else:
                after = page.last_scanned

    def read_stream(
        self,
        stream: StreamRef,
        *,
        since: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[EventRecord]:
        """Iterate over the records of a stream in order.

        Args:
            stream: The stream, as `(stream type, stream id)`.
            since: The sequence number after which to start.
            limit: The maximum number of records; None means all.
            newest_first: Whether to read in descending order.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            history = list(log.read_stream(("order", "7")))
        """
        return self.read(
            stream=check_stream_ref(stream), since_seq=since, limit=limit, newest_first=newest_first
        )

    def last_event(self, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream, or None if the stream does not exist.

        Raises:
            InvalidArgument: The stream is not a pair of a type and an id.

        Example:
            last = log.last_event(("order", "7"))
        """
        return self.store.last_of_stream(self.tenant_id, check_stream_ref(stream))

    def event(self, event_id: str) -> EventRecord:
        """Return an event by its id.

        Raises:
            NotFound: The tenant has no event with that id.

        Example:
            record = log.event("e-1")
        """
        record = self.store.event(self.tenant_id, check_name("event_id", event_id))
        if record is None:
            msg = f"there is no event with the id {event_id!r:.80} in tenant {self.tenant_id!r:.80}"
            raise NotFound(msg, details={"event_id": event_id})
        return record

    def find_append(
        self, idempotency_key: str, *, producer_id: str | None = None
    ) -> AppendResult | None:
        """Return the receipt of the append stored under an idempotency key, or None.

        Args:
            idempotency_key: The key of a whole append, or of one of its events.
            producer_id: The producer of the events; keys are unique per producer.

        Raises:
            InvalidArgument: The key or the producer is malformed.

        Example:
            receipt = log.find_append("import-2026-11-18")
        """
        return make_receipt(find_stored_by_key(self, idempotency_key, producer_id))

    def find_command(self, *, actor: str, endpoint: str, key: str) -> AppendResult | None:
        """Return the receipt stored for a command, with its response, or None.

        Args:
            actor: The actor of the command.
            endpoint: The endpoint that the command was sent to.
            key: The key of the command.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            receipt = log.find_command(actor="u-1", endpoint="POST /orders", key="k-1")
        """
        return make_receipt(find_stored_by_command(self, actor, endpoint, key))

    def head(self) -> int:
        """Return the last position of the log, across all tenants; 0 if it is empty.

        Example:
            position = log.head()
        """
        return self.store.head()

    def identity(self) -> LogIdentity:
        """Return the log's identity: its id and epoch.

        Example:
            identity = log.identity()
            print(identity.log_id, identity.epoch)
        """
        return self.store.identity()

    def streams(
        self, stream_type: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[StreamSummary]:
        """List streams in the order of their first events.

        Args:
            stream_type: Only streams of this type.
            after: For the next page, the `first_position` of the last stream.
            limit: The maximum number of streams.

        Raises:
            InvalidArgument: An argument is malformed.
            LimitExceeded: `limit` is greater than the limit `page`.

        Example:
            for stream in log.streams("order"):
                print(stream.stream_id, stream.last_seq)
        """
        if stream_type is not None:
            check_name("stream_type", stream_type)
        check_position("after", after)
        page_size = self.settings.limits.check_page("limit", limit)
        streams: list[StreamSummary] = []
        position: int | None = after
        while position is not None and len(streams) < page_size:
            wanted = page_size - len(streams)
            page = self.store.streams(self.tenant_id, stream_type, position, wanted)
            streams += page.streams
            position = page.last_scanned
        return streams

    def event_types(
        self, prefix: str = "", *, after: str = "", limit: int = EVENT_TYPES_MAX
    ) -> list[EventTypeCount]:
        """List event types by name, with how many events each has, counted up to 1,000.

        Args:
            prefix: Only types that begin with this text.
            after: For the next page, the `event_type` of the last one.
            limit: The maximum number of types, at most 100.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            for one in log.event_types("order."):
                print(one.event_type, one.counted, "" if one.exact else "or more")
        """
        names = make_type_range(prefix, after, limit)
        return self.store.event_types(self.tenant_id, names)

    # -- query

    def query(
        self,
        query: Query = MATCH_ALL,
        *,
        limit: int | None = None,
        after: int | None = None,
        head: int | None = None,
        until: int | None = None,
        newest_first: bool = False,
    ) -> QueryResult:
        """Return the matching records and the version of their context, from one snapshot.

        Args:
            query: The events to return.
            limit: The maximum number of records; None means all, in as many pages as needed.
            after: The exclusive start; for the next page, the last returned position.
            head: The head of the snapshot; for the next page, the `head` of the first result.
            until: The inclusive end; for the next page with `newest_first`, the last returned
                position minus 1.
            newest_first: Whether to return the records in descending order.

        Returns:
            The records and the context's version, which `after` and `until` do not change.

        Raises:
            InvalidQuery: The query is malformed.
            InvalidArgument: A position is malformed, or `head` is after the log's head.

        Example:
            query = Query([Filter(types=["order.paid"], tags=["customer:4"])])
            result = log.query(query)
            event = NewEvent("order.refunded", tags=("customer:4",))
            log.append([event], ExpectedContext(query, result.context_version))
        """
        window = QueryRange(limit, after, until, head, newest_first)
        with tracer.span("seriatim.query") as span:
            result = self._run_query(query, window)
            span.set(query_attributes(self.tenant_id, result))
        return result

    def _run_query(self, query: Query, window: QueryRange) -> QueryResult:
        return run_query(self, query, window)

    # -- declare

    def declare(self, *declarations: Declaration) -> None:
        """Store declarations of stream kinds, event types and payload indexes, for all processes.

        Raises:
            InvalidArgument: A value is not a declaration.
            Conflict: The log has a declaration of that name which cannot be changed to this one.

        Example:
            log.declare(StreamKind(name="invoice", closing_types=("invoice.closed",)))
        """
        for declaration in declarations:
            check_declaration(declaration)
            self.store.declare(declaration)
        self.appender.reload_rules()

    # -- follow

    def subscribe(
        self,
        name: str,
        query: Query = MATCH_ALL,
        *,
        start: int | Literal["head"] = 0,
        lease_s: float = 10.0,
        poll_s: float = 1.0,
        idle_timeout: float | None = None,
        backoff_s: float = BACKOFF_S,
        backoff_cap_s: float = BACKOFF_CAP_S,
        retry: RetryPolicy | None = None,
        on_poison: OnPoison = "park",
    ) -> Subscription:
        """Open a durable subscription: it catches up with the log, then follows it live.

        Args:
            name: The name under which the cursor is stored.
            query: The events to receive.
            start: The position after which a new subscription starts, or `"head"`.
            lease_s: How long the lease lasts without being renewed.
            poll_s: How often to look for new events if no wake-up arrives.
            idle_timeout: Seconds without an event after which the iteration ends; None: never.
            backoff_s: The delay after the first failure of a handler; it doubles each time.
            backoff_cap_s: The longest such delay.
            retry: How often a batch is attempted and with which delays, instead of `backoff_s`;
                None repeats it until it succeeds. Attempts are counted across restarts and owners.
            on_poison: What the last failed attempt does: `park` the subscription until an operator
                acts, `skip` the batch and record it, or `stop`: park it and raise an error.

        Raises:
            Conflict: The subscription exists with another query.
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.
            LimitExceeded: The process has too many open subscriptions and tails.
            SubscriptionParked: It stops at a failed batch; raised while iterating.

        Example:
            paid = Query([Filter(types=["order.paid"])])
            retry = RetryPolicy(attempts=5)
            for batch in log.subscribe("mailer", paid, idle_timeout=0.1, retry=retry):
                print("send", len(batch), "mails")
        """
        check_query(query, self.settings.limits)
        check_name("name", name)
        policy = make_failure_policy(backoff_s, backoff_cap_s, retry, on_poison)
        self._check_follower_limit()
        subscription = Subscription(
            self.store,
            self.tenant_id,
            name,
            query,
            tail_class=self._tail_class,
            telemetry=self.telemetry,
            start=start,
            lease_s=lease_s,
            poll_s=poll_s,
            idle_timeout=idle_timeout,
            policy=policy,
        )
        self._followers.add(subscription)
        return subscription

    @property
    def subscriptions(self) -> Subscriptions:
        """The durable subscriptions of this tenant: call it to list them."""
        return Subscriptions(self)

    def reset_subscription(self, name: str, position: int, query: Query = MATCH_ALL) -> None:
        """Set the cursor of a subscription to any position; see `Subscriptions.reset`.

        This also works after a restore, when the subscription cannot be opened.

        Args:
            name: The name of the subscription.
            position: The position after which it continues; 0 is the beginning.
            query: The query with which it is opened.

        Raises:
            InvalidArgument: The position is malformed or after the head.

        Example:
            log.reset_subscription("mailer", 0)
        """
        self.subscriptions.reset(name, position, query)

    def tail(
        self,
        query: Query = MATCH_ALL,
        *,
        after: int | None = None,
        idle_timeout: float | None = None,
        poll_s: float = 1.0,
        on_scanned: Callable[[int], None] | None = None,
    ) -> Tail:
        """Follow the log from a position without a stored cursor.

        Args:
            query: The events to receive.
            after: The exclusive start position; by default the head.
            idle_timeout: Seconds without an event after which the iteration ends; None: never.
            poll_s: How often to look for new events if no wake-up arrives.
            on_scanned: Called with the position up to which the log was scanned, when caught up.

        Raises:
            InvalidArgument: `after` is malformed or after the head.
            LimitExceeded: The process has too many open subscriptions and tails.

        Example:
            for batch in log.tail(after=0, idle_timeout=0.1):
                print([record.event_type for record in batch])
        """
        check_query(query, self.settings.limits)
        self._check_follower_limit()
        start = self.store.head() if after is None else check_position("after", after)
        tail = self._tail_class(
            self.store,
            self.tenant_id,
            query,
            start,
            idle_timeout=idle_timeout,
            poll_s=poll_s,
            on_scanned=on_scanned,
        )
        self._followers.add(tail)
        return tail

    @property
    def _tail_class(self) -> type[Tail]:
        """The class of this log's tails."""
        return Tail

    def _check_follower_limit(self) -> None:
        self.settings.limits.check("subscriptions", len(self._followers) + 1)

    @property
    def projections(self) -> Projections:
        """The projections in this log's default read model.

        Raises:
            InvalidArgument: The log has no default read model, because it is in memory.
        """
        return self.projections_at(self.read_models.default_url(self.tenant_id))

    def projections_at(self, target: str) -> Projections:
        """Return the projections in the read model at a URL.

        Example:
            projections = log.projections_at("sqlite:///read-model.db")
        """
        return Projections(self, target)

    # -- maintenance

    def purge_commands(self, *, older_than_hours: float = 24.0) -> int:
        """Delete command records older than `older_than_hours`, and return how many.

        A command that is repeated later than that runs again.

        Raises:
            InvalidArgument: `older_than_hours` is less than 24.

        Example:
            deleted = log.purge_commands(older_than_hours=72)
        """
        hours = older_than_hours
        if type(hours) not in (int, float) or not _COMMAND_HOURS_MIN <= hours < math.inf:
            problem = f"must be a number from {_COMMAND_HOURS_MIN}, not {hours!r:.40}"
            raise invalid_argument("older_than_hours", problem)
        return self.store.purge_commands(hours * 3600)

    def close(self) -> None:
        """Wait for accepted appends, at most `timeout_s`, then close all connections.

        Example:
            log.close()
        """
        self.appender.close(self.settings.timeout_s)
        self.read_models.close()
        self.store.close()
        _OPEN_LOGS.discard(self)

    def __enter__(self) -> Self:
        """Return the log, to be closed at the end of a `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def _after_fork() -> None:
    """Give a forked child process its own committers and connections.

    A child inherits sockets, but no threads: sharing a connection would mix two conversations, and
    a committer without its writers would never complete an append.
    """
    for log in _OPEN_LOGS:
        log.appender.after_fork()
        log.store.after_fork()


os.register_at_fork(after_in_child=_after_fork)

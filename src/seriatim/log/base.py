"""The synchronous log of one tenant: append, read, query, declare, follow."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

import msgspec

from seriatim.config import Settings
from seriatim.core.decide import StaleRules
from seriatim.core.errors import NotFound
from seriatim.core.event import (
    DEFAULT_TENANT,
    AppendResult,
    EventRecord,
    LogIdentity,
    NewEvent,
    StreamRef,
)
from seriatim.core.guard import DEFAULT_GUARD, Guard
from seriatim.core.indexes import PayloadIndex, check_payload_index
from seriatim.core.kinds import Declaration, EventType, StreamKind, check_event_type, check_kind
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules
from seriatim.core.query import MATCH_ALL, Query, check_query
from seriatim.core.request import Command, Condition, check_stream_ref
from seriatim.core.schema import compile_schema
from seriatim.core.tenants import check_tenant
from seriatim.log.appender import (
    RULE_RELOADS_MAX,
    Appender,
    AppendTelemetry,
    Draft,
    rules_changing_error,
)
from seriatim.log.arguments import (
    check_count,
    check_name,
    check_position,
    check_timeout,
    invalid_argument,
    is_async,
    make_read_spec,
)
from seriatim.log.catalogue import Catalogue
from seriatim.log.cursors import reset_subscription
from seriatim.log.lookup import find_stored_by_command, find_stored_by_key, make_receipt
from seriatim.log.projections import Projections, ReadModelConnections
from seriatim.log.query_execution import QueryRange, QueryResult, run_query
from seriatim.log.span_attributes import query_attributes, read_attributes
from seriatim.log.subscription import Subscription, Tail, iterate_subscription_statuses
from seriatim.store.common import is_page_full
from seriatim.store.port import (
    ReadSpec,
    Scope,
    ServiceStore,
    Store,
    StreamSummary,
    SubscriptionStatus,
)
from seriatim.telemetry import tracing
from seriatim.telemetry.event_bus import Telemetry

Events = Iterable[NewEvent | Mapping[str, Any]]


class Page(msgspec.Struct, frozen=True):
    """One page of a read.

    Pass `last_scanned` as the `after` of the next page; it advances even if no record matched.
    """

    records: list[EventRecord]
    last_scanned: int


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
        self._followers: weakref.WeakSet[Subscription | Tail] = weakref.WeakSet()
        _OPEN_LOGS.add(self)

    def for_tenant(self, tenant_id: str) -> Self:
        """Return this log for another tenant; both share connections and committer."""
        view = type(self).__new__(type(self))
        # Keep the parent alive: after a fork only logs that still exist get new connections.
        view.__dict__.update(self.__dict__, _parent=self)
        view.tenant_id = check_tenant(tenant_id)
        return view

    # -- append

    def append(  # noqa: PLR0913 - public API
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
        telemetry = AppendTelemetry(self.telemetry, self.tenant_id)
        with telemetry:
            for _ in range(RULE_RELOADS_MAX):
                telemetry.request = self.appender.prepare_request(draft, telemetry.trace_headers)
                try:
                    return telemetry.complete(self.store.append_in(connection, telemetry.request))
                except StaleRules:
                    self.appender.reload_rules()
            raise rules_changing_error()

    # -- read

    def page(self, *, limit: int | None = None, scope: Scope = "log", **filters: Any) -> Page:
        """Read one page by position: `after` exclusive, `until` inclusive, filters as in `read`.

        The page's `last_scanned` is the `after` of the next page. With `newest_first` the page
        starts at `until` and descends: the next page has `until=page.last_scanned - 1`; if that is
        not greater than `after`, there is no next page.
        """
        page_size = self.settings.limits.page if limit is None else limit
        spec = make_read_spec(
            self.settings.limits, tenant_id=self.tenant_id, limit=page_size, scope=scope, **filters
        )
        return self.read_page(spec)

    def read_page(self, spec: ReadSpec) -> Page:
        """Read one page by a validated specification."""
        with tracing.span("seriatim.read") as span:
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
        records = [] if until <= spec.after else self.store.read(_replace_until(spec, until))
        if records and is_page_full(records, spec.limit, spec.max_bytes):
            return Page(records, records[-1].position)
        return Page(records, spec.after + 1 if spec.newest_first else max(until, spec.after))

    def read(
        self, *, limit: int | None = None, batch_size: int | None = None, **filters: Any
    ) -> Iterator[EventRecord]:
        """Iterate over records in order, up to the current head.

        Args:
            limit: The maximum number of records; None means all.
            batch_size: How many records are read from the store at a time.
            **filters: `after`, `until`, `stream`, `since_seq`, `types` (exact types, or patterns
                such as `seat.*`), `app_id`, `env_id`, `correlation_id`, `causation_id`,
                `occurred_after`, `occurred_until`, `recorded_after`, `recorded_until`; and
                `newest_first=True` to read in descending order.

        Raises:
            InvalidArgument: A filter is malformed.

        Example:
            for record in log.read(types=["seat.*"], newest_first=True, limit=10):
                print(record.position, record.event_type)
        """
        checked_limit = check_count("limit", limit)
        batches = self.read_batches(batch_size=batch_size, **filters)
        return _flatten(batches, checked_limit)

    def read_batches(
        self, *, batch_size: int | None = None, scope: Scope = "log", **filters: Any
    ) -> Iterator[list[EventRecord]]:
        """Iterate over batches of records in order, up to the current head; see `read`."""
        size = min(1000, self.settings.limits.page) if batch_size is None else batch_size
        spec = make_read_spec(
            self.settings.limits, tenant_id=self.tenant_id, limit=size, scope=scope, **filters
        )
        return self.iterate_batches(spec)

    def iterate_batches(self, spec: ReadSpec) -> Iterator[list[EventRecord]]:
        """Iterate over the batches of a validated specification, up to the current head."""
        head = self.store.head()
        until = head if spec.until is None else min(spec.until, head)
        after = spec.after
        while after < until:
            page = self.read_page(msgspec.structs.replace(spec, after=after, until=until))
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
        """Iterate over the records of a stream in order, after sequence number `since`."""
        return self.read(
            stream=check_stream_ref(stream), since_seq=since, limit=limit, newest_first=newest_first
        )

    def last_event(self, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream, or None if the stream does not exist."""
        return self.store.last_of_stream(self.tenant_id, check_stream_ref(stream))

    def event(self, event_id: str) -> EventRecord:
        """Return an event by its id; raises `NotFound` if there is none."""
        found = self.store.event(self.tenant_id, check_name("event_id", event_id))
        if found is None:
            msg = "there is no event with that id"
            raise NotFound(msg, details={"event_id": event_id})
        return found

    def find_append(
        self, idempotency_key: str, *, producer_id: str | None = None
    ) -> AppendResult | None:
        """Return the receipt of the append stored under an idempotency key, or None.

        Args:
            idempotency_key: The key of a whole append, or of one of its events.
            producer_id: The producer of the events; keys are unique per producer.
        """
        return make_receipt(find_stored_by_key(self, idempotency_key, producer_id))

    def find_command(self, *, actor: str, endpoint: str, key: str) -> AppendResult | None:
        """Return the receipt stored for a command, with its response, or None."""
        return make_receipt(find_stored_by_command(self, actor, endpoint, key))

    def head(self) -> int:
        """Return the last position of the log, across all tenants; 0 if it is empty."""
        return self.store.head()

    def identity(self) -> LogIdentity:
        """Return the log's identity: its id and epoch."""
        return self.store.identity()

    def streams(
        self, stream_type: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[StreamSummary]:
        """List streams in the order of their first events.

        For the next page, pass the `first_position` of the last stream as `after`.
        """
        if stream_type is not None:
            check_name("stream_type", stream_type)
        check_position("after", after)
        page_size = self.settings.limits.check_page("limit", limit)
        return self.store.streams(self.tenant_id, stream_type, after, page_size)

    # -- query

    def query(  # noqa: PLR0913 - public API
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

        Without a limit all records are returned, read in as many pages as needed. With a limit, the
        next page is read with `after` (the last returned position) and the `head` of the first
        page; with `newest_first`, with `until` (the last returned position minus 1) and `head`.
        `after` and `until` do not change the context's version.

        Raises:
            InvalidQuery: The query is malformed.
            InvalidArgument: A position is malformed, or `head` is after the log's head.

        Example:
            query = Query([Filter(types=["seat.booked"])])
            result = log.query(query)
            log.append(events, ExpectedContext(query, result.context_version))
        """
        window = QueryRange(limit, after, until, head, newest_first)
        with tracing.span("seriatim.query") as span:
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
        """
        for one in declarations:
            if isinstance(one, StreamKind):
                check_kind(one)
            elif isinstance(one, EventType):
                check_event_type(one)
                if one.schema is not None:
                    compile_schema(one.schema)
            elif isinstance(one, PayloadIndex):
                check_payload_index(one)
            else:
                raise invalid_argument(
                    "declarations", "must be StreamKind, EventType or PayloadIndex values"
                )
            self.store.declare(one)
        self.appender.reload_rules()

    # -- follow

    def subscribe(self, name: str, query: Query = MATCH_ALL, **options: Any) -> Subscription:
        """Open a durable subscription: it catches up with the log, then follows it live.

        Args:
            name: The name under which the cursor is stored.
            query: The events to receive.
            **options: See `Subscription`.

        Raises:
            Conflict: The subscription exists with another query.
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.
            LimitExceeded: The process has too many open subscriptions and tails.

        Example:
            for batch in log.subscribe("mailer", Query([Filter(types=["order.paid"])])):
                send_mails(batch)
        """
        check_query(query, self.settings.limits)
        check_name("name", name)
        self._check_follower_limit()
        subscription = Subscription(
            self.store,
            self.tenant_id,
            name,
            query,
            tail_class=self._tail_class,
            telemetry=self.telemetry,
            **options,
        )
        self._followers.add(subscription)
        return subscription

    def subscriptions(self) -> list[SubscriptionStatus]:
        """List this tenant's durable subscriptions: owner, cursor, lag and last error.

        Example:
            for one in log.subscriptions():
                print(one.name, one.owner, one.position, one.lag_events, one.last_error)
        """
        return list(iterate_subscription_statuses(cast("ServiceStore", self.store), self.tenant_id))

    def reset_subscription(self, name: str, position: int, query: Query = MATCH_ALL) -> None:
        """Set the cursor of a subscription to any position.

        This also works after a restore, when the subscription cannot be opened.
        """
        check_query(query, self.settings.limits)
        reset_subscription(self.store, self.tenant_id, check_name("name", name), position, query)

    def tail(self, query: Query = MATCH_ALL, *, after: int | None = None, **options: Any) -> Tail:
        """Follow the log from a position (by default the head) without a stored cursor.

        See `Tail` for the options.
        """
        check_query(query, self.settings.limits)
        self._check_follower_limit()
        start = self.store.head() if after is None else check_position("after", after)
        tail = self._tail_class(self.store, self.tenant_id, query, start, **options)
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
        """The projections in this log's default read model."""
        return self.projections_at(self.read_models.default_url(self.tenant_id))

    def projections_at(self, target: str) -> Projections:
        """Return the projections in the read model at a URL."""
        return Projections(self, target)

    # -- maintenance

    def purge_commands(self, *, older_than_hours: float = 24.0) -> int:
        """Delete command records older than `older_than_hours`, at least 24; returns how many.

        A command that is repeated later than that runs again.
        """
        hours = older_than_hours
        if type(hours) not in (int, float) or not 24 <= hours < math.inf:  # noqa: PLR2004 - C5
            raise invalid_argument("older_than_hours", "must be at least 24")
        return self.store.purge_commands(hours * 3600)

    def close(self) -> None:
        """Wait for accepted appends, at most `timeout_s`, then close all connections."""
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


def _replace_until(spec: ReadSpec, until: int) -> ReadSpec:
    return msgspec.structs.replace(spec, until=until)


def _flatten(batches: Iterator[list[EventRecord]], limit: int | None) -> Iterator[EventRecord]:
    left = limit
    for batch in batches:
        if left is not None and left <= len(batch):
            yield from batch[:left]
            return
        yield from batch
        left = None if left is None else left - len(batch)


_OPEN_LOGS: weakref.WeakSet[BaseLog] = weakref.WeakSet()


def _after_fork() -> None:
    """Give a forked child process its own committers and connections."""
    for log in _OPEN_LOGS:
        log.appender.after_fork()
        log.store.after_fork()


os.register_at_fork(after_in_child=_after_fork)

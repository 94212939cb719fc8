"""The log as a user holds it: append, read, query, declare, follow; always within one tenant."""

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
from seriatim.core.doors import LOG, Door
from seriatim.core.errors import NotFound
from seriatim.core.event import (
    DEFAULT_TENANT,
    AppendResult,
    EventRecord,
    LogIdentity,
    NewEvent,
    StreamRef,
)
from seriatim.core.guard import DEFAULT, Guard
from seriatim.core.indexes import PayloadIndex, check_payload_index
from seriatim.core.kinds import Declaration, EventType, StreamKind, check_event_type, check_kind
from seriatim.core.query import EVERYTHING, Query, check_query
from seriatim.core.request import Command, Condition, check_stream
from seriatim.core.schema import compile_schema
from seriatim.core.tenants import check_tenant
from seriatim.log.appending import RULE_RELOADS, Appender, Draft, Watch, rules_kept_changing
from seriatim.log.arguments import (
    bad,
    check_count,
    check_name,
    check_position,
    check_timeout,
    is_async,
    read_spec,
)
from seriatim.log.catalogue import Catalogue
from seriatim.log.cursors import reset_subscription
from seriatim.log.lookup import receipt, stored_by_command, stored_by_key
from seriatim.log.projections import Places, Projections
from seriatim.log.querying import QueryResult, Window, run_query
from seriatim.log.subscription import Subscription, Tail
from seriatim.log.subscription_status import statuses
from seriatim.log.traced import query_attributes, read_attributes
from seriatim.store.port import (
    ReadSpec,
    Scope,
    ServedStore,
    Store,
    StreamSummary,
    SubscriptionStatus,
)
from seriatim.store.reading import is_full
from seriatim.telemetry import tracing
from seriatim.telemetry.bus import Telemetry

Events = Iterable[NewEvent | Mapping[str, Any]]


class Page(msgspec.Struct, frozen=True):
    """One page of a read: pass `last_scanned` as the next `after`; it moves on even when empty."""

    records: list[EventRecord]
    last_scanned: int


class BaseLog:
    """One tenant's door to a log."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Settings | None = None,
        guard: Guard = DEFAULT,
        tenant_id: str = DEFAULT_TENANT,
        places: Places | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or Settings()
        self.tenant_id = check_tenant(tenant_id)
        self.telemetry = Telemetry()
        self.appender = Appender(store, self.settings, guard, self.telemetry)
        self.catalogue = Catalogue(self)
        self.places = places or Places(lambda _: None, None)
        self._parent: BaseLog | None = None
        self._followers: weakref.WeakSet[Subscription | Tail] = weakref.WeakSet()
        _OPEN_LOGS.add(self)

    def for_tenant(self, tenant_id: str) -> Self:
        """Return this log as another tenant sees it; both share connections and committer."""
        view = type(self).__new__(type(self))
        # The parent is kept alive: a fork renews the logs it knows to be open.
        view.__dict__.update(self.__dict__, _parent=self)
        view.tenant_id = check_tenant(tenant_id)
        return view

    # -- append

    def append(  # noqa: PLR0913 - each is a separate promise of the contract
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> AppendResult:
        """Append a batch, all or nothing, and return its receipt.

        With `connection` (Postgres) it happens in the caller's own transaction: the log's lock is
        then held until the caller commits.
        """
        draft = self.draft(LOG, events, condition, idempotency_key, command)
        return self.append_draft(draft, timeout=timeout, connection=connection)

    def draft(
        self,
        door: Door,
        events: Events,
        condition: Any = None,
        idempotency_key: str | None = None,
        command: Command | None = None,
    ) -> Draft:
        """Keep an append as it was asked for, through whichever door."""
        kept = list(events) if isinstance(events, Iterator) else events
        return Draft(
            tenant_id=self.tenant_id,
            door=door,
            events=kept,
            condition=condition,
            idempotency_key=idempotency_key,
            command=command,
        )

    def append_draft(
        self, draft: Draft, *, timeout: float | None = None, connection: Any = None
    ) -> AppendResult:
        """Append what a door drafted."""
        if timeout is not None:
            check_timeout(timeout)
        if connection is None:
            return self.appender.append(draft, timeout)
        if is_async(connection):
            raise bad("connection", "is async: await log.aio.append(…, connection=…) instead")
        watch = Watch(self.telemetry, self.tenant_id)
        with watch:
            for _ in range(RULE_RELOADS):
                watch.request = self.appender.request(draft, watch.carried)
                try:
                    return watch.done(self.store.append_in(connection, watch.request))
                except StaleRules:
                    self.appender.reload_rules()
            raise rules_kept_changing()

    # -- read

    def page(self, *, limit: int | None = None, scope: Scope = "log", **filters: Any) -> Page:
        """Read one page by position: `after` exclusive, `until` inclusive, filters as in `read`.

        The page's `last_scanned` is the `after` of the next page. With `newest_first` the page
        begins at `until` and goes down: the next page has `until=page.last_scanned - 1`, and there
        is none when that is not above `after`.
        """
        wanted = self.settings.limits.page if limit is None else limit
        spec = read_spec(
            self.settings.limits, tenant_id=self.tenant_id, limit=wanted, scope=scope, **filters
        )
        return self.page_of(spec)

    def page_of(self, spec: ReadSpec) -> Page:
        """Read one page that is already checked."""
        with tracing.span("seriatim.read") as span:
            page = self._page_of(spec)
            span.set(read_attributes(spec, page))
        return page

    def _page_of(self, spec: ReadSpec) -> Page:
        started = time.perf_counter()
        page = self._scanned(spec)
        if self.telemetry.active:
            counts = {"duration_s": time.perf_counter() - started, "count": len(page.records)}
            metadata = {"tenant_id": spec.tenant_id or "*", "last_scanned": page.last_scanned}
            self.telemetry.emit("store.read_batch.stop", counts, metadata)
        return page

    def _scanned(self, spec: ReadSpec) -> Page:
        head = self.store.head()
        # A position past the head may be promised to a commit under way: never scan beyond it.
        until = head if spec.until is None else min(spec.until, head)
        records = [] if until <= spec.after else self.store.read(_until(spec, until))
        if records and is_full(records, spec.limit, spec.max_bytes):
            return Page(records, records[-1].position)
        return Page(records, spec.after + 1 if spec.newest_first else max(until, spec.after))

    def read(
        self, *, limit: int | None = None, batch_size: int | None = None, **filters: Any
    ) -> Iterator[EventRecord]:
        """Stream records in order up to the head as it is now, or until `limit`.

        Filters: after, until, stream, since_seq, types (exact ones, or patterns such as `seat.*`),
        app_id, env_id, correlation_id, causation_id, occurred_after, occurred_until,
        recorded_after, recorded_until. With `newest_first=True` the newest record comes first:

            for record in log.read(types=["seat.*"], newest_first=True, limit=10): ...
        """
        wanted = check_count("limit", limit)
        batches = self.read_batches(batch_size=batch_size, **filters)
        return _flatten(batches, wanted)

    def read_batches(
        self, *, batch_size: int | None = None, scope: Scope = "log", **filters: Any
    ) -> Iterator[list[EventRecord]]:
        """Stream non-overlapping batches in order up to the head as it is now."""
        size = min(1000, self.settings.limits.page) if batch_size is None else batch_size
        spec = read_spec(
            self.settings.limits, tenant_id=self.tenant_id, limit=size, scope=scope, **filters
        )
        return self.batches_of(spec)

    def batches_of(self, spec: ReadSpec) -> Iterator[list[EventRecord]]:
        """Stream the batches of a read that is already checked."""
        head = self.store.head()
        until = head if spec.until is None else min(spec.until, head)
        after = spec.after
        while after < until:
            page = self.page_of(msgspec.structs.replace(spec, after=after, until=until))
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
        """Stream one stream's records in order, those after number `since`."""
        return self.read(
            stream=check_stream(stream), since_seq=since, limit=limit, newest_first=newest_first
        )

    def last_event(self, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream, None when there is no such stream."""
        return self.store.last_of_stream(self.tenant_id, check_stream(stream))

    def event(self, event_id: str) -> EventRecord:
        """Return one event by its id."""
        found = self.store.event(self.tenant_id, check_name("event_id", event_id))
        if found is None:
            msg = "there is no event with that id"
            raise NotFound(msg, details={"event_id": event_id})
        return found

    def find_append(
        self, idempotency_key: str, *, producer_id: str | None = None
    ) -> AppendResult | None:
        """Return the receipt of the append stored under a key, None when there is none.

        The key is that of a whole append, or of one of its events; keys are per producer.
        """
        return receipt(stored_by_key(self, idempotency_key, producer_id))

    def find_command(self, *, actor: str, endpoint: str, key: str) -> AppendResult | None:
        """Return the receipt and the response stored under a command, None when there is none."""
        return receipt(stored_by_command(self, actor, endpoint, key))

    def head(self) -> int:
        """Return the last position of the whole log, 0 when it is empty."""
        return self.store.head()

    def identity(self) -> LogIdentity:
        """Return which log this is, and its epoch."""
        return self.store.identity()

    def streams(
        self, stream_type: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[StreamSummary]:
        """List streams in the order in which they began; page on with the last first_position."""
        if stream_type is not None:
            check_name("stream_type", stream_type)
        check_position("after", after)
        wanted = self.settings.limits.check_page("limit", limit)
        return self.store.streams(self.tenant_id, stream_type, after, wanted)

    # -- query

    def query(  # noqa: PLR0913 - a query and its page
        self,
        query: Query = EVERYTHING,
        *,
        limit: int | None = None,
        after: int | None = None,
        head: int | None = None,
        until: int | None = None,
        newest_first: bool = False,
    ) -> QueryResult:
        """Return the matching records and their context's version, from one snapshot.

        Without a limit all records come, in as many pages as it takes. With one, page on by giving
        `after` (the last returned position) and `head` of the first page; with `newest_first`, by
        giving `until` (the last returned position, less one) and `head`. Neither `after` nor
        `until` changes the context's version.
        """
        window = Window(limit, after, until, head, newest_first)
        with tracing.span("seriatim.query") as span:
            found = self._found(query, window)
            span.set(query_attributes(self.tenant_id, found))
        return found

    def _found(self, query: Query, window: Window) -> QueryResult:
        return run_query(self, query, window)

    # -- declare

    def declare(self, *declarations: Declaration) -> None:
        """Declare stream kinds, event types and payload indexes in the store, for every process."""
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
                raise bad("declarations", "are StreamKind, EventType or PayloadIndex values")
            self.store.declare(one)
        self.appender.reload_rules()

    # -- follow

    def subscribe(self, name: str, query: Query = EVERYTHING, **options: Any) -> Subscription:
        """Follow the log under a durable name: catch up, then live; see `Subscription`."""
        check_query(query, self.settings.limits)
        check_name("name", name)
        self._check_room_to_follow()
        subscription = Subscription(
            self.store,
            self.tenant_id,
            name,
            query,
            follow=self._follow,
            telemetry=self.telemetry,
            **options,
        )
        self._followers.add(subscription)
        return subscription

    def subscriptions(self) -> list[SubscriptionStatus]:
        """List this tenant's durable subscriptions: owner, cursor, lag and last error.

        for one in log.subscriptions():
            print(one.name, one.owner, one.position, one.lag_events, one.last_error)
        """
        return list(statuses(cast("ServedStore", self.store), self.tenant_id))

    def reset_subscription(self, name: str, position: int, query: Query = EVERYTHING) -> None:
        """Move a subscription anywhere, also after a restore, when it cannot be opened."""
        check_query(query, self.settings.limits)
        reset_subscription(self.store, self.tenant_id, check_name("name", name), position, query)

    def tail(self, query: Query = EVERYTHING, *, after: int | None = None, **options: Any) -> Tail:
        """Follow the log from a position (now, by default), keeping no cursor; see `Tail`."""
        check_query(query, self.settings.limits)
        self._check_room_to_follow()
        start = self.store.head() if after is None else check_position("after", after)
        tail = self._follow(self.store, self.tenant_id, query, start, **options)
        self._followers.add(tail)
        return tail

    @property
    def _follow(self) -> type[Tail]:
        """How the log is followed from a position on."""
        return Tail

    def _check_room_to_follow(self) -> None:
        self.settings.limits.check("subscriptions", len(self._followers) + 1)

    @property
    def projections(self) -> Projections:
        """The projections whose read models lie beside this log."""
        return self.projections_at(self.places.beside(self.tenant_id))

    def projections_at(self, target: str) -> Projections:
        """Return the projections whose read models lie at another place."""
        return Projections(self, target)

    # -- life

    def purge_commands(self, *, older_than_hours: float = 24.0) -> int:
        """Forget command records older than this, which is never less than a day."""
        hours = older_than_hours
        if type(hours) not in (int, float) or not 24 <= hours < math.inf:  # noqa: PLR2004 - C5
            raise bad("older_than_hours", "must be at least 24")
        return self.store.purge_commands(hours * 3600)

    def close(self) -> None:
        """Finish what was accepted, bounded by the timeout, then let go of the store."""
        self.appender.close(self.settings.timeout_s)
        self.places.close()
        self.store.close()
        _OPEN_LOGS.discard(self)

    def __enter__(self) -> Self:
        """Use the log for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _until(spec: ReadSpec, until: int) -> ReadSpec:
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
    """Give a forked child committers and connections of its own."""
    for log in _OPEN_LOGS:
        log.appender.after_fork()
        log.store.after_fork()


os.register_at_fork(after_in_child=_after_fork)

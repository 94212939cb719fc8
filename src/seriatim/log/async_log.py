"""The log for asyncio: appends use the loop's own committer, reads run in worker threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack

from seriatim.core.decide import StaleRules
from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, StreamRef
from seriatim.core.explanation import Explanation
from seriatim.core.handler import OnPoison, RetryPolicy
from seriatim.core.kinds import Declaration
from seriatim.core.prepare import Scan, scan_events
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.core.query import MATCH_ALL, Query
from seriatim.core.request import Command, Condition
from seriatim.log.appender import (
    RULE_RELOADS_MAX,
    AppendTelemetry,
    Draft,
    preparation_timeout,
    remaining_time,
    rules_changing_error,
)
from seriatim.log.arguments import (
    ReadFilters,
    check_count,
    check_timeout,
    invalid_argument,
    is_async,
    list_read_filters,
)
from seriatim.log.async_iteration import AsyncExecutor, iterate_in_own_thread
from seriatim.log.async_projections import AsyncProjections
from seriatim.log.base import BaseLog, Events
from seriatim.log.batches import Batch, Page
from seriatim.log.decision import AsyncDecider, Decision, decide_and_append_async
from seriatim.log.failure_policy import BACKOFF_CAP_S, BACKOFF_S
from seriatim.log.subscriptions import AsyncSubscriptions
from seriatim.store.cancellation import Cancellation, cancellable
from seriatim.store.port import EVENT_TYPES_MAX

if TYPE_CHECKING:
    from seriatim.log.query_execution import QueryResult
    from seriatim.store.port import EventTypeCount, StreamSummary

P = ParamSpec("P")
T = TypeVar("T")
_END: Any = object()
# Appends up to this size are validated on the event loop; a thread switch would cost more.
_LOOP_CHARACTERS = 1 << 15  # of payload text
_VALUE_CHARACTERS = 8  # the share of one value in this size, whatever its type
_LOOP_EVENTS = 250


class BaseAsyncLog:
    """A log for asyncio; a cancelled append that was not yet sent stores nothing.

    Calls that would block the event loop run in `executor`, which may limit their
    concurrency; validation of large appends, which uses the processor and waits for nothing, runs
    in the executor `compute`.

    Example:
        async with seriatim.open("memory:").aio as orders:
            await orders.append([NewEvent("order.placed", {"id": 1})])
    """

    def __init__(
        self,
        log: BaseLog,
        executor: AsyncExecutor = asyncio.to_thread,
        compute: AsyncExecutor | None = None,
    ) -> None:
        self._log = log
        self._execute = executor
        self._compute = compute or executor

    async def append(
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> AppendResult:
        """Append a batch atomically and return its receipt; see `Log.append`.

        Raises:
            SeriatimError: The append is refused, timed out or failed, as in `Log.append`.

        Example:
            receipt = await log.aio.append([NewEvent("order.placed", {"total": 12})])
        """
        draft = self._log.draft(LOG_PROFILE, events, condition, idempotency_key, command)
        return await self.append_draft(draft, timeout=timeout, connection=connection)

    async def append_draft(
        self,
        draft: Draft,
        *,
        timeout: float | None = None,
        connection: Any = None,
    ) -> AppendResult:
        """Append a draft; see `BaseLog.append`."""
        log = self._log
        seconds = log.settings.timeout_s if timeout is None else check_timeout(timeout)
        if connection is not None and not is_async(connection):
            raise invalid_argument(
                "connection", "is not asynchronous: call log.append(…, connection=…)"
            )
        telemetry = AppendTelemetry(log.telemetry, draft.tenant_id)
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        with telemetry:
            for _ in range(RULE_RELOADS_MAX):
                scans: list[Scan] = []  # of a small append, scanned together with others
                if draft.condition is None and not _is_large(draft.events):
                    try:
                        telemetry.request = log.appender.prepare_request(
                            draft,
                            telemetry.trace_headers,
                            scans.extend if connection is None else None,
                        )
                    except SeriatimError:
                        scan_events(scans)  # what the guard rejects is reported first (B4)
                        raise
                else:  # evaluating a condition, or many events, would block the loop
                    prepare = partial(log.appender.prepare_request, draft, telemetry.trace_headers)
                    run = self._compute if draft.condition is None else self._execute
                    telemetry.request = await self._run_before(deadline, prepare, run)
                request = telemetry.request
                try:
                    if connection is not None:
                        return telemetry.complete(await log.store.append_in(connection, request))
                    remaining = remaining_time(deadline, now())
                    return telemetry.complete(
                        await log.appender.submission.append_async(request, remaining, scans)
                    )
                except StaleRules:
                    await self._run_before(deadline, log.appender.reload_rules, self._execute)
            raise rules_changing_error()

    async def explain(
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
    ) -> Explanation:
        """Return what `append` would do with these arguments now, and why; see `Log.explain`.

        Raises:
            BackendFailure: The store failed.

        Example:
            explanation = await log.aio.explain([NewEvent("order.placed")])
        """
        return await self._run_cancellable(
            lambda: self._log.explain(events, condition, idempotency_key, command=command)
        )

    async def _run_before(
        self, deadline: float, function: Callable[[], T], run: AsyncExecutor
    ) -> T:
        """Run a part of an append in a thread; raises `TimedOut` at the append's deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._run_cancellable(function, run=run)
        except TimeoutError:
            raise preparation_timeout() from None

    async def _run_cancellable(
        self, function: Callable[..., T], *args: Any, run: AsyncExecutor | None = None
    ) -> T:
        """Run a read in a thread and cancel it in the store when the awaiting task ends."""
        cancellation = Cancellation()
        try:
            with cancellable(cancellation):
                return await (run or self._execute)(function, *args)
        finally:
            cancellation.cancel()

    @list_read_filters
    async def page(self, *, limit: int | None = None, **filters: Unpack[ReadFilters]) -> Page:
        """Read one page by position; see `Log.page`.

        Raises:
            InvalidArgument: A filter is malformed.

        Example:
            page = await log.aio.page(limit=100, types=["order.*"])
        """
        return await self._run_cancellable(lambda: self._log.page(limit=limit, **filters))

    @list_read_filters
    def read(
        self,
        *,
        limit: int | None = None,
        batch_size: int | None = None,
        **filters: Unpack[ReadFilters],
    ) -> AsyncGenerator[EventRecord, None]:
        """Iterate over records in order, up to the current head; see `Log.read`.

        Raises:
            InvalidArgument: A filter is malformed.

        Example:
            async for record in log.aio.read(types=["order.*"], limit=10):
                print(record.position, record.event_type)
        """
        checked_limit = check_count("limit", limit)
        batches = self._log.read_batches(batch_size=batch_size, **filters)
        return _flatten(iterate_in_threads(batches), checked_limit)

    @list_read_filters
    def read_batches(
        self,
        *,
        limit: int | None = None,
        batch_size: int | None = None,
        **filters: Unpack[ReadFilters],
    ) -> AsyncGenerator[list[EventRecord], None]:
        """Iterate over batches of records, up to the current head; see `Log.read_batches`.

        Raises:
            InvalidArgument: A filter is malformed.

        Example:
            async for batch in log.aio.read_batches(batch_size=500):
                print(len(batch))
        """
        batches = self._log.read_batches(limit=limit, batch_size=batch_size, **filters)
        return iterate_in_threads(batches)

    def read_stream(
        self,
        stream: StreamRef,
        *,
        since: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncGenerator[EventRecord, None]:
        """Iterate over the records of a stream in order; see `Log.read_stream`.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            history = [record async for record in log.aio.read_stream(("order", "7"))]
        """
        return self.read(stream=stream, since_seq=since, limit=limit, newest_first=newest_first)

    async def last_event(self, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream, or None; see `Log.last_event`.

        Raises:
            InvalidArgument: The stream is not a pair of a type and an id.

        Example:
            last = await log.aio.last_event(("order", "7"))
        """
        return await self._execute(self._log.last_event, stream)

    async def event(self, event_id: str) -> EventRecord:
        """Return an event by its id; see `Log.event`.

        Raises:
            NotFound: The tenant has no event with that id.

        Example:
            record = await log.aio.event("e-1")
        """
        return await self._execute(self._log.event, event_id)

    async def streams(
        self, stream_type: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[StreamSummary]:
        """List streams in the order of their first events; see `Log.streams`.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            streams = await log.aio.streams("order", limit=10)
        """
        return await self._execute(self._log.streams, stream_type, after=after, limit=limit)

    async def event_types(
        self, prefix: str = "", *, after: str = "", limit: int = EVENT_TYPES_MAX
    ) -> list[EventTypeCount]:
        """List event types by name, with bounded counts; see `Log.event_types`.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            types = await log.aio.event_types("order.", limit=10)
        """
        return await self._execute(self._log.event_types, prefix, after=after, limit=limit)

    async def find_append(
        self, idempotency_key: str, *, producer_id: str | None = None
    ) -> AppendResult | None:
        """Return the receipt stored under an idempotency key, or None; see `Log.find_append`.

        Raises:
            InvalidArgument: The key or the producer is malformed.

        Example:
            receipt = await log.aio.find_append("import-2026-11-18")
        """
        return await self._execute(self._log.find_append, idempotency_key, producer_id=producer_id)

    async def find_command(self, *, actor: str, endpoint: str, key: str) -> AppendResult | None:
        """Return the receipt stored for a command, or None; see `Log.find_command`.

        Raises:
            InvalidArgument: An argument is malformed.

        Example:
            find = log.aio.find_command
            receipt = await find(actor="u-1", endpoint="POST /orders", key="k-1")
        """
        return await self._execute(self._log.find_command, actor=actor, endpoint=endpoint, key=key)

    async def decide(
        self,
        context: StreamRef | Query,
        decider: AsyncDecider,
        *,
        attempts: int = 10,
        idempotency_key: str | None = None,
        producer_id: str | None = None,
        command: Command | None = None,
    ) -> AppendResult | None:
        """Load a stream or context, append the events that `decider` returns; see `Log.decide`.

        The decider may be a coroutine function.

        Raises:
            ConditionalAppendConflict: The context changed at every attempt.
            EventSequenceInvalid: The stream changed at every attempt.

        Example:
            async def book(records):
                return [] if records else [NewEvent("seat.booked", stream=("seat", "12A"))]

            await log.aio.decide(("seat", "12A"), book)
        """
        decision = Decision(
            context=context,
            attempts=attempts,
            idempotency_key=idempotency_key,
            producer_id=producer_id,
            command=command,
        )
        return await decide_and_append_async(self, self._log, decision, decider)

    async def query(
        self,
        query: Query = MATCH_ALL,
        *,
        limit: int | None = None,
        after: int | None = None,
        head: int | None = None,
        until: int | None = None,
        newest_first: bool = False,
    ) -> QueryResult:
        """Return the matching records and the version of their context; see `Log.query`.

        Raises:
            InvalidQuery: The query is malformed.
            InvalidArgument: A position is malformed, or `head` is after the log's head.

        Example:
            result = await log.aio.query(Query([Filter(types=["order.paid"])]), limit=10)
        """
        return await self._run_cancellable(
            lambda: self._log.query(
                query, limit=limit, after=after, head=head, until=until, newest_first=newest_first
            )
        )

    async def head(self) -> int:
        """Return the last position of the log; see `Log.head`.

        Example:
            position = await log.aio.head()
        """
        return await self._execute(self._log.head)

    async def identity(self) -> LogIdentity:
        """Return the log's identity; see `Log.identity`.

        Example:
            identity = await log.aio.identity()
        """
        return await self._execute(self._log.identity)

    async def declare(self, *declarations: Declaration) -> None:
        """Declare kinds, types and payload indexes; see `Log.declare`.

        Raises:
            InvalidArgument: A value is not a declaration.
            Conflict: The log has a declaration of that name which cannot be changed to this one.

        Example:
            await log.aio.declare(PayloadIndex("order.placed", "customer"))
        """
        await self._execute(self._log.declare, *declarations)

    def tail(
        self,
        query: Query = MATCH_ALL,
        *,
        after: int | None = None,
        idle_timeout: float | None = None,
        poll_s: float = 1.0,
        on_scanned: Callable[[int], None] | None = None,
    ) -> AsyncGenerator[Batch, None]:
        """Follow the log from a position without a stored cursor; see `Log.tail`.

        Raises:
            InvalidArgument: `after` is malformed or after the head.
            LimitExceeded: The process has too many open subscriptions and tails.

        Example:
            async for batch in log.aio.tail(after=0, idle_timeout=0.1):
                print([record.event_type for record in batch])
        """
        tail = self._log.tail(
            query, after=after, idle_timeout=idle_timeout, poll_s=poll_s, on_scanned=on_scanned
        )
        return iterate_in_own_thread(iter(tail), tail.stop)

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
    ) -> AsyncGenerator[Batch, None]:
        """Open a durable subscription; see `Log.subscribe`.

        With a retry policy, a loop that is left during a batch counts as a failed attempt at it.

        Raises:
            Conflict: The subscription exists with another query.
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.
            LimitExceeded: The process has too many open subscriptions and tails.
            SubscriptionParked: It stops at a failed batch; raised while iterating.

        Example:
            async for batch in log.aio.subscribe("mailer", idle_timeout=0.1):
                print("send", len(batch), "mails")
        """
        subscription = self._log.subscribe(
            name,
            query,
            start=start,
            lease_s=lease_s,
            poll_s=poll_s,
            idle_timeout=idle_timeout,
            backoff_s=backoff_s,
            backoff_cap_s=backoff_cap_s,
            retry=retry,
            on_poison=on_poison,
        )
        return iterate_in_own_thread(iter(subscription), subscription.stop)

    @property
    def subscriptions(self) -> AsyncSubscriptions:
        """The durable subscriptions of this tenant; see `Log.subscriptions`."""
        return AsyncSubscriptions(self._log.subscriptions, self._execute)

    async def reset_subscription(self, name: str, position: int, query: Query = MATCH_ALL) -> None:
        """Set the cursor of a subscription to any position; see `Log.reset_subscription`.

        Raises:
            InvalidArgument: The position is malformed or after the head.

        Example:
            await log.aio.reset_subscription("mailer", 0)
        """
        await self._execute(self._log.reset_subscription, name, position, query)

    @property
    def projections(self) -> AsyncProjections:
        """The projections in the default read model; see `Log.projections`."""
        return AsyncProjections(self._log.projections, self._execute)

    def projections_at(self, target: str) -> AsyncProjections:
        """Return the projections in the read model at a URL; see `Log.projections_at`.

        Example:
            projections = log.aio.projections_at("sqlite:///read-model.db")
        """
        return AsyncProjections(self._log.projections_at(target), self._execute)

    def for_tenant(self, tenant_id: str) -> BaseAsyncLog:
        """Return this log for another tenant; see `Log.for_tenant`.

        Example:
            await log.aio.for_tenant("acme").append([NewEvent("order.placed", {"total": 12})])
        """
        return BaseAsyncLog(self._log.for_tenant(tenant_id), self._execute, self._compute)

    async def purge_commands(self, *, older_than_hours: float = 24.0) -> int:
        """Delete old command records, and return how many; see `Log.purge_commands`.

        Raises:
            InvalidArgument: `older_than_hours` is less than 24.

        Example:
            deleted = await log.aio.purge_commands(older_than_hours=72)
        """
        return await self._execute(self._log.purge_commands, older_than_hours=older_than_hours)

    async def close(self) -> None:
        """Wait for accepted appends, then close all connections; see `Log.close`.

        Example:
            await log.aio.close()
        """
        await self._execute(self._log.close)

    async def __aenter__(self) -> Self:
        """Return the log, to be closed at the end of an `async with` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the log."""
        await self.close()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run any other blocking function in a thread, without blocking the event loop.

        Args:
            function: The function.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of the function; its errors are raised.

        Example:
            names = await log.aio.call(lambda: [stream.stream_id for stream in log.streams()])
        """
        return await self._execute(function, *args, **kwargs)


def _is_large(events: object) -> bool:
    """Return whether validating these events would block the loop for milliseconds."""
    if not isinstance(events, list | tuple):
        return False
    if len(events) > _LOOP_EVENTS:
        return True
    budget = _LOOP_CHARACTERS
    # This runs for every append, so only arrays and objects take a turn of the outer loop. The list
    # grows while it is iterated.
    pending: list[Any] = [[getattr(event, "payload", event) for event in events]]
    for container in pending:
        budget -= _VALUE_CHARACTERS * len(container)
        if budget <= 0:
            return True  # before all of it is visited
        values = container
        if type(container) is dict:
            values = container.values()
            try:
                budget -= sum(map(len, container))
            except TypeError:
                return True  # a key is not a string: a thread finds the error to report
        for value in values:
            kind = type(value)
            if kind is str:
                budget -= len(value)
            elif kind is dict or kind is list:
                pending.append(value)
    return budget <= 0


async def iterate_in_threads(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate over a finite iterator, running each step in a worker thread of the event loop."""
    while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield item


async def _flatten(
    batches: AsyncIterator[list[EventRecord]], limit: int | None
) -> AsyncGenerator[EventRecord, None]:
    remaining = limit
    async for batch in batches:
        for record in batch if remaining is None else batch[:remaining]:
            yield record
        if remaining is not None:
            remaining -= len(batch)
            if remaining <= 0:
                return

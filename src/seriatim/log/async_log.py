"""The log for asyncio: appends use the loop's own committer, reads run in worker threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from seriatim.core.decide import StaleRules
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, StreamRef
from seriatim.core.kinds import Declaration
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
from seriatim.log.arguments import check_count, check_timeout, invalid_argument, is_async
from seriatim.log.async_iteration import iterate_in_own_thread
from seriatim.log.decision import AsyncDecider, decide_and_append_async
from seriatim.log.executor import AsyncExecutor
from seriatim.log.projections import AsyncProjections
from seriatim.store.cancellation import Cancellation, cancellable

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog, Events, Page
    from seriatim.log.batches import Batch
    from seriatim.log.query_execution import QueryResult
    from seriatim.store.port import StreamSummary, SubscriptionStatus

T = TypeVar("T")
_END: Any = object()
# Appends up to this size are validated on the event loop; a thread switch would cost more.
_LOOP_CHARACTERS = 1 << 15  # of payload text
_VALUE_CHARACTERS = 8  # the share of one value in this size, whatever its type
_LOOP_EVENTS = 250


class AsyncLog:
    """A log for asyncio; a cancelled append that was not yet sent stores nothing.

    Calls that would block the event loop run in the executor `in_thread`, which may limit their
    concurrency; validation of large appends, which uses the processor and waits for nothing, runs
    in the executor `compute`.

    Example:
        async with seriatim.open("sqlite:///app.db").aio as log:
            await log.append([NewEvent("order.placed", {"id": 1})])
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

    async def append(  # noqa: PLR0913 - as in BaseLog.append
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in BaseLog.append
        connection: Any = None,
    ) -> AppendResult:
        """Append a batch; see `Log.append`."""
        draft = self._log.draft(LOG_PROFILE, events, condition, idempotency_key, command)
        return await self.append_draft(draft, timeout=timeout, connection=connection)

    async def append_draft(
        self,
        draft: Draft,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
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
                if draft.condition is None and not _is_large(draft.events):
                    telemetry.request = log.appender.prepare_request(draft, telemetry.trace_headers)
                else:  # evaluating a condition, or many events, would block the loop
                    prepare = partial(log.appender.prepare_request, draft, telemetry.trace_headers)
                    run = self._compute if draft.condition is None else self._execute
                    telemetry.request = await self._run_before(deadline, prepare, run)
                request = telemetry.request
                try:
                    if connection is not None:
                        return telemetry.complete(await log.store.append_in(connection, request))
                    left = remaining_time(deadline, now())
                    return telemetry.complete(
                        await log.appender.async_committer().append(request, left)
                    )
                except StaleRules:
                    await self._run_before(deadline, log.appender.reload_rules, self._execute)
            raise rules_changing_error()

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

    async def page(self, **filters: Any) -> Page:
        """Read one page; see `Log.page`."""
        return await self._run_cancellable(lambda: self._log.page(**filters))

    def read(self, **filters: Any) -> AsyncIterator[EventRecord]:
        """Iterate over records; see `Log.read`."""
        limit = check_count("limit", filters.pop("limit", None))
        batches = self._log.read_batches(**filters)
        return _flatten(iterate_in_threads(batches), limit)

    def read_batches(self, **filters: Any) -> AsyncIterator[list[EventRecord]]:
        """Iterate over batches of records; see `Log.read_batches`."""
        return iterate_in_threads(self._log.read_batches(**filters))

    def read_stream(
        self,
        stream: StreamRef,
        *,
        since: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[EventRecord]:
        """Iterate over the records of a stream; see `Log.read_stream`."""
        return self.read(stream=stream, since_seq=since, limit=limit, newest_first=newest_first)

    async def last_event(self, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream; see `Log.last_event`."""
        return await self._execute(self._log.last_event, stream)

    async def event(self, event_id: str) -> EventRecord:
        """Return an event by its id; see `Log.event`."""
        return await self._execute(self._log.event, event_id)

    async def streams(
        self, stream_type: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[StreamSummary]:
        """List streams; see `Log.streams`."""
        return await self._execute(self._log.streams, stream_type, after=after, limit=limit)

    async def find_append(
        self, idempotency_key: str, *, producer_id: str | None = None
    ) -> AppendResult | None:
        """Find an append by its idempotency key; see `Log.find_append`."""
        find = self._log.find_append
        return await self._execute(lambda: find(idempotency_key, producer_id=producer_id))

    async def find_command(self, *, actor: str, endpoint: str, key: str) -> AppendResult | None:
        """Find an append by its command; see `Log.find_command`."""
        find = self._log.find_command
        return await self._execute(lambda: find(actor=actor, endpoint=endpoint, key=key))

    async def decide(
        self, context: StreamRef | Query, decider: AsyncDecider, **options: Any
    ) -> AppendResult | None:
        """Load, decide and append; see `Log.decide`. The decider may be a coroutine function."""
        return await decide_and_append_async(self, self._log, context, decider, **options)

    async def query(self, query: Query = MATCH_ALL, **options: Any) -> QueryResult:
        """Return matching records and the context's version; see `Log.query`."""
        return await self._run_cancellable(lambda: self._log.query(query, **options))

    async def head(self) -> int:
        """Return the last position of the log; see `Log.head`."""
        return await self._execute(self._log.head)

    async def identity(self) -> LogIdentity:
        """Return the log's identity; see `Log.identity`."""
        return await self._execute(self._log.identity)

    async def declare(self, *declarations: Declaration) -> None:
        """Declare kinds, types and payload indexes; see `Log.declare`."""
        await self._execute(self._log.declare, *declarations)

    def tail(self, query: Query = MATCH_ALL, **options: Any) -> AsyncIterator[Batch]:
        """Follow the log without a stored cursor; see `Log.tail`."""
        tail = self._log.tail(query, **options)
        return iterate_in_own_thread(iter(tail), tail.stop)

    def subscribe(
        self, name: str, query: Query = MATCH_ALL, **options: Any
    ) -> AsyncIterator[Batch]:
        """Open a durable subscription; see `Log.subscribe`."""
        subscription = self._log.subscribe(name, query, **options)
        return iterate_in_own_thread(iter(subscription), subscription.stop)

    async def subscriptions(self) -> list[SubscriptionStatus]:
        """List durable subscriptions; see `Log.subscriptions`."""
        return await self._execute(self._log.subscriptions)

    async def reset_subscription(self, name: str, position: int, query: Query = MATCH_ALL) -> None:
        """Set the cursor of a subscription; see `Log.reset_subscription`."""
        await self._execute(self._log.reset_subscription, name, position, query)

    @property
    def projections(self) -> AsyncProjections:
        """The projections in the default read model; see `Log.projections`."""
        return AsyncProjections(self._log.projections, self._execute)

    def projections_at(self, target: str) -> AsyncProjections:
        """Return the projections in another read model; see `Log.projections_at`."""
        return AsyncProjections(self._log.projections_at(target), self._execute)

    def for_tenant(self, tenant_id: str) -> AsyncLog:
        """Return this log for another tenant; see `Log.for_tenant`."""
        return AsyncLog(self._log.for_tenant(tenant_id), self._execute)

    async def purge_commands(self, *, older_than_hours: float = 24.0) -> int:
        """Delete old command records; see `Log.purge_commands`."""
        return await self._execute(self._log.purge_commands, older_than_hours=older_than_hours)

    async def close(self) -> None:
        """Wait for accepted appends, then close; see `Log.close`."""
        await self._execute(self._log.close)

    async def __aenter__(self) -> Self:
        """Return the log, to be closed at the end of an `async with` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the log."""
        await self.close()

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run any other blocking function in a thread, without blocking the event loop."""
        return await self._execute(function, *args, **kwargs)


def _is_large(events: object) -> bool:
    """Return whether validating these events would block the loop for milliseconds."""
    if not isinstance(events, list | tuple):
        return False
    if len(events) > _LOOP_EVENTS:
        return True
    left = _LOOP_CHARACTERS
    pending: list[Any] = [getattr(event, "payload", event) for event in events]
    while pending and left > 0:
        value = pending.pop()
        if type(value) is str:
            left -= len(value)
        elif type(value) is dict or type(value) is list:
            left -= _VALUE_CHARACTERS * len(value)
            if left <= 0:
                break  # before all of it is copied
            pending += value
            if type(value) is dict:
                pending += value.values()
    return left <= 0


async def iterate_in_threads(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate over a finite iterator, running each step in a worker thread of the event loop."""
    while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield item


async def _flatten(
    batches: AsyncIterator[list[EventRecord]], limit: int | None
) -> AsyncIterator[EventRecord]:
    left = limit
    async for batch in batches:
        for record in batch if left is None else batch[:left]:
            yield record
        if left is not None:
            left -= len(batch)
            if left <= 0:
                return

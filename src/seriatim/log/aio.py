"""The same log, awaited: appends go by the loop's own lane, reads run in worker threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from seriatim.core.decide import StaleRules
from seriatim.core.doors import LOG
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, StreamRef
from seriatim.core.kinds import Declaration
from seriatim.core.query import EVERYTHING, Query
from seriatim.core.request import Command, Condition
from seriatim.log.appending import (
    RULE_RELOADS,
    Draft,
    Watch,
    looked_too_long,
    rules_kept_changing,
    time_left,
)
from seriatim.log.arguments import bad, check_count, check_timeout, is_async
from seriatim.log.deciding import AsyncDecider, decide_and_append_async
from seriatim.log.followed import followed
from seriatim.log.in_thread import InThread
from seriatim.log.projections import AsyncProjections
from seriatim.store.cancellation import Cancellation, cancellable

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog, Events, Page
    from seriatim.log.batches import Batch
    from seriatim.log.querying import QueryResult
    from seriatim.store.port import StreamSummary, SubscriptionStatus

T = TypeVar("T")
_END: Any = object()
_LOOP_CHARACTERS = 1 << 15  # in payloads: their guard and their hash take as long
_VALUE_CHARACTERS = 8  # that one value counts, whatever it is
_LOOP_EVENTS = 250  # looked at on the loop: some milliseconds, a thread's change included


class AsyncLog:
    """A log for asyncio; a cancelled append that was not yet sent leaves nothing behind.

    What would hold the event loop up runs `in_thread`, which may bound how much of it there is;
    what needs the processor and waits for nothing runs by `compute`, if that is given.
    """

    def __init__(
        self,
        log: BaseLog,
        in_thread: InThread = asyncio.to_thread,
        compute: InThread | None = None,
    ) -> None:
        self._log = log
        self._in_thread = in_thread
        self._compute = compute or in_thread

    async def append(  # noqa: PLR0913 - the arguments of the sync append
        self,
        events: Events,
        condition: Condition | Sequence[Condition] | None = None,
        idempotency_key: str | None = None,
        *,
        command: Command | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same argument as in the sync call
        connection: Any = None,
    ) -> AppendResult:
        """Append a batch; see `Log.append`."""
        draft = self._log.draft(LOG, events, condition, idempotency_key, command)
        return await self.append_draft(draft, timeout=timeout, connection=connection)

    async def append_draft(
        self,
        draft: Draft,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        connection: Any = None,
    ) -> AppendResult:
        """Append what a door drafted."""
        log = self._log
        seconds = log.settings.timeout_s if timeout is None else check_timeout(timeout)
        if connection is not None and not is_async(connection):
            raise bad("connection", "is not async: call log.append(…, connection=…) instead")
        watch = Watch(log.telemetry, draft.tenant_id)
        now = asyncio.get_running_loop().time
        until = now() + seconds
        with watch:
            for _ in range(RULE_RELOADS):
                if draft.condition is None and not _is_large(draft.events):
                    watch.request = log.appender.request(draft, watch.carried)
                else:  # looking a condition up, or at thousands of events, would hold the loop
                    ask = partial(log.appender.request, draft, watch.carried)
                    run = self._compute if draft.condition is None else self._in_thread
                    watch.request = await self._in_time(until, ask, run)
                try:
                    if connection is not None:
                        return watch.done(await log.store.append_in(connection, watch.request))
                    left = time_left(until, now())
                    return watch.done(await log.appender.lane().append(watch.request, left))
                except StaleRules:
                    await self._in_time(until, log.appender.reload_rules, self._in_thread)
            raise rules_kept_changing()

    async def _in_time(self, until: float, act: Callable[[], T], run: InThread) -> T:
        """Look something up for an append, of whose time it takes."""
        try:
            async with asyncio.timeout_at(until):
                return await self._while_awaited(act, run)
        except TimeoutError:
            raise looked_too_long() from None

    async def _while_awaited(self, act: Callable[[], T], run: InThread | None = None) -> T:
        """Read in a thread; the read ends with whoever awaits it."""
        cancellation = Cancellation()
        try:
            with cancellable(cancellation):
                return await (run or self._in_thread)(act)
        finally:
            cancellation.cancel()

    async def page(self, **filters: Any) -> Page:
        """Read one page; see `Log.page`."""
        return await self._while_awaited(lambda: self._log.page(**filters))

    def read(self, **filters: Any) -> AsyncIterator[EventRecord]:
        """Stream records; see `Log.read`."""
        limit = check_count("limit", filters.pop("limit", None))
        batches = self._log.read_batches(**filters)
        return _flatten(in_threads(batches), limit)

    def read_batches(self, **filters: Any) -> AsyncIterator[list[EventRecord]]:
        """Stream batches of records; see `Log.read_batches`."""
        return in_threads(self._log.read_batches(**filters))

    def read_stream(
        self,
        stream: StreamRef,
        *,
        since: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[EventRecord]:
        """Stream one stream's records; see `Log.read_stream`."""
        return self.read(stream=stream, since_seq=since, limit=limit, newest_first=newest_first)

    async def last_event(self, stream: StreamRef) -> EventRecord | None:
        """Return the last event of a stream; see `Log.last_event`."""
        return await self._in_thread(self._log.last_event, stream)

    async def event(self, event_id: str) -> EventRecord:
        """Return one event by its id; see `Log.event`."""
        return await self._in_thread(self._log.event, event_id)

    async def streams(
        self, stream_type: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[StreamSummary]:
        """List streams; see `Log.streams`."""
        return await self._in_thread(self._log.streams, stream_type, after=after, limit=limit)

    async def find_append(
        self, idempotency_key: str, *, producer_id: str | None = None
    ) -> AppendResult | None:
        """Find an append by its key; see `Log.find_append`."""
        find = self._log.find_append
        return await self._in_thread(lambda: find(idempotency_key, producer_id=producer_id))

    async def find_command(self, *, actor: str, endpoint: str, key: str) -> AppendResult | None:
        """Find an append by its command; see `Log.find_command`."""
        find = self._log.find_command
        return await self._in_thread(lambda: find(actor=actor, endpoint=endpoint, key=key))

    async def decide(
        self, context: StreamRef | Query, decider: AsyncDecider, **options: Any
    ) -> AppendResult | None:
        """Load, decide, append, bounded; see `Log.decide`. The decider may be a coroutine."""
        return await decide_and_append_async(self, self._log, context, decider, **options)

    async def query(self, query: Query = EVERYTHING, **options: Any) -> QueryResult:
        """Query; see `Log.query`."""
        return await self._while_awaited(lambda: self._log.query(query, **options))

    async def head(self) -> int:
        """Return the last position of the whole log."""
        return await self._in_thread(self._log.head)

    async def identity(self) -> LogIdentity:
        """Return which log this is, and its epoch."""
        return await self._in_thread(self._log.identity)

    async def declare(self, *declarations: Declaration) -> None:
        """Declare kinds, types and payload indexes; see `Log.declare`."""
        await self._in_thread(self._log.declare, *declarations)

    def tail(self, query: Query = EVERYTHING, **options: Any) -> AsyncIterator[Batch]:
        """Follow the log; see `Log.tail`."""
        tail = self._log.tail(query, **options)
        return followed(iter(tail), tail.stop)

    def subscribe(
        self, name: str, query: Query = EVERYTHING, **options: Any
    ) -> AsyncIterator[Batch]:
        """Follow the log under a durable name; see `Log.subscribe`."""
        subscription = self._log.subscribe(name, query, **options)
        return followed(iter(subscription), subscription.stop)

    async def subscriptions(self) -> list[SubscriptionStatus]:
        """List durable subscriptions; see `Log.subscriptions`."""
        return await self._in_thread(self._log.subscriptions)

    async def reset_subscription(self, name: str, position: int, query: Query = EVERYTHING) -> None:
        """Move a subscription anywhere; see `Log.reset_subscription`."""
        await self._in_thread(self._log.reset_subscription, name, position, query)

    @property
    def projections(self) -> AsyncProjections:
        """The projections beside this log; see `Log.projections`."""
        return AsyncProjections(self._log.projections, self._in_thread)

    def projections_at(self, target: str) -> AsyncProjections:
        """Return the projections at another place; see `Log.projections_at`."""
        return AsyncProjections(self._log.projections_at(target), self._in_thread)

    def for_tenant(self, tenant_id: str) -> AsyncLog:
        """Return this log as another tenant sees it; see `Log.for_tenant`."""
        return AsyncLog(self._log.for_tenant(tenant_id), self._in_thread)

    async def purge_commands(self, *, older_than_hours: float = 24.0) -> int:
        """Forget old command records; see `Log.purge_commands`."""
        return await self._in_thread(self._log.purge_commands, older_than_hours=older_than_hours)

    async def close(self) -> None:
        """Finish what was accepted, then let go of the store; see `Log.close`."""
        await self._in_thread(self._log.close)

    async def __aenter__(self) -> Self:
        """Use the log for a while: `async with seriatim.open(url).aio as log`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def call(self, act: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run any other act of the log without blocking the event loop."""
        return await self._in_thread(act, *args, **kwargs)


def _is_large(events: object) -> bool:
    """Tell whether checking these events would hold the loop: many of them, or much in them."""
    if not isinstance(events, list | tuple):
        return False
    if len(events) > _LOOP_EVENTS:
        return True
    left = _LOOP_CHARACTERS
    todo: list[Any] = [getattr(event, "payload", event) for event in events]
    while todo and left > 0:
        value = todo.pop()
        if type(value) is str:
            left -= len(value)
        elif type(value) is dict or type(value) is list:
            left -= _VALUE_CHARACTERS * len(value)
            if left <= 0:
                break  # before all of it is copied
            todo += value
            if type(value) is dict:
                todo += value.values()
    return left <= 0


async def in_threads(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate over what ends by itself, each step in a worker thread of the event loop."""
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

"""B13, E5: the asyncio interface of the log, `log.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from seriatim.config import Settings
from seriatim.core.decide import StaleRules
from seriatim.core.errors import (
    BackendFailure,
    EventSequenceInvalid,
    InvalidArgument,
    SeriatimError,
    TimedOut,
)
from seriatim.core.kinds import Rules, StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.request import AppendRequest, Command, ExpectedContext, ExpectedSeq
from seriatim.factory import Log
from seriatim.log.batches import Batch
from seriatim.store.port import Lease, Outcome, Store
from seriatim.testing.factories import (
    WAIT_TIMEOUT_S,
    GatedStore,
    SharedStore,
    assert_refused,
    count_queued,
    event,
    events,
    open_on_same_store,
    positions,
    wait_for,
)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop, with a timeout."""
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_TIMEOUT_S))


async def _call_lookups(log: Log) -> None:
    """Call every method of the asyncio interface that only looks something up."""
    aio = log.aio
    assert await aio.last_event(("s", "1")) is None
    stored = await aio.append([event(stream=("s", "1"), event_id="e-1"), event("other")])
    assert (await aio.event("e-1")).position == stored.first_position
    last = await aio.last_event(("s", "1"))
    assert last is not None
    assert last.event_id == "e-1"
    assert [summary.stream_id for summary in await aio.streams()] == ["1"]
    assert await aio.event_types() == log.event_types()
    assert await aio.identity() == log.identity()
    assert [positions(summary) async for summary in aio.read_batches(batch_size=1)] == [[1], [2]]
    down = [record.position async for record in aio.read(newest_first=True)]
    assert down == [2, 1]
    down = [record.position async for record in aio.read_stream(("s", "1"), newest_first=True)]
    assert down == [1]
    await aio.declare(StreamKind(name="case"))
    await aio.reset_subscription("mailer", 1)
    assert [(summary.name, summary.position) for summary in await aio.subscriptions()] == [
        ("mailer", 1)
    ]
    other = aio.for_tenant("other")
    assert [record async for record in other.read()] == []
    with pytest.raises(SeriatimError):
        await other.event("e-1")
    assert await aio.purge_commands() == 0


class GatedLookupStore(SharedStore):
    """A store that blocks at a gate to release leases, evaluate conditions or read rules."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.gate = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.released_by: list[int] = []
        self.stale = False

    def _wait_at_gate(self) -> None:
        self.arrived.release()
        if not self.gate.wait(WAIT_TIMEOUT_S):
            msg = "the gate was not opened in time"
            raise AssertionError(msg)

    def release_lease(self, lease: Lease) -> None:
        """Record the calling thread, wait for the gate, and release the lease."""
        self.released_by.append(threading.get_ident())
        self._wait_at_gate()
        self.wrapped.release_lease(lease)

    def prepare_request(self, request: AppendRequest, rules: Rules) -> AppendRequest:
        """Wait for the gate if there are conditions, then evaluate them."""
        if request.conditions:
            self._wait_at_gate()
        return self.wrapped.prepare_request(request, rules)

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Commit, or report changed rules if `stale` is set."""
        return [StaleRules() for _ in group] if self.stale else self.wrapped.append(group)

    def rules(self) -> Rules:
        """Return the rules; wait for the gate if `stale` is set."""
        if self.stale:
            self._wait_at_gate()
        return self.wrapped.rules()


def _follow(log: Log) -> AsyncGenerator[Batch, None]:
    return log.aio.subscribe("s", poll_s=0.02)


async def _first(batches: AsyncIterator[Batch]) -> Batch:
    return await anext(batches)


def _following_threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("seriatim-following")
    ]


class AsyncContract:
    """B13, E5: the asyncio interface behaves like the synchronous one."""

    def test_every_method_is_awaitable(self, log: Log) -> None:
        """B13, E7: every method of the log has an awaitable form with the same results."""
        run_coroutine(_call_lookups(log))

    def test_async_with_closes_the_log(self, log: Log) -> None:
        """B13: `async with` closes the log on exit."""

        async def use() -> None:
            with open_on_same_store(log) as other:
                async with other.aio as aio:
                    await aio.append(events(1))
                    assert await aio.head() == 1
                with pytest.raises(SeriatimError):
                    await other.aio.append(events(1))

        run_coroutine(use())

    def test_appends_reads_and_queries_work_with_asyncio(self, log: Log) -> None:
        """B1: appends, reads and queries work with asyncio."""

        async def scenario() -> None:
            aio = log.aio
            result = await aio.append(events(3))
            assert (result.first_position, result.count) == (1, 3)
            await aio.append([event("a", stream=("s", "1"))])
            assert await aio.head() == 4
            assert positions([record async for record in aio.read()]) == [1, 2, 3, 4]
            assert positions([record async for record in aio.read(limit=2, batch_size=1)]) == [1, 2]
            assert positions([r async for r in aio.read_stream(("s", "1"))]) == [4]
            assert [r async for r in aio.read_stream(("s", "1"), since=1)] == []
            page = await aio.page(after=1, limit=2)
            assert (positions(page.records), page.last_scanned) == ([2, 3], 3)
            matches = await aio.query(Query([Filter(types=["a"])]))
            assert (positions(matches.records), matches.context_version) == ([4], 4)
            await aio.call(log.declare, StreamKind(name="case", first_seq=0))

        run_coroutine(scenario())
        log.append([event(stream=("case", "1"), stream_seq=0)])

    def test_conditions_keys_and_commands_work_with_asyncio(self, log: Log) -> None:
        """B8, C4, C5: conditions, keys and commands work with asyncio."""

        async def scenario() -> None:
            aio = log.aio
            await aio.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), None))
            with pytest.raises(EventSequenceInvalid):
                await aio.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), None))
            await aio.append(events(1), ExpectedContext(Query(), 1))
            await aio.append(events(2), idempotency_key="k")
            assert (await aio.append(events(2), idempotency_key="k")).replayed
            command = Command(actor="a", endpoint="e", key="k", response={"ok": True})
            await aio.append(events(1), command=command)
            assert (await aio.append(events(1), command=command)).response == {"ok": True}

        run_coroutine(scenario())
        assert log.head() == 5

    def test_invalid_arguments_raise_the_errors_of_the_sync_log(self, log: Log) -> None:
        """L3: invalid arguments raise the same errors as in the sync log, before anything runs."""

        async def scenario() -> None:
            wrong: list[dict[str, Any]] = [{"limit": 0}, {"limit": -1}, {"after": 2, "until": 1}]
            for bad in wrong:
                with pytest.raises(InvalidArgument):
                    [record async for record in log.aio.read(**bad)]
            with pytest.raises(InvalidArgument):
                await log.aio.append(events(1), timeout=0)
            with pytest.raises(InvalidArgument):
                await log.aio.page(limit=0)

        with assert_refused(log, "invalid_event", index=0, field="event_type"):
            run_coroutine(log.aio.append([event("")]))
        run_coroutine(scenario())

    def test_tasks_and_threads_leave_no_gaps(self, log: Log) -> None:
        """B9: tasks and threads share the committer, and positions have no gaps."""

        async def scenario() -> list[Any]:
            return await asyncio.gather(
                *(log.aio.append([event(stream=("s", "1"))]) for _ in range(40)),
                *(asyncio.to_thread(log.append, [event(stream=("s", "1"))]) for _ in range(10)),
            )

        results = run_coroutine(scenario())

        assert sorted(result.first_position for result in results) == list(range(1, 51))
        assert [r.stream_seq for r in log.read_stream(("s", "1"))] == list(range(1, 51))

    def test_one_of_several_racing_tasks_wins(self, log: Log) -> None:
        """B9: exactly one of several racing tasks wins."""

        async def scenario() -> list[Any]:
            racers = (log.aio.append(events(1), ExpectedContext(Query(), None)) for _ in range(20))
            return await asyncio.gather(*racers, return_exceptions=True)

        errors = [
            outcome for outcome in run_coroutine(scenario()) if isinstance(outcome, SeriatimError)
        ]

        assert {error.code for error in errors} == {"conditional_append_conflict"}
        assert (len(errors), log.head()) == (19, 1)

    def test_append_cancelled_before_the_send_stores_nothing(self, log: Log) -> None:
        """B13: an append that is cancelled before it was sent stores nothing."""
        store = GatedStore(log.store)

        async def scenario(slow: Log) -> None:
            taken = asyncio.create_task(slow.aio.append(events(1)))
            await asyncio.to_thread(store.wait_for_group)
            waiting = asyncio.create_task(slow.aio.append(events(2)))
            while not count_queued(slow):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            assert waiting.cancelled()
            store.gate.set()
            await taken
            await slow.aio.append(events(1))

        with open_on_same_store(log, store, settings=Settings(writers=1)) as slow:
            run_coroutine(scenario(slow))

        assert [record.append_position for record in log.read()] == [1, 2]

    def test_append_cancelled_after_the_send_is_found_by_a_retry(self, log: Log) -> None:
        """B13: an append that is cancelled after it was sent may be stored; a retry finds it."""
        store = GatedStore(log.store)

        async def scenario(slow: Log) -> None:
            sent = asyncio.create_task(slow.aio.append(events(2), idempotency_key="k"))
            await asyncio.to_thread(store.wait_for_group)
            sent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sent
            store.gate.set()
            assert (await slow.aio.append(events(2), idempotency_key="k")).replayed

        with open_on_same_store(log, store, settings=Settings(writers=1)) as slow:
            run_coroutine(scenario(slow))

        assert log.head() == 2

    def test_timeout_is_ambiguous_only_after_the_send(self, log: Log) -> None:
        """B13: a timeout before the send stores nothing; after it the outcome is ambiguous."""
        store = GatedStore(log.store)

        async def scenario(slow: Log) -> None:
            with pytest.raises(BackendFailure) as caught:
                await slow.aio.append(events(1), timeout=0.05)
            assert caught.value.ambiguous
            with pytest.raises(TimedOut):
                await slow.aio.append(events(5), timeout=0.02)
            store.gate.set()
            await slow.aio.append(events(1))

        with open_on_same_store(log, store, settings=Settings(writers=1)) as slow:
            run_coroutine(scenario(slow))

        assert [record.append_position for record in log.read()] == [1, 2]

    def test_async_tails_and_subscriptions_deliver_whole_appends(self, log: Log) -> None:
        """E5: async tails and subscriptions deliver whole appends, first stored ones, then live."""
        log.append(events(2))

        async def scenario() -> None:
            seen: list[list[int]] = []
            async for batch in log.aio.tail(after=0, poll_s=0.02):
                seen.append(positions(batch))
                if len(seen) == 3:
                    break
                await log.aio.append(events(len(seen)))
            assert seen == [[1, 2], [3], [4, 5]]
            durable = log.aio.subscribe("s", poll_s=0.02, idle_timeout=0.0)
            assert [positions(batch) async for batch in durable] == [[1, 2], [3], [4, 5]]

        run_coroutine(scenario())
        assert log.subscribe("s").position == 5

    def test_closing_a_subscription_releases_its_lease(self, log: Log) -> None:
        """E5: closing an async subscription releases its lease; the next one repeats its batch."""
        log.append(events(1))
        log.append(events(1))

        async def scenario() -> list[list[int]]:
            following = log.aio.subscribe("s", poll_s=0.02)
            assert positions(await anext(following)) == [1]
            assert positions(await anext(following)) == [2]
            await following.aclose()
            del following
            second = log.aio.subscribe("s", poll_s=0.02, idle_timeout=0.0)
            return [positions(batch) async for batch in second]

        assert run_coroutine(scenario()) == [[2]]

    def test_idle_tails_do_not_occupy_threads(self, log: Log) -> None:
        """E5: idle tails do not occupy threads of the executor."""

        async def scenario() -> None:
            following = [log.aio.tail(poll_s=0.05) for _ in range(20)]
            following += [log.aio.subscribe(f"s-{n}", poll_s=0.05) for n in range(20)]
            waiting = [asyncio.create_task(_first(tail)) for tail in following]
            await asyncio.sleep(0.05)
            assert await log.aio.head() == 0
            assert await asyncio.to_thread(log.head) == 0
            await log.aio.append(events(2))
            assert {tuple(positions(batch)) for batch in await asyncio.gather(*waiting)} == {(1, 2)}

        run_coroutine(scenario())
        wait_for(lambda: not _following_threads())

    def test_release_of_a_lease_does_not_block_the_loop(self, log: Log) -> None:
        """E5: a lease is released in the subscription's own thread, not on the event loop."""
        store = GatedLookupStore(log.store)

        async def leave_block(other: Log) -> None:
            following = _follow(other)
            await anext(following)
            leaving = asyncio.create_task(following.aclose())
            await asyncio.to_thread(store.arrived.acquire)
            assert not leaving.done()
            store.gate.set()
            await leaving

        async def broken(other: Log) -> None:
            async for _ in _follow(other):
                break
            gc.collect()
            await asyncio.to_thread(store.arrived.acquire)
            store.gate.set()

        async def cancelled(other: Log) -> None:
            following = _follow(other)
            await anext(following)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(following), 0.05)  # there are no further events
            await asyncio.to_thread(store.arrived.acquire)
            store.gate.set()

        log.append(events(1))
        for leave in (leave_block, broken, cancelled):
            store.gate.clear()
            with open_on_same_store(log, store) as other:
                run_coroutine(leave(other))
                wait_for(lambda: not _following_threads())
                log.reset_subscription("s", 0)
        assert len(store.released_by) == 3
        assert threading.get_ident() not in store.released_by

    def test_evaluation_counts_towards_the_timeout(self, log: Log) -> None:
        """B13: the evaluation of a condition counts towards the timeout of the append."""
        condition = ExpectedContext(Query(), None)
        store = GatedLookupStore(log.store)

        async def scenario(slow: Log) -> None:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                await slow.aio.append(events(1), condition, timeout=0.1)
            assert time.monotonic() - began < WAIT_TIMEOUT_S / 2
            store.gate.set()
            assert (await slow.aio.append(events(1), condition)).first_position == 1

        with open_on_same_store(log, store, settings=Settings(writers=1)) as slow:
            run_coroutine(scenario(slow))

        assert log.head() == 1

    def test_reading_rules_counts_towards_the_timeout(self, log: Log) -> None:
        """B13: reading rules that were declared meanwhile counts towards the timeout."""
        store = GatedLookupStore(log.store)

        async def scenario(slow: Log) -> None:
            store.stale = True
            with pytest.raises(TimedOut):
                await slow.aio.append(events(1), timeout=0.1)
            store.gate.set()

        with open_on_same_store(log, store, settings=Settings(writers=1)) as slow:
            run_coroutine(scenario(slow))

        assert log.head() == 0

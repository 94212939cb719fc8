"""E5: retry policies of subscriptions, and what operators do about batches that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from seriatim.core.errors import (
    BackendFailure,
    Conflict,
    InvalidArgument,
    LeaseLost,
    NotFound,
    SubscriptionParked,
)
from seriatim.core.event import EventRecord
from seriatim.core.handler import RetryPolicy
from seriatim.core.query import Filter, Query
from seriatim.factory import Log
from seriatim.log.subscription import Subscription
from seriatim.store.port import BatchAttempt, Cursor, Lease, Store, SubscriptionStatus
from seriatim.telemetry.event_bus import TelemetryEvent
from seriatim.testing.aio import run_coroutine
from seriatim.testing.factories import (
    WAIT_TIMEOUT_S,
    BatchCollector,
    SharedStore,
    assert_refused,
    event,
    events,
    open_on_same_store,
    positions,
    wait_for,
)

QUICK: dict[str, Any] = {"poll_s": 0.02, "idle_timeout": 0.0}
ONLY_A = Query([Filter(types=["a"])])


def bounded(attempts: int, **changes: Any) -> RetryPolicy:
    """Return a retry policy without long pauses."""
    return RetryPolicy(attempts=attempts, base_s=0.001, **changes)


def fail(batch: list[EventRecord]) -> None:
    """Refuse every batch."""
    raise ValueError(f"cannot handle {batch[0].position}")


def fail_at(position: int, handled: list[list[int]]) -> Callable[[list[EventRecord]], None]:
    """Return a handler that refuses the batch at a position, and notes all others."""

    def handler(batch: list[EventRecord]) -> None:
        if batch[0].position == position:
            fail(batch)
        handled.append(positions(batch))

    return handler


def park(log: Log, name: str = "s", query: Query | None = None) -> SubscriptionStatus:
    """Park a subscription at its next batch and return its status."""
    log.subscribe(name, query or Query(), retry=bounded(2), **QUICK).run(fail)
    status = log.subscriptions.get(name)
    assert status.status == "parked"
    return status


class FailingMoveStore(SharedStore):
    """A store that refuses to move a cursor, a number of times."""

    def __init__(self, store: Store, times: int) -> None:
        super().__init__(store)
        self.times = times

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        """Raise an error, or move the cursor."""
        if lease is not None and self.times:
            self.times -= 1
            msg = "the connection was lost"
            raise BackendFailure(msg)
        self.wrapped.put_cursor(cursor, lease=lease, reset=reset)


class BlockingHandler:
    """A handler that waits at one position until a test lets it go on."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.arrived = threading.Event()
        self.gate = threading.Event()
        self.collector = BatchCollector()

    def __call__(self, batch: list[EventRecord]) -> None:
        """Wait if the batch begins at the position, then note it."""
        if batch[0].position == self.position:
            self.arrived.set()
            assert self.gate.wait(WAIT_TIMEOUT_S)
        self.collector(batch)


class FailurePolicyContract:
    """E5: attempts are bounded and counted durably; a failing batch parks, is skipped, or stops."""

    @pytest.fixture
    def running(self) -> Iterator[list[tuple[Subscription, threading.Thread]]]:
        """Yield a list for the subscriptions that a test starts, and stop them at its end."""
        started: list[tuple[Subscription, threading.Thread]] = []
        yield started
        for subscription, _ in started:
            subscription.stop()
        for _, thread in started:
            thread.join(WAIT_TIMEOUT_S)
            assert not thread.is_alive()

    # -- the policies

    def test_without_a_policy_a_batch_is_repeated(self, log: Log) -> None:
        """E5: without a retry policy a batch is repeated until it succeeds; nothing is parked."""
        log.append(events(1))
        subscription = log.subscribe("s", backoff_s=0.001, **QUICK)
        seen: list[SubscriptionStatus] = []

        def handler(batch: list[EventRecord]) -> None:
            seen.append(log.subscriptions.get("s"))
            if len(seen) <= 7:
                fail(batch)

        subscription.run(handler)

        assert [status.status for status in seen] == ["ready"] + ["retrying"] * 7
        assert [status.attempts for status in seen] == [0, 2, 3, 4, 5, 6, 7, 8]
        assert [status.failures for status in seen] == list(range(8))
        [after] = log.subscriptions()
        assert (after.status, after.position, after.attempts, after.failures) == ("ready", 1, 0, 0)

    def test_the_last_attempt_parks(self, log: Log) -> None:
        """E5: after its last attempt a subscription stops at the batch and reports it."""
        log.append(events(1))
        log.append(events(3))
        log.append(events(1))
        handled: list[list[int]] = []
        calls: list[int] = []

        def handler(batch: list[EventRecord]) -> None:
            calls.append(batch[0].position)
            fail_at(2, handled)(batch)

        log.subscribe("s", retry=bounded(3), **QUICK).run(handler)

        assert (calls, handled) == ([1, 2, 2, 2], [[1]])
        status = log.subscriptions.get("s")
        assert (status.status, status.position, status.owner) == ("parked", 1, None)
        assert status.attempt is not None
        assert (status.attempt.first_position, status.attempt.last_position) == (2, 4)
        assert (status.attempts, status.failures) == (3, 3)
        assert status.attempt.parked_at is not None
        assert status.attempt.parked_at.endswith("Z")
        assert status.last_error == "ValueError: cannot handle 2"
        assert [one.name for one in log.subscriptions()] == ["s"]
        # Neither another policy nor its absence passes the batch.
        log.subscribe("s", **QUICK).run(handler)
        log.subscribe("s", retry=bounded(9), on_poison="skip", **QUICK).run(handler)
        assert list(log.subscribe("s", **QUICK)) == []
        assert len(calls) == 4

    def test_a_final_error_parks_at_once(self, log: Log) -> None:
        """E5: an error that the policy does not retry parks after the first attempt."""
        log.append(events(1))

        log.subscribe("s", retry=bounded(9, final=(ValueError,)), **QUICK).run(fail)

        status = log.subscriptions.get("s")
        assert (status.status, status.attempts) == ("parked", 1)

    def test_the_policy_skips_and_records(self, log: Log) -> None:
        """E5: a skipped batch is recorded with its positions and error; the next ones go on."""
        log.append([event("a")])
        log.append([event("a"), event("b"), event("a"), event("b")])
        log.append([event("b"), event("a")])
        handled: list[list[int]] = []
        reported: list[TelemetryEvent] = []
        undo = log.telemetry.subscribe(reported.append)
        subscription = log.subscribe("s", ONLY_A, retry=bounded(2), on_poison="skip", **QUICK)

        subscription.run(fail_at(2, handled))
        undo()

        assert handled == [[1], [7]]
        [skipped] = log.subscriptions.skipped("s")
        assert (skipped.first_position, skipped.last_position) == (2, 4)
        assert (skipped.attempts, skipped.error) == (2, "ValueError: cannot handle 2")
        assert (skipped.skipped_by, skipped.reason) == (None, "")
        assert skipped.skipped_at.endswith("Z")
        status = log.subscriptions.get("s")
        assert (status.status, status.position, status.skipped) == ("ready", 7, 1)
        assert status.last_error == "ValueError: cannot handle 2"
        [event_] = [one for one in reported if one.name == "subscription.skip"]
        assert event_.measurements == {"attempts": 2}
        assert event_.metadata["first_position"] == 2
        assert log.for_tenant("other").subscriptions() == []

    def test_stop_parks_and_raises(self, log: Log) -> None:
        """E5: `stop` parks and raises in the consumer, also when it starts again."""
        log.append(events(2))
        log.append(events(1))
        subscription = log.subscribe("s", retry=bounded(2), on_poison="stop", **QUICK)

        with pytest.raises(SubscriptionParked) as caught:
            subscription.run(fail)

        assert caught.value.code == "conflict"
        details = {"name": "s", "first_position": 1, "last_position": 2, "attempts": 2}
        assert caught.value.details == details
        assert isinstance(caught.value.__cause__, ValueError)
        assert log.subscriptions.get("s").last_error == "ValueError: cannot handle 1"
        calls = BatchCollector()
        with pytest.raises(SubscriptionParked):
            log.subscribe("s", retry=bounded(2), on_poison="stop", **QUICK).run(calls)
        with pytest.raises(SubscriptionParked):
            list(log.subscribe("s", retry=bounded(2), on_poison="stop", **QUICK))
        assert calls.empty
        log.subscriptions.retry("s")
        log.subscribe("s", retry=bounded(2), on_poison="stop", **QUICK).run(calls)
        assert positions(calls.records(3)) == [1, 2, 3]

    def test_a_parked_subscription_does_not_affect_others(self, log: Log) -> None:
        """E5: a parked subscription stops nothing else."""
        log.append(events(1))
        park(log)
        collector = BatchCollector()

        log.subscribe("other", **QUICK).run(collector)

        assert positions(collector.records(1)) == [1]

    def test_contradictory_policies_are_refused(self, log: Log) -> None:
        """E5, L3: an invalid policy is refused before a cursor is stored."""
        some: Any = "some"
        for arguments, argument in (
            ({"on_poison": "skip"}, "on_poison"),
            ({"on_poison": "stop"}, "on_poison"),
            ({"on_poison": some, "retry": bounded(1)}, "on_poison"),
            ({"retry": some}, "retry"),
            ({"retry": RetryPolicy(attempts=0)}, "retry"),
            ({"retry": bounded(2), "backoff_s": 1.0}, "backoff_s"),
        ):
            with assert_refused(log, "invalid_argument", argument=argument):
                log.subscribe("s", **arguments)
        assert log.subscriptions() == []

    # -- the count

    def test_attempts_are_counted_across_owners(self, log: Log) -> None:
        """E5: attempts are counted across owners and runs."""
        log.append(events(1))
        calls: list[int] = []

        for number in (1, 2, 3):
            subscription = log.subscribe("s", retry=bounded(3), **QUICK)

            def handler(batch: list[EventRecord], owner: Subscription = subscription) -> None:
                calls.append(log.subscriptions.get("s").attempts)
                owner.stop()
                fail(batch)

            subscription.run(handler)
            assert log.subscriptions.get("s").failures == number

        assert calls == [1, 2, 3]
        assert log.subscriptions.get("s").status == "parked"

    def test_a_success_ends_the_count(self, log: Log) -> None:
        """E5: each batch has its own count."""
        log.append(events(1))
        log.append(events(1))
        calls: list[tuple[int, int]] = []

        def handler(batch: list[EventRecord]) -> None:
            calls.append((batch[0].position, log.subscriptions.get("s").attempts))
            if len(calls) % 2:
                fail(batch)

        log.subscribe("s", retry=bounded(2), **QUICK).run(handler)

        assert calls == [(1, 1), (1, 2), (2, 1), (2, 2)]
        assert log.subscriptions.get("s").status == "ready"

    def test_a_loop_that_is_left_counts(self, log: Log) -> None:
        """E5: a loop that is left during a batch counts as an attempt at it."""
        log.append(events(1))
        log.append(events(1))

        for number in (1, 2):
            for batch in log.subscribe("s", retry=bounded(2), on_poison="skip", **QUICK):
                assert positions(batch) == [1]
                assert log.subscriptions.get("s").attempts == number
                break
        rest = list(log.subscribe("s", retry=bounded(2), on_poison="skip", **QUICK))

        assert [positions(batch) for batch in rest] == [[2]]
        [skipped] = log.subscriptions.skipped("s")
        assert (skipped.first_position, skipped.attempts) == (1, 2)
        assert "attempt 2 had no result" in skipped.error

    def test_async_loops_are_bounded(self, log: Log) -> None:
        """E5, B13: the policy bounds the attempts of async loops, too."""
        log.append(events(1))
        log.append(events(1))

        async def follow() -> list[list[int]]:
            following = log.aio.subscribe("s", retry=bounded(2), on_poison="skip", **QUICK)
            seen = []
            async with aclosing(following):
                async for batch in following:
                    if batch[0].position == 1:
                        fail(batch)
                    seen.append(positions(batch))
            return seen

        for _ in range(2):
            with pytest.raises(ValueError, match="cannot handle 1"):
                run_coroutine(follow())
        assert run_coroutine(follow()) == [[2]]

        async def inspect() -> tuple[SubscriptionStatus, int]:
            subscriptions = log.aio.subscriptions
            return await subscriptions.get("s"), len(await subscriptions.skipped("s"))

        status, skipped = run_coroutine(inspect())
        assert (status.position, status.skipped, skipped) == (2, 1, 1)

    def test_an_outage_of_the_store_is_no_attempt(self, log: Log) -> None:
        """E5: a handler that succeeded has not failed if the cursor could not be moved."""
        log.append(events(1))
        calls: list[int] = []

        with open_on_same_store(log, FailingMoveStore(log.store, 3)) as other:
            subscription = other.subscribe("s", retry=bounded(1), **QUICK)
            subscription.run(lambda batch: calls.append(batch[0].position))

        assert calls == [1] * 4
        status = log.subscriptions.get("s")
        assert (status.status, status.position) == ("ready", 1)

    def test_a_lost_lease_counts_nothing(self, log: Log) -> None:
        """E5: only the owner of the lease counts attempts and parks."""
        log.append(events(1))
        log.subscribe("s")
        claim = log.store.claim_lease
        lost = claim(log.tenant_id, "subscription:s", "one", 60.0)
        assert lost is not None
        log.store.release_lease(lost)
        held = claim(log.tenant_id, "subscription:s", "two", 60.0)
        assert held is not None
        attempt = BatchAttempt(first_position=1, last_position=1, attempts=4, failures=3)

        with pytest.raises(LeaseLost):
            log.store.put_attempt(lost, "s", attempt, error="lost", park=True)
        assert log.subscriptions.get("s").attempt is None
        log.store.put_attempt(held, "s", attempt)
        assert log.subscriptions.get("s").attempt == attempt

    # -- operators

    def test_a_retry_continues_a_waiting_owner(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: a retry lets a parked owner attempt the batch again, with all attempts."""
        log.append(events(1))
        log.append(events(1))
        broken = threading.Event()
        broken.set()
        calls = BatchCollector()

        def handler(batch: list[EventRecord]) -> None:
            calls(batch)
            if broken.is_set():
                fail(batch)

        subscription = log.subscribe("s", retry=bounded(2), poll_s=0.02)
        running.append((subscription, subscription.start(handler)))

        def is_parked() -> bool:
            return log.subscriptions.get("s").status == "parked"

        wait_for(is_parked)
        assert positions(calls.records(2)) == [1, 1]
        assert log.subscriptions.retry("s", reason="try again") is True
        assert positions(calls.records(2)) == [1, 1]
        wait_for(is_parked)
        broken.clear()
        log.subscriptions.retry("s")
        assert positions(calls.records(2)) == [1, 2]
        wait_for(lambda: subscription.position == 2)

    def test_only_a_parked_subscription_is_retried(self, log: Log) -> None:
        """E5: a retry of a subscription that is not parked is a conflict."""
        log.append(events(1))
        log.subscribe("s")

        with assert_refused(log, "conflict", name="s"):
            log.subscriptions.retry("s")
        park(log)
        log.subscriptions.retry("s")
        with assert_refused(log, "conflict", name="s"):
            log.subscriptions.retry("s")

    def test_an_operator_skips_exactly_one_append(self, log: Log) -> None:
        """E5: a skip passes the failing append and nothing else, and is recorded."""
        log.append([event("a"), event("b"), event("a")])
        log.append([event("a")])
        log.append([event("a")])
        assert park(log, query=ONLY_A).position == 0

        assert log.subscriptions.skip("s", 1, reason="malformed") is True

        status = log.subscriptions.get("s")
        assert (status.status, status.position, status.skipped) == ("ready", 3, 1)
        [skipped] = log.subscriptions.skipped("s")
        assert (skipped.first_position, skipped.last_position, skipped.attempts) == (1, 3, 2)
        assert skipped.error == "ValueError: cannot handle 1"
        assert skipped.reason == "malformed"
        assert skipped.skipped_by
        with assert_refused(log, "conflict", name="s", expected=1, actual=None):
            log.subscriptions.skip("s", 1, reason="again")
        rest = list(log.subscribe("s", ONLY_A, **QUICK))
        assert [positions(batch) for batch in rest] == [[4], [5]]

    def test_a_skip_names_the_failing_batch(self, log: Log) -> None:
        """E5: a skip of another batch than the one that fails is a conflict; a reason is needed."""
        log.append(events(2))
        log.append(events(1))
        log.subscribe("s")
        with assert_refused(log, "conflict", name="s", expected=1, actual=None):
            log.subscriptions.skip("s", 1, reason="it has not failed")
        park(log)

        for position in (2, 3):
            with assert_refused(log, "conflict", name="s", expected=position, actual=1):
                log.subscriptions.skip("s", position, reason="the wrong one")
        with assert_refused(log, "invalid_argument", argument="reason"):
            log.subscriptions.skip("s", 1, reason=" ")
        status = log.subscriptions.get("s")
        assert (status.status, status.position, status.skipped) == ("parked", 0, 0)

    def test_a_skip_fences_a_live_owner(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: an owner that is handling a batch cannot undo or repeat its skip."""
        for _ in range(3):
            log.append(events(1))
        handler = BlockingHandler(2)
        subscription = log.subscribe("s", retry=bounded(3), poll_s=0.02)
        running.append((subscription, subscription.start(handler)))
        assert handler.arrived.wait(WAIT_TIMEOUT_S)

        log.subscriptions.skip("s", 2, reason="it hangs")
        assert log.subscriptions.get("s").position == 2
        handler.gate.set()

        assert positions(handler.collector.records(3)) == [1, 2, 3]
        wait_for(lambda: subscription.position == 3)
        assert isinstance(subscription.last_error, LeaseLost)
        assert [batch.first_position for batch in log.subscriptions.skipped("s")] == [2]

    def test_a_skip_ends_a_backoff(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: without a bound, too, an operator can skip the batch that fails."""
        log.append(events(1))
        log.append(events(1))
        handled: list[list[int]] = []
        subscription = log.subscribe("s", poll_s=0.02, backoff_s=0.005, backoff_cap_s=0.05)
        running.append((subscription, subscription.start(fail_at(1, handled))))
        wait_for(lambda: log.subscriptions.get("s").failures >= 2)

        log.subscriptions.skip("s", 1, reason="malformed")

        wait_for(lambda: subscription.position == 2)
        assert handled == [[2]]

    def test_a_reset_fences_a_live_owner(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: an owner that is handling a batch continues at the position of a reset."""
        for _ in range(2):
            log.append(events(1))
        handler = BlockingHandler(2)
        subscription = log.subscribe("s", poll_s=0.02)
        running.append((subscription, subscription.start(handler)))
        assert handler.arrived.wait(WAIT_TIMEOUT_S)

        log.subscriptions.reset("s", 0, reason="send again")
        handler.gate.set()

        assert positions(handler.collector.records(4)) == [1, 2, 1, 2]
        wait_for(lambda: subscription.position == 2)

    def test_a_reset_ends_parking(self, log: Log) -> None:
        """E5: a reset forgets the attempts, and the skipped batches that it delivers again."""
        for _ in range(3):
            log.append(events(1))
        handled: list[list[int]] = []
        skipping: dict[str, Any] = {"retry": bounded(1), "on_poison": "skip"}
        log.subscribe("s", **skipping, **QUICK).run(fail)
        assert [one.first_position for one in log.subscriptions.skipped("s")] == [1, 2, 3]

        log.subscriptions.reset("s", 1, reason="fixed")

        assert [one.first_position for one in log.subscriptions.skipped("s")] == [1]
        assert park(log).attempts == 2
        log.subscriptions.reset("s", 1)
        status = log.subscriptions.get("s")
        assert (status.status, status.position, status.attempts) == ("ready", 1, 0)
        log.subscribe("s", **QUICK).run(fail_at(0, handled))
        assert handled == [[2], [3]]
        with pytest.raises(InvalidArgument):
            log.subscriptions.reset("s", 99)

    def test_a_reset_keeps_the_query(self, log: Log) -> None:
        """E5: a reset keeps the query of a subscription unless it names another."""
        log.append([event("a"), event("b")])
        list(log.subscribe("s", ONLY_A, **QUICK))

        log.subscriptions.reset("s", 0)
        assert [positions(batch) for batch in log.subscribe("s", ONLY_A, **QUICK)] == [[1]]
        log.subscriptions.reset("s", 0, Query())
        assert [positions(batch) for batch in log.subscribe("s", **QUICK)] == [[1, 2]]

    def test_acts_on_unknown_subscriptions_are_refused(self, log: Log) -> None:
        """E5, K2: a subscription of another tenant is as absent as one that does not exist."""
        log.append(events(1))
        park(log)
        other = log.for_tenant("other")

        acts: tuple[Callable[[], Any], ...] = (
            lambda: other.subscriptions.get("s"),
            lambda: other.subscriptions.skipped("s"),
            lambda: other.subscriptions.retry("s"),
            lambda: other.subscriptions.skip("s", 1, reason="not mine"),
            lambda: other.subscriptions.reset("s", 0),
            lambda: log.subscriptions.get("t"),
        )
        for act in acts:
            with pytest.raises(NotFound):
                act()
        assert log.subscriptions.get("s").status == "parked"

    def test_of_concurrent_skips_one_succeeds(self, log: Log) -> None:
        """E5: of two operators who skip the same batch, one succeeds; the next batch stays."""
        log.append(events(1))
        log.append(events(1))
        park(log)
        outcomes: list[object] = []
        barrier = threading.Barrier(4)

        def skip() -> None:
            barrier.wait()
            try:
                outcomes.append(log.subscriptions.skip("s", 1, reason="malformed"))
            except Conflict as error:
                outcomes.append(error)

        threads = [threading.Thread(target=skip) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_TIMEOUT_S)

        assert len(outcomes) == 4
        assert sum(outcome is True for outcome in outcomes) == 1
        assert log.subscriptions.get("s").position == 1

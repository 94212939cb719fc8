"""E5, E6: tails and durable subscriptions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from seriatim.core.errors import InvalidArgument, LeaseLost
from seriatim.core.event import EventRecord
from seriatim.core.query import Filter, Query
from seriatim.factory import Log
from seriatim.log.subscription import Subscription
from seriatim.store.port import SubscriptionStatus
from seriatim.telemetry.event_bus import TelemetryEvent
from seriatim.testing.factories import (
    WAIT_TIMEOUT_S,
    BatchCollector,
    NoRenewalStore,
    NoWakeupStore,
    assert_all_refused,
    assert_refused,
    event,
    events,
    open_on_same_store,
    positions,
    run_concurrently,
    wait_for,
)

QUICK: dict[str, Any] = {"poll_s": 0.02, "idle_timeout": 0.0}
ONLY_A = Query([Filter(types=["a"])])


def drain_subscription(
    log: Log, name: str, query: Query | None = None, *, start: int | Literal["head"] = 0
) -> list[list[int]]:
    """Return the positions of each batch that a subscription delivers until it has caught up."""
    subscription = log.subscribe(name, query or Query(), start=start, **QUICK)
    return [positions(batch) for batch in subscription]


class SubscriptionContract:
    """E5, E6: subscriptions catch up, then follow live, without gaps or duplicates."""

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

    def test_new_subscription_starts_at_the_beginning(self, log: Log) -> None:
        """E5: a new durable subscription starts at 0 unless a start is given."""
        log.append(events(2))
        log.append(events(1))

        assert drain_subscription(log, "all") == [[1, 2], [3]]
        assert drain_subscription(log, "later", start=2) == [[3]]
        assert drain_subscription(log, "now", start="head") == []
        log.append(events(1))
        assert drain_subscription(log, "now", start="head") == [[4]]

    def test_subscription_continues_at_its_cursor(self, log: Log) -> None:
        """E5: the cursor is durable: handled events are not delivered again."""
        log.append(events(1))
        assert drain_subscription(log, "s") == [[1]]
        log.append(events(2))

        assert drain_subscription(log, "s") == [[2, 3]]
        assert drain_subscription(log, "s") == []
        assert log.subscribe("s").position == 3

    def test_each_name_and_tenant_has_its_own_cursor(self, log: Log) -> None:
        """E5: each name and each tenant has its own cursor."""
        log.append(events(1))
        log.for_tenant("other").append(events(1))

        assert drain_subscription(log, "s") == [[1]]
        assert drain_subscription(log, "S") == [[1]]
        assert drain_subscription(log.for_tenant("other"), "s") == [[2]]

    def test_append_is_delivered_as_one_batch(self, log: Log) -> None:
        """E5: an append is delivered as a whole, by every kind of subscription."""
        log.append(events(3))
        log.append(events(1))
        log.append([event("a"), event("b"), event("a")])
        log.append(events(2500))

        expected_batches = [[1, 2, 3], [4], [5, 6, 7], list(range(8, 2508))]
        assert drain_subscription(log, "s") == expected_batches
        assert [positions(batch) for batch in log.tail(after=0, **QUICK)] == expected_batches
        assert drain_subscription(log, "a", ONLY_A) == [[5, 7]]
        assert [positions(batch) for batch in log.tail(ONLY_A, after=0, **QUICK)] == [[5, 7]]

    def test_append_larger_than_a_page_is_one_batch(self, log: Log) -> None:
        """E5: an append is one batch wherever the pages of the reader end."""
        for size in (999, 3, 1001, 1):
            log.append(events(size))

        assert [len(batch) for batch in drain_subscription(log, "s")] == [999, 3, 1001, 1]

    def test_query_selects_the_delivered_events(self, log: Log) -> None:
        """E5: only matching events are delivered, and the cursor passes the others."""
        log.append([event("b")] * 3)
        log.append([event("a"), event("b")])
        log.append([event("b")])

        assert drain_subscription(log, "s", ONLY_A) == [[4]]
        assert log.subscribe("s", ONLY_A).position == 6

    def test_cursor_moves_after_the_batch(self, log: Log) -> None:
        """E5: a batch whose handling is interrupted is delivered again."""
        log.append(events(1))
        log.append(events(1))

        for batch in log.subscribe("s", **QUICK):
            assert positions(batch) == [1]
            break
        assert log.subscribe("s").position == 0
        assert drain_subscription(log, "s") == [[1], [2]]

    def test_switch_to_live_has_no_gap_and_no_duplicate(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: the switch to live has no gap and no duplicate, under concurrent appends."""
        log.append(events(3))
        collector = BatchCollector()
        subscription = log.subscribe("s", poll_s=0.02)
        running.append((subscription, subscription.start(collector)))

        def operation(number: int) -> None:
            for _ in range(8):
                log.append(events(number + 1))

        run_concurrently(operation, 3)
        expected = 3 + 8 * (1 + 2 + 3)
        records = collector.records(expected)

        assert positions(records) == list(range(1, expected + 1))
        wait_for(lambda: subscription.position == expected)
        assert collector.empty

    def test_tail_without_a_position_starts_at_the_head(self, log: Log) -> None:
        """E5: a tail without a position delivers events appended after its creation."""
        log.append(events(2))
        tail = log.tail(poll_s=0.02)
        log.append(events(1))

        for batch in tail:
            assert positions(batch) == [3]
            tail.stop()

    def test_append_wakes_a_waiting_tail(self, log: Log) -> None:
        """E5: an append wakes a waiting tail long before its poll interval."""
        tail = log.tail(poll_s=WAIT_TIMEOUT_S)
        got: list[list[int]] = []

        def follow() -> None:
            for batch in tail:
                got.append(positions(batch))
                tail.stop()

        thread = threading.Thread(target=follow)
        thread.start()
        log.append(events(2))
        thread.join(WAIT_TIMEOUT_S / 2)

        assert not thread.is_alive()
        assert got == [[1, 2]]

    def test_polling_finds_events_without_wakeups(self, log: Log) -> None:
        """E6: without wake-ups, polling finds every event."""
        collector = BatchCollector()
        with open_on_same_store(log, NoWakeupStore(log.store)) as deaf:
            subscription = deaf.subscribe("s", poll_s=0.01)
            thread = subscription.start(collector)
            for _ in range(5):
                log.append(events(1))
            assert positions(collector.records(5)) == [1, 2, 3, 4, 5]
            subscription.stop()
            thread.join(WAIT_TIMEOUT_S)
            assert not thread.is_alive()

    def test_failing_handler_gets_the_same_batch_again(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: a failing handler does not move the cursor and gets the same batch again."""
        log.append(events(2))
        log.append(events(1))
        collector = BatchCollector()
        cursors: list[int] = []

        def handler(batch: list[EventRecord]) -> None:
            collector(batch)
            cursors.append(subscription.position)
            if len(cursors) < 4:
                msg = "not yet"
                raise ValueError(msg)

        subscription = log.subscribe("s", poll_s=0.02, backoff_s=0.005)
        running.append((subscription, subscription.start(handler)))

        assert [positions(collector.next()) for _ in range(5)] == [[1, 2]] * 4 + [[3]]
        assert cursors[:4] == [0, 0, 0, 0]
        wait_for(lambda: subscription.position == 3)
        assert isinstance(subscription.last_error, ValueError)
        assert subscription.failures == 0

    def test_a_failure_is_reported(self, log: Log, caplog: pytest.LogCaptureFixture) -> None:
        """E5, M1: a failure is logged, emitted as telemetry and listed with the subscription."""
        log.append(events(2))
        log.append(events(1))
        token = "ghp_" + "a1B2" * 9
        reported: list[TelemetryEvent] = []
        undo = log.telemetry.subscribe(reported.append)
        subscription = log.subscribe("mailer", backoff_s=0.001, **QUICK)
        listed: list[SubscriptionStatus] = []

        errors = ["no mail server", f"no mail server for {token}"]

        def handler(_: list[EventRecord]) -> None:
            if subscription.failures:
                listed.extend(log.subscriptions())
            if errors:
                raise ValueError(errors.pop(0))

        with caplog.at_level(logging.WARNING, logger="seriatim"):
            subscription.run(handler)
        undo()

        assert caplog.text.count("subscription 'mailer'") == 2
        assert "no mail server" in caplog.text
        assert token not in caplog.text
        failed = [emitted for emitted in reported if emitted.name == "subscription.exception"]
        assert [emitted.measurements["failures"] for emitted in failed] == [1, 2]
        assert failed[0].metadata["subscription"] == "mailer"
        assert failed[0].metadata["tenant_id"] == log.tenant_id
        first, second = listed
        assert (first.name, first.position, first.failures) == ("mailer", 0, 1)
        assert first.last_error == "ValueError: no mail server"
        assert first.owner
        assert first.last_error_at
        assert (first.head, first.lag_events) == (3, 3)
        assert first.lag_seconds >= 0
        assert second.failures == 2
        assert token not in (second.last_error or "")
        [after] = log.subscriptions()
        assert (after.position, after.failures, after.owner) == (3, 0, None)
        assert (after.lag_events, after.lag_seconds) == (0, 0.0)
        assert after.last_error  # what happened stays known

    def test_subscriptions_are_listed(self, log: Log) -> None:
        """E5, K2: subscriptions are listed by tenant; lag counts only matching events."""
        for name in ("b", "a"):
            list(log.subscribe(name, Query([Filter(types=["x"])]), **QUICK))
        log.for_tenant("other").subscribe("c")
        log.append([event("y"), event("y")])

        assert [(status.name, status.lag_events) for status in log.subscriptions()] == [
            ("a", 0),
            ("b", 0),
        ]
        log.append([event("x"), event("y")])
        assert [(status.name, status.lag_events) for status in log.subscriptions()] == [
            ("a", 2),
            ("b", 2),
        ]
        assert [status.name for status in log.for_tenant("other").subscriptions()] == ["c"]
        assert log.for_tenant("third").subscriptions() == []

    def test_a_lost_lease_stores_no_failure(self, log: Log) -> None:
        """E5: only the owner of the lease records failures."""
        log.subscribe("s")
        lost = log.store.claim_lease(log.tenant_id, "subscription:s", "one", 60.0)
        assert lost is not None
        log.store.release_lease(lost)
        lease = log.store.claim_lease(log.tenant_id, "subscription:s", "two", 60.0)
        assert lease is not None

        log.store.record_failure(lost, "s", 1, "lost")
        assert [(status.owner, status.last_error) for status in log.subscriptions()] == [
            ("two", None)
        ]
        log.store.record_failure(lease, "s", 7, "held")
        [status] = log.subscriptions()
        assert (status.failures, status.last_error) == (7, "held")

    def test_backoff_grows(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        """E5: each failure waits longer than the one before, up to a cap."""
        log.append(events(1))
        subscription = log.subscribe("s", backoff_s=1.0, backoff_cap_s=5.0, **QUICK)
        waits: list[float] = []

        class Stopped(threading.Event):
            """Record the requested delay and return immediately."""

            def wait(self, timeout: float | None = None) -> bool:
                waits.append(timeout or 0.0)
                return len(waits) == 5

        monkeypatch.setattr(subscription, "_stopped", Stopped())

        def fail(_: list[EventRecord]) -> None:
            raise RuntimeError

        subscription.run(fail)

        assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
        assert subscription.failures == 5
        assert subscription.position == 0

    def test_failing_subscription_does_not_affect_others(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: a failing subscription does not affect others."""
        failed = threading.Event()

        def fail(_: list[EventRecord]) -> None:
            failed.set()
            raise RuntimeError

        bad = log.subscribe("bad", poll_s=0.02, backoff_s=0.01)
        good = log.subscribe("good", poll_s=0.02)
        collector = BatchCollector()
        running += [(bad, bad.start(fail)), (good, good.start(collector))]
        log.append(events(1))
        assert failed.wait(WAIT_TIMEOUT_S)
        log.append(events(1))

        assert positions(collector.records(2)) == [1, 2]
        assert bad.position == 0

    def test_a_stopped_handler_is_not_called_again(self, log: Log) -> None:
        """E5: stop ends the backoff immediately, and the batch stays undelivered."""
        log.append(events(1))
        subscription = log.subscribe("s", backoff_s=60.0)
        calls: list[int] = []

        def fail(_: list[EventRecord]) -> None:
            calls.append(1)
            subscription.stop()
            raise RuntimeError

        subscription.run(fail)

        assert (calls, subscription.position) == ([1], 0)

    def test_same_name_with_another_query_is_a_conflict(self, log: Log) -> None:
        """E5: a name belongs to one query: a different query is a conflict."""
        log.subscribe("s", Query([Filter(types=["a"], payload=[{"x": 1, "y": 2}])]))

        log.subscribe("s", Query((Filter(types=("a",), payload=({"y": 2, "x": 1},)),)))
        for other in (Query(), Query([Filter(types=["b"])]), Query([Filter(types=["a"])])):
            with assert_refused(log, "conflict", name="s"):
                log.subscribe("s", other)
        assert drain_subscription(log, "t") == []
        log.subscribe("t", Query([]))

    def test_one_of_two_owners_waits_and_takes_over(
        self, log: Log, running: list[tuple[Subscription, threading.Thread]]
    ) -> None:
        """E5: of two owners one waits, and takes over without a gap or duplicate."""
        first, second = BatchCollector(), BatchCollector()
        first_owner = log.subscribe("s", poll_s=0.02)
        running.append((first_owner, first_owner.start(first)))
        log.append(events(1))
        assert positions(first.next()) == [1]
        two = log.subscribe("s", poll_s=0.02)
        running.append((two, two.start(second)))
        log.append(events(1))
        assert positions(first.next()) == [2]
        wait_for(lambda: first_owner.position == 2)

        first_owner.stop()
        running[0][1].join(WAIT_TIMEOUT_S)
        log.append(events(1))

        assert positions(second.next()) == [3]
        assert first.empty
        assert second.empty

    def test_lost_lease_moves_no_cursor(self, log: Log) -> None:
        """E5: an owner whose lease expired cannot move the cursor and must claim again."""
        log.append(events(1))
        store = log.store
        seen: list[list[int]] = []

        with open_on_same_store(log, NoRenewalStore(store)) as still:
            subscription = still.subscribe("s", poll_s=0.02, idle_timeout=0.0, lease_s=0.05)

            def handler(batch: list[EventRecord]) -> None:
                seen.append(positions(batch))
                if len(seen) == 1:
                    lease = wait_for(
                        lambda: store.claim_lease(log.tenant_id, "subscription:s", "thief", 60.0)
                    )
                    assert subscription.position == 0
                    thief.append(lease)
                    threading.Timer(0.05, store.release_lease, [lease]).start()

            thief: list[Any] = []
            subscription.run(handler)

        assert seen == [[1], [1]]
        assert isinstance(subscription.last_error, LeaseLost)
        assert subscription.position == 1

    def test_start_or_reset_beyond_the_head_is_refused(self, log: Log) -> None:
        """E5: a start or reset beyond the head is refused and stores no cursor."""
        log.append(events(2))

        assert_all_refused(
            log,
            lambda start: log.subscribe("s", start=start),
            {repr(s): (s, "invalid_argument", "position") for s in (3, -1, "tail", 1.5, True)},
        )
        assert_all_refused(
            log,
            lambda after: log.tail(after=after),
            {repr(a): (a, "invalid_argument", "after") for a in (3, -1, "head", 1.5)},
        )
        assert log.store.cursor(log.tenant_id, "subscription", "s") is None
        subscription = log.subscribe("s", start=2)
        with pytest.raises(InvalidArgument):
            subscription.reset(3)
        assert subscription.position == 2

    def test_only_a_reset_moves_a_cursor_backwards(self, log: Log) -> None:
        """E5: only an explicit reset moves a cursor backwards; events are delivered again."""
        log.append(events(1))
        log.append(events(1))
        assert drain_subscription(log, "s") == [[1], [2]]

        log.subscribe("s").reset(1)

        assert drain_subscription(log, "s") == [[2]]
        log.subscribe("s").reset(0)
        assert drain_subscription(log, "s") == [[1], [2]]

    def test_invalid_names_and_queries_are_refused(self, log: Log) -> None:
        """A4, D6: an invalid name or query is refused before a cursor is stored."""
        assert_all_refused(
            log,
            log.subscribe,
            {
                repr(n): (n, "invalid_argument", "name")
                for n in ("", " s", "s\n", "\ud800", 1, None)
            },
        )
        with assert_refused(log, "invalid_query", where="filters[0].types[0]"):
            log.subscribe("s", Query([Filter(types=[""])]))
        no_query: Any = "everything"
        with assert_refused(log, "invalid_query", where="query"):
            log.tail(no_query)
        assert log.store.cursors(log.tenant_id, "subscription") == []

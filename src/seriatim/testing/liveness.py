"""B13, L2: every call ends in bounded time with a definite or explicitly ambiguous outcome."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError, TimedOut
from seriatim.core.kinds import Rules, StreamKind
from seriatim.core.limits import Limits
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest
from seriatim.factory import Log
from seriatim.store.port import Outcome
from seriatim.testing.factories import (
    WAIT_TIMEOUT_S,
    GatedStore,
    SharedStore,
    assert_unchanged,
    count_queued,
    event,
    events,
    open_on_same_store,
    positions,
    wait_for,
)


class FailingStore(SharedStore):
    """A store whose methods all fail."""

    def __getattr__(self, name: str) -> Any:
        """Return a failing method, except for those that opening a log needs."""
        return getattr(self.wrapped, name) if name in ("rules", "recommended_writers") else _fail


def _fail(*_: object, **__: object) -> Any:
    msg = "the database is gone"
    raise BackendFailure(msg)


class SlowLookupStore(SharedStore):
    """A store that is slow to evaluate an append, and records the time left after that."""

    takes_s = 0.1

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.left: list[float] = []

    def prepare_request(self, request: AppendRequest, rules: Rules) -> AppendRequest:
        """Sleep, then evaluate the append."""
        time.sleep(self.takes_s)
        prepared: AppendRequest = self.wrapped.prepare_request(request, rules)
        return prepared

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> None:
        """Record the remaining time, and decline the direct commit."""
        del group
        self.left.append(timeout)


class FaultyStore(SharedStore):
    """A store with a bug: it raises an unexpected error, or returns too few outcomes."""

    def __init__(self, store: Any, error: Exception | None) -> None:
        super().__init__(store)
        self.error = error

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Raise the error, or return no outcomes."""
        del group
        if self.error is not None:
            raise self.error
        return []


class LivenessContract:
    """B13, L2: bounded queues, timeouts, close, forks and store failures."""

    def test_append_to_a_full_queue_is_refused(self, log: Log) -> None:
        """B13: an append to a full queue is refused with a retryable `limit_exceeded`."""
        store = GatedStore(log.store)
        bounds = Limits(queue_events=3)
        with (
            open_on_same_store(log, store, settings=Settings(writers=1, limits=bounds)) as small,
            ThreadPoolExecutor(4) as pool,
        ):
            taken = pool.submit(small.append, events(1))
            store.wait_for_group()
            waiting = pool.submit(small.append, events(2))
            wait_for(lambda: count_queued(small))
            with pytest.raises(LimitExceeded) as caught:
                small.append(events(2))
            assert caught.value.retryable
            assert caught.value.details["limit"] == "queue_events"
            store.gate.set()
            assert taken.result(WAIT_TIMEOUT_S).count == 1
            assert waiting.result(WAIT_TIMEOUT_S).count == 2
            small.append(events(5))

        assert log.head() == 8

    def test_queue_is_limited_in_bytes(self, log: Log) -> None:
        """B13: the queue is also limited in bytes."""
        store = GatedStore(log.store)
        bounds = Limits(queue_bytes=2000)
        with (
            open_on_same_store(log, store, settings=Settings(writers=1, limits=bounds)) as small,
            ThreadPoolExecutor(2) as pool,
        ):
            taken = pool.submit(small.append, events(1))
            store.wait_for_group()
            waiting = pool.submit(small.append, [event(payload={"x": "a" * 1500})])
            wait_for(lambda: count_queued(small))
            with pytest.raises(LimitExceeded) as caught:
                small.append(events(1))
            assert caught.value.details["limit"] == "queue_bytes"
            store.gate.set()
            taken.result(WAIT_TIMEOUT_S)
            waiting.result(WAIT_TIMEOUT_S)

    def test_queued_appends_share_a_commit(self, log: Log) -> None:
        """B13: queued appends are committed as a group, and each caller gets its own result."""
        store = GatedStore(log.store)
        with (
            open_on_same_store(log, store, settings=Settings(writers=1)) as grouped,
            ThreadPoolExecutor(9) as pool,
        ):
            first = pool.submit(grouped.append, events(1))
            store.wait_for_group()
            good = [pool.submit(grouped.append, [event(stream=("s", "1"))]) for _ in range(5)]
            bad = [
                pool.submit(grouped.append, [event(stream=("s", "2"), stream_seq=7)])
                for _ in range(3)
            ]
            wait_for(lambda: count_queued(grouped) == 8)
            store.gate.set()
            first.result(WAIT_TIMEOUT_S)
            first_positions = sorted(
                queued.result(WAIT_TIMEOUT_S).first_position for queued in good
            )
            for queued in bad:
                with pytest.raises(SeriatimError) as caught:
                    queued.result(WAIT_TIMEOUT_S)
                assert caught.value.code == "event_sequence_invalid"

        assert first_positions == [2, 3, 4, 5, 6]
        assert store.groups == [1, 8]
        assert [record.stream_seq for record in log.read_stream(("s", "1"))] == [1, 2, 3, 4, 5]

    def test_appends_of_one_group_are_checked_against_each_other(self, log: Log) -> None:
        """C4: keys, conditions and numbers are checked between appends of one group."""
        store = GatedStore(log.store)
        with (
            open_on_same_store(log, store, settings=Settings(writers=1)) as grouped,
            ThreadPoolExecutor(9) as pool,
        ):
            first = pool.submit(grouped.append, events(1))
            store.wait_for_group()
            duplicates = [pool.submit(grouped.append, events(2), None, "k") for _ in range(4)]
            by_id = [pool.submit(grouped.append, [event(event_id="e")]) for _ in range(4)]
            wait_for(lambda: count_queued(grouped) == 8)
            store.gate.set()
            first.result(WAIT_TIMEOUT_S)
            outcomes = [queued.result(WAIT_TIMEOUT_S) for queued in duplicates]
            ids = [queued.result(WAIT_TIMEOUT_S) for queued in by_id]

        assert sorted(queued.replayed for queued in outcomes) == [False, True, True, True]
        assert len({queued.first_position for queued in outcomes}) == 1
        assert sorted(queued.replayed for queued in ids) == [False, True, True, True]
        assert log.head() == 4

    def test_timeout_before_the_send_stores_nothing(self, log: Log) -> None:
        """B13: an append that times out in the queue stores nothing and raises `TimedOut`."""
        store = GatedStore(log.store)
        with (
            open_on_same_store(log, store, settings=Settings(writers=1)) as slow,
            ThreadPoolExecutor(1) as pool,
        ):
            taken = pool.submit(slow.append, events(1))
            store.wait_for_group()
            with pytest.raises(TimedOut) as caught:
                slow.append(events(2), timeout=0.02)
            assert caught.value.retryable
            store.gate.set()
            taken.result(WAIT_TIMEOUT_S)
            slow.append(events(1))

        assert [record.append_position for record in log.read()] == [1, 2]

    def test_timeout_after_the_send_is_ambiguous(self, log: Log) -> None:
        """B13: an append that times out after the send is ambiguous; a retry finds its copy."""
        store = GatedStore(log.store)
        with open_on_same_store(log, store, settings=Settings(writers=1)) as slow:
            with pytest.raises(BackendFailure) as caught:
                slow.append(events(2), idempotency_key="k", timeout=0.05)
            assert caught.value.ambiguous
            store.gate.set()
            retry = slow.append(events(2), idempotency_key="k")

        assert retry.replayed
        assert log.head() == 2

    def test_evaluation_counts_towards_the_timeout(self, log: Log) -> None:
        """B13: the evaluation before the send counts towards the timeout."""
        store = SlowLookupStore(log.store)
        with open_on_same_store(log, store) as slow:
            with assert_unchanged(log), pytest.raises(TimedOut, match="nothing was stored"):
                slow.append(events(1), timeout=store.takes_s / 2)
            slow.append(events(1), timeout=WAIT_TIMEOUT_S)

        assert len(store.left) == 1
        assert store.left[0] <= WAIT_TIMEOUT_S - store.takes_s

    def test_timeout_is_an_argument_or_a_setting(self, log: Log) -> None:
        """B13: every call has a timeout, given or from the settings."""
        store = GatedStore(log.store)
        with open_on_same_store(log, store, settings=Settings(writers=1, timeout_s=0.05)) as slow:
            with pytest.raises(BackendFailure) as caught:
                slow.append(events(1))
            assert caught.value.ambiguous
            store.gate.set()

    def test_close_waits_for_accepted_appends(self, log: Log) -> None:
        """B13: close waits until all accepted appends have completed."""
        store = GatedStore(log.store)
        with (
            open_on_same_store(log, store, settings=Settings(writers=1)) as closing,
            ThreadPoolExecutor(6) as pool,
        ):
            accepted = [pool.submit(closing.append, events(1))]
            store.wait_for_group()
            accepted += [pool.submit(closing.append, events(1)) for _ in range(4)]
            wait_for(lambda: count_queued(closing) == 4)
            closed = pool.submit(closing.close)
            wait_for(lambda: closing.appender.submission.threads.closed)
            with pytest.raises(BackendFailure) as caught:
                closing.append(events(1))
            assert not caught.value.retryable
            assert not closed.done()
            store.gate.set()
            closed.result(WAIT_TIMEOUT_S)
            assert log.head() == 5
            outcomes = [queued.result(WAIT_TIMEOUT_S).first_position for queued in accepted]

        assert sorted(outcomes) == [1, 2, 3, 4, 5]

    def test_closed_log_can_be_closed_again(self, log: Log) -> None:
        """B13: a closed log can be closed again."""
        with open_on_same_store(log) as other:
            other.close()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_parent_and_child_append_after_a_fork(self, log: Log) -> None:
        """B13: after a fork under load, both child and parent can append and read."""
        log.append(events(1))
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                log.append(events(1))

        thread = threading.Thread(target=load)
        thread.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # a fork among threads
                child = os.fork()
            if child == 0:
                os._exit(_child(log))
            _, status = os.waitpid(child, 0)
        finally:
            stop.set()
            thread.join(WAIT_TIMEOUT_S)

        assert os.waitstatus_to_exitcode(status) == 0
        log.append(events(1))
        stored_positions = positions(list(log.read()))
        assert stored_positions == list(range(1, len(stored_positions) + 1))

    def test_backend_failure_is_never_reported_as_another_outcome(self, log: Log) -> None:
        """L2: a backend failure is never reported as success, as an empty result or a conflict."""
        operations: dict[str, Any] = {
            "append": lambda broken: broken.append(events(1)),
            "page": lambda broken: broken.page(),
            "read": lambda broken: list(broken.read()),
            "stream": lambda broken: list(broken.read_stream(("s", "1"))),
            "last": lambda broken: broken.last_event(("s", "1")),
            "event": lambda broken: broken.event("e"),
            "query": lambda broken: broken.query(Query()),
            "head": lambda broken: broken.head(),
            "streams": lambda broken: broken.streams(),
            "event types": lambda broken: broken.event_types(),
            "identity": lambda broken: broken.identity(),
            "subscribe": lambda broken: broken.subscribe("s"),
            "tail": lambda broken: broken.tail(),
            "purge": lambda broken: broken.purge_commands(),
            "declare": lambda broken: broken.declare(StreamKind(name="case")),
        }
        with open_on_same_store(log, FailingStore(log.store)) as broken:
            codes = {name: _code_of(operation, broken) for name, operation in operations.items()}

        assert codes == dict.fromkeys(operations, "backend_failure")

    def test_faulty_store_fails_its_callers(self, log: Log) -> None:
        """L2: callers of a faulty store get an error, and later appends still work."""
        for error in (RuntimeError("a bug"), KeyError("x"), None):
            with (
                assert_unchanged(log),
                open_on_same_store(log, FaultyStore(log.store, error)) as odd,
            ):
                for _ in range(2):
                    with pytest.raises(BackendFailure) as caught:
                        odd.append(events(1))
                    assert caught.value.ambiguous


def _code_of(operation: Any, log: Log) -> str:
    try:
        operation(log)
    except SeriatimError as error:
        return error.code
    return "no error"


def _child(log: Log) -> int:
    """Append and read in a forked child; return 0 on success, as an exit code."""
    try:
        result = log.append([event("from.the.child")], timeout=WAIT_TIMEOUT_S)
        seen = [record.event_type for record in log.read(after=result.first_position - 1, limit=1)]
    except BaseException:  # noqa: BLE001 - a child only has its exit code
        return 1
    return 0 if seen == ["from.the.child"] else 2

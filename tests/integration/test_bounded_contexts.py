"""The cost of context conditions while the log lock is held, on every backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import (
    AppendResult,
    ConditionalAppendConflict,
    ExpectedContext,
    Filter,
    Log,
    NewEvent,
    Query,
    TimedOut,
)
from seriatim.core.decide import StaleContexts
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.core.query import Matcher
from seriatim.core.request import AppendRequest
from seriatim.log import appender
from seriatim.store import contexts, memory
from seriatim.store.cancellation import Cancellation, cancellable
from seriatim.store.memory import MemoryStore
from seriatim.store.postgres import append
from seriatim.store.postgres import writer as postgres_writer
from seriatim.store.postgres.store import PostgresStore
from seriatim.store.sqlite import lookups
from seriatim.store.sqlite import writer as sqlite_writer
from seriatim.store.sqlite.store import SqliteStore

RARE = Query([Filter(types=["seat"], payload=[{"a": ["taken"]}])])
CANCEL_S = 0.3
ENDLESS = "with recursive n (x) as (select 1 union all select x + 1 from n) select max(x) from n"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A fresh log on each backend."""
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/log.db"}.get(request.param)
    with seriatim.open(url or request.getfixturevalue("postgres_url")) as opened:
        yield opened


def looked(log: Log, *conditions: ExpectedContext) -> AppendRequest:
    """Prepare an append, its contexts evaluated at the log's head."""
    return log.appender.prepare_request(
        log.draft(LOG_PROFILE, [NewEvent("mine", {})], list(conditions))
    )


def seats(log: Log, *values: str) -> None:
    """Append events after a request was prepared."""
    for value in values:
        log.append([NewEvent("seat", {"a": [value]})])


def outcome(log: Log, request: AppendRequest) -> Any:
    """Commit one request as the committer does."""
    [found] = log.store.append([request])
    return found


def test_newest_events_decide(log: Log) -> None:
    """D5, B9: what came after the evaluation outside the lock counts, of this tenant alone."""
    free = looked(log, ExpectedContext(RARE, None))
    seats(log, "free", "free")
    log.for_tenant("other").append([NewEvent("seat", {"a": ["taken"]})])
    assert isinstance(outcome(log, free), AppendResult)

    lost = looked(log, ExpectedContext(RARE, None))
    seats(log, "taken", "free")
    refusal = outcome(log, lost)
    assert isinstance(refusal, ConditionalAppendConflict)
    assert refusal.actual == 5


def test_time_under_the_lock_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, B14: when matching takes too long, the lock is given back and nothing is stored."""
    late = looked(log, ExpectedContext(RARE, None))
    seats(log, "free")
    with monkeypatch.context() as patched:
        patched.setattr(contexts.LockBudget, "check", _time_is_up)
        assert isinstance(outcome(log, late), StaleContexts)
    assert log.head() == 1
    assert log.append([NewEvent("mine", {})], ExpectedContext(RARE, None)).first_position == 2


def _time_is_up(_: object) -> None:
    raise StaleContexts


def test_events_under_the_lock_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: of many newer events only the newest are read; a change among them is still reported."""
    for module in (memory, lookups, append):
        monkeypatch.setattr(module, "NEWEST_EVENTS_MAX", 3)
    late = looked(log, ExpectedContext(RARE, None))
    seats(log, "free", "free", "free", "free")
    assert isinstance(outcome(log, late), StaleContexts)
    seats(log, "taken")
    assert isinstance(outcome(log, late), ConditionalAppendConflict)
    assert log.head() == 5


def test_bytes_under_the_lock_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: large events are read one by one, not all at once."""
    if isinstance(log.store, MemoryStore):
        return  # its events are in memory already
    for module in (lookups, append):
        monkeypatch.setattr(module, "NEWEST_BYTES_MAX", 100)
    one = looked(log, ExpectedContext(RARE, None))
    seats(log, "x" * 200)
    assert isinstance(outcome(log, one), AppendResult)
    two = looked(log, ExpectedContext(RARE, None))
    seats(log, "x" * 200, "x" * 200)
    assert isinstance(outcome(log, two), StaleContexts)


def test_an_append_is_evaluated_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, B13: the caller repeats it with a newer head, and gives up after a bounded number."""
    tries: list[AppendRequest] = []
    pack = log.store.prepare_request

    def packed(request: AppendRequest, rules: Any) -> AppendRequest:
        found = pack(request, rules)
        if request.conditions:
            tries.append(request)
            seats(log, "free")
        return found

    monkeypatch.setattr(contexts.LockBudget, "check", _time_is_up)
    monkeypatch.setattr(log.store, "prepare_request", packed)
    with pytest.raises(seriatim.BackendFailure, match="nothing was stored"):
        log.append([NewEvent("mine", {})], ExpectedContext(RARE, None))
    assert len(tries) == appender.RULE_RELOADS_MAX == log.head()


def test_conditions_take_one_statement(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: 64 contexts with 4 filters each are one statement under the lock, equal ones or not."""
    texts: list[str] = []

    def drive(connection: Any, steps: Any) -> Any:
        return append.run_steps(connection, _noted(steps, texts))

    monkeypatch.setattr(postgres_writer, "run_steps", drive)
    with seriatim.open(postgres_url) as log:
        for same in (True, False):
            many = [
                ExpectedContext(
                    Query([Filter(types=[f"t-{0 if same else n}-{m}"]) for m in range(4)]), None
                )
                for n in range(64)
            ]
            request = looked(log, *many)
            seats(log, "free")
            del texts[:]
            assert isinstance(outcome(log, request), AppendResult)
            assert len([text for text in texts if "newer_bytes" in text]) == 1
            assert len(texts) <= 5


def _noted(steps: Any, texts: list[str]) -> Any:
    try:
        step = next(steps)
        while True:
            texts.append(step.sql)
            step = steps.send((yield step))
    except StopIteration as end:
        return end.value


def test_equal_contexts_are_evaluated_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: an append that names one context 64 times evaluates it once."""
    seats(log, "free")
    made: list[Query] = []
    matcher = Matcher

    def counted(query: Query) -> Any:
        made.append(query)
        return matcher(query)

    request = looked(log, *[ExpectedContext(RARE, None)] * 64)
    seats(log, "free")
    monkeypatch.setattr(contexts, "Matcher", counted)
    assert isinstance(outcome(log, request), AppendResult)
    assert len(made) == 1


# -- reads that nobody waits for


def _endless(log: Log) -> Callable[[], object]:
    """Return a read of a backend that only a cancellation ends."""
    store = log.store
    if isinstance(store, PostgresStore):
        return lambda: store._reader.fetch_rows("default", "select pg_sleep(600)")
    if isinstance(store, SqliteStore):

        def read() -> object:
            with store._readers.bounded_connection() as connection:
                return connection.execute(ENDLESS).fetchone()

        return read
    assert isinstance(store, MemoryStore)
    [record] = log.read()
    return lambda: list(store._match_records("default", RARE, repeat(record)))


def test_a_cancelled_read_ends(log: Log) -> None:
    """K3: cancelling a request ends its read in the database and in Python."""
    seats(log, "free")
    cancellation = Cancellation()
    read = _endless(log)
    alarm = threading.Timer(CANCEL_S, cancellation.cancel)
    alarm.start()
    with cancellable(cancellation), pytest.raises(TimedOut, match="request has ended"):
        read()
    alarm.join()
    assert log.query(RARE).context_version is None  # outside of it nothing is cancelled
    with cancellable(cancellation), pytest.raises(TimedOut, match="request has ended"):
        log.query(RARE)


def test_an_awaited_read_ends_with_its_task(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, B13: a query whose task was cancelled leaves no thread at work, nor a condition's."""
    seats(log, "free")
    read = _endless(log)
    ended = threading.Event()

    def context_version(*_: object) -> None:
        try:
            read()
        finally:
            ended.set()

    monkeypatch.setattr(log.store, "context_version", context_version)
    with pytest.raises(TimeoutError):
        asyncio.run(_within(CANCEL_S, log.aio.query(RARE)))
    assert ended.wait(30)


async def _within(seconds: float, awaited: Coroutine[Any, Any, object]) -> object:
    return await asyncio.wait_for(awaited, seconds)


def test_a_long_transaction_on_sqlite_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: a transaction that holds the write lock too long is rolled back."""
    monkeypatch.setattr(sqlite_writer, "_TRANSACTION_LIMIT_MIN_S", 0.2)
    quick = seriatim.Settings(lock_wait_s=0.1, lock_hold_s=0.1)
    with seriatim.open(f"sqlite:///{tmp_path}/log.db", settings=quick) as log:
        store = log.store
        assert isinstance(store, SqliteStore)

        def raise_epoch() -> None:
            with store._writer.transaction() as connection:
                connection.execute("update log set epoch = epoch + 1")
                connection.execute(ENDLESS).fetchone()

        with pytest.raises(TimedOut, match="raise lock_hold_s") as caught:
            raise_epoch()
        assert caught.value.details["ambiguous"] is False
        assert log.identity().epoch == 1
        seats(log, "free")


def test_cancellations_nest(log: Log) -> None:
    """K3: a request within another one ends with it, and not the other way round."""
    outer = Cancellation()
    with cancellable(outer):
        inner = Cancellation()
        with cancellable(inner):
            inner.cancel()
            with pytest.raises(TimedOut):
                log.query(RARE)
        log.query(RARE)
        outer.cancel()
        assert inner.cancelled
        with pytest.raises(TimedOut):
            log.query(RARE)

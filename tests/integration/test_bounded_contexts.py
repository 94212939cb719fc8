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
    """A new log on each backend."""
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/log.db"}.get(request.param)
    with seriatim.open(url or request.getfixturevalue("postgres_url")) as opened:
        yield opened


def prepare_evaluated(log: Log, *conditions: ExpectedContext) -> AppendRequest:
    """Prepare an append whose contexts are evaluated at the log's head."""
    return log.appender.prepare_request(
        log.draft(LOG_PROFILE, [NewEvent("mine", {})], list(conditions))
    )


def append_seats(log: Log, *values: str) -> None:
    """Append seat events."""
    for value in values:
        log.append([NewEvent("seat", {"a": [value]})])


def commit_one(log: Log, request: AppendRequest) -> Any:
    """Commit one request as the committer does."""
    [found] = log.store.append([request])
    return found


def test_conditions_include_newer_events(log: Log) -> None:
    """D5, B9: events of the tenant after the evaluation of a context are checked under the lock."""
    free = prepare_evaluated(log, ExpectedContext(RARE, None))
    append_seats(log, "free", "free")
    log.for_tenant("other").append([NewEvent("seat", {"a": ["taken"]})])
    assert isinstance(commit_one(log, free), AppendResult)

    lost = prepare_evaluated(log, ExpectedContext(RARE, None))
    append_seats(log, "taken", "free")
    refusal = commit_one(log, lost)
    assert isinstance(refusal, ConditionalAppendConflict)
    assert refusal.actual == 5


def test_time_under_the_lock_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, B14: when matching under the lock takes too long, nothing is stored."""
    late = prepare_evaluated(log, ExpectedContext(RARE, None))
    append_seats(log, "free")
    with monkeypatch.context() as patched:
        patched.setattr(contexts.LockBudget, "check", raise_stale_contexts)
        assert isinstance(commit_one(log, late), StaleContexts)
    assert log.head() == 1
    assert log.append([NewEvent("mine", {})], ExpectedContext(RARE, None)).first_position == 2


def raise_stale_contexts(_: object) -> None:
    """Raise StaleContexts, as when the time under the lock is over."""
    raise StaleContexts


def test_events_under_the_lock_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: too many newer events make the evaluation stale, unless the newest ones conflict."""
    for module in (memory, lookups, append):
        monkeypatch.setattr(module, "NEWEST_EVENTS_MAX", 3)
    late = prepare_evaluated(log, ExpectedContext(RARE, None))
    append_seats(log, "free", "free", "free", "free")
    assert isinstance(commit_one(log, late), StaleContexts)
    append_seats(log, "taken")
    assert isinstance(commit_one(log, late), ConditionalAppendConflict)
    assert log.head() == 5


def test_bytes_under_the_lock_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: too many bytes of newer events make the evaluation stale."""
    if isinstance(log.store, MemoryStore):
        return  # the memory store has no bound: its events are in memory already
    for module in (lookups, append):
        monkeypatch.setattr(module, "NEWEST_BYTES_MAX", 100)
    one = prepare_evaluated(log, ExpectedContext(RARE, None))
    append_seats(log, "x" * 200)
    assert isinstance(commit_one(log, one), AppendResult)
    two = prepare_evaluated(log, ExpectedContext(RARE, None))
    append_seats(log, "x" * 200, "x" * 200)
    assert isinstance(commit_one(log, two), StaleContexts)


def test_a_stale_evaluation_is_repeated(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, B13: an append with stale contexts is evaluated again a bounded number of times."""
    tries: list[AppendRequest] = []
    pack = log.store.prepare_request

    def packed(request: AppendRequest, rules: Any) -> AppendRequest:
        found = pack(request, rules)
        if request.conditions:
            tries.append(request)
            append_seats(log, "free")
        return found

    monkeypatch.setattr(contexts.LockBudget, "check", raise_stale_contexts)
    monkeypatch.setattr(log.store, "prepare_request", packed)
    with pytest.raises(seriatim.BackendFailure, match="nothing was stored"):
        log.append([NewEvent("mine", {})], ExpectedContext(RARE, None))
    assert len(tries) == appender.RULE_RELOADS_MAX == log.head()


def test_conditions_take_one_statement(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: 64 contexts with 4 filters each are checked by one statement under the lock."""
    texts: list[str] = []

    def drive(connection: Any, steps: Any) -> Any:
        return append.run_steps(connection, record_statements(steps, texts))

    monkeypatch.setattr(postgres_writer, "run_steps", drive)
    with seriatim.open(postgres_url) as log:
        for same in (True, False):
            many = [
                ExpectedContext(
                    Query([Filter(types=[f"t-{0 if same else n}-{m}"]) for m in range(4)]), None
                )
                for n in range(64)
            ]
            request = prepare_evaluated(log, *many)
            append_seats(log, "free")
            del texts[:]
            assert isinstance(commit_one(log, request), AppendResult)
            assert len([text for text in texts if "newer_bytes" in text]) == 1
            assert len(texts) <= 5


def record_statements(steps: Any, texts: list[str]) -> Any:
    """Run the steps of an append, and record their SQL."""
    try:
        step = next(steps)
        while True:
            texts.append(step.sql)
            step = steps.send((yield step))
    except StopIteration as end:
        return end.value


def test_equal_contexts_are_evaluated_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: an append that names one context 64 times evaluates it once."""
    append_seats(log, "free")
    made: list[Query] = []
    matcher = Matcher

    def counted(query: Query) -> Any:
        made.append(query)
        return matcher(query)

    request = prepare_evaluated(log, *[ExpectedContext(RARE, None)] * 64)
    append_seats(log, "free")
    monkeypatch.setattr(contexts, "Matcher", counted)
    assert isinstance(commit_one(log, request), AppendResult)
    assert len(made) == 1


# -- cancelled reads


def endless_read(log: Log) -> Callable[[], object]:
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
    append_seats(log, "free")
    cancellation = Cancellation()
    read = endless_read(log)
    alarm = threading.Timer(CANCEL_S, cancellation.cancel)
    alarm.start()
    with cancellable(cancellation), pytest.raises(TimedOut, match="request has ended"):
        read()
    alarm.join()
    assert log.query(RARE).context_version is None  # outside the block nothing is cancelled
    with cancellable(cancellation), pytest.raises(TimedOut, match="request has ended"):
        log.query(RARE)


def test_an_awaited_read_ends_with_its_task(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, B13: a cancelled task ends its query in the database."""
    append_seats(log, "free")
    read = endless_read(log)
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


def test_a_long_transaction_on_sqlite_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: a transaction that holds the write lock for too long is rolled back."""
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
        append_seats(log, "free")


def test_cancellations_are_nested(log: Log) -> None:
    """K3: cancelling a request also cancels requests within it, and not the one around it."""
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

"""F9: hosted Postgres: poolers, restarts and settings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import psycopg
import pytest

import seriatim
from seriatim import (
    Command,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    NewEvent,
    Query,
    Settings,
    StreamKind,
)
from seriatim.factory import diagnose
from seriatim.log.verification import verify
from seriatim.store.postgres.migrate import grant, migrate
from seriatim.store.postgres.reader import TenantReader
from seriatim.store.postgres.store import PostgresStore
from tests.fixtures.pgbouncer import Pgbouncer
from tests.fixtures.postgres_server import PostgresServer
from tests.integration.postgres.conftest import as_role, role_of

StartServer = Callable[..., PostgresServer]
MakeRole = Callable[..., str]
T = TypeVar("T")


@pytest.fixture
def pooled_url(bouncer: Pgbouncer, postgres_url: str) -> str:
    """The log of this test, through the pooler."""
    return bouncer.url_of(postgres_url.rsplit("/", 1)[1])


def test_appends_and_reads_through_a_pooler(pooled_url: str) -> None:
    """F9: appends on every path, reads and queries work through a transaction pooler."""
    stream = ("cart", "1")
    context = Query([Filter(types=["placed"], payload=[{"n": 1}])])
    with seriatim.open(pooled_url) as log, ThreadPoolExecutor(16) as threads:
        log.declare(StreamKind(name="cart"))
        log.append([NewEvent("filled", {"n": 0}, stream=stream)], ExpectedSeq(stream, None))
        log.append([NewEvent("placed", {"n": 1})], ExpectedContext(context, None))
        with pytest.raises(seriatim.ConditionalAppendConflict):
            log.append([NewEvent("placed", {"n": 1})], ExpectedContext(context, None))
        log.append([NewEvent("many", {"n": n}, tags=("t",)) for n in range(100)])
        command = Command(actor="a", endpoint="/x", key="1", response=1)
        appends = [threads.submit(log.append, [NewEvent("c", {})], command=command) for _ in "ab"]
        assert len({append.result().first_position for append in appends}) == 1
        keyed = [
            threads.submit(log.append, [NewEvent("k", {})], idempotency_key="k") for _ in range(8)
        ]
        assert len({append.result().first_position for append in keyed}) == 1
        singles = [
            threads.submit(log.append, [NewEvent("s", {"n": n}, stream=("s", str(n % 3)))])
            for n in range(60)
        ]
        for append in singles:
            append.result()
        with psycopg.connect(pooled_url, prepare_threshold=None) as connection:
            log.append([NewEvent("mine", {})], connection=connection)
        assert log.head() == 165
        assert [record.position for record in log.read(batch_size=50)] == list(range(1, 166))
        assert verify(log.store).ok


def test_subscriptions_through_a_pooler(pooled_url: str) -> None:
    """F9, E6: without wake-ups a subscription polls, and its cursor moves."""
    with seriatim.open(pooled_url) as log:
        log.append([NewEvent("early", {})])
        seen: list[int] = []
        subscription = log.subscribe("mailer", poll_s=0.1)
        thread = subscription.start(lambda batch: seen.extend(one.position for one in batch))
        with seriatim.open(pooled_url) as other:
            for number in range(5):
                other.append([NewEvent("late", {"n": number})])
        deadline = time.monotonic() + 10
        while len(seen) < 6 and time.monotonic() < deadline:
            time.sleep(0.02)
        subscription.stop()
        thread.join(10)

        assert seen == [1, 2, 3, 4, 5, 6]
        assert subscription.position == 6


def test_tenant_reads_through_a_pooler(pooled_url: str) -> None:
    """F9, K2: the tenant of a read is set for its transaction only."""
    asked = "select current_setting('seriatim.tenant', true)"
    tenants = [f"tenant-{number % 3}" if number % 4 else None for number in range(60)]
    with seriatim.open(pooled_url) as log, ThreadPoolExecutor(8) as threads:
        assert isinstance(log.store, PostgresStore)
        reader = TenantReader(log.store.schema, log.store._borrow_connection)
        said = list(threads.map(lambda tenant: reader.fetch_rows(tenant, asked)[0][0], tenants))

    assert [one or None for one in said] == tenants


def test_conditional_appends_through_a_pooler(pooled_url: str) -> None:
    """F9, B9: of concurrent appends with one context, through a pooler, exactly one succeeds."""
    context = Query([Filter(types=["taken"])])
    barrier = threading.Barrier(4)

    def race(log: seriatim.Log) -> int:
        wins = 0
        for _ in range(10):
            barrier.wait(20)
            version = log.query(context).context_version
            barrier.wait(20)
            try:
                log.append([NewEvent("taken", {})], ExpectedContext(context, version))
            except seriatim.ConditionalAppendConflict:
                continue
            wins += 1
        return wins

    logs = [seriatim.open(pooled_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        wins = sum(threads.map(race, logs))
    head = logs[0].head()
    for log in logs:
        log.close()

    assert (wins, head) == (10, 10)


def test_doctor_reports_a_pooler(pooled_url: str, postgres_url: str) -> None:
    """F9: doctor detects a pooler and reports its consequences."""
    [pooled] = [one for one in diagnose(pooled_url) if one.check == "pooler"]
    [direct] = [one for one in diagnose(postgres_url) if one.check == "pooler"]

    assert (pooled.level, direct.level) == ("warning", "ok")
    assert "wake-ups" in pooled.message


def test_failover_by_reconnecting(own_postgres: StartServer) -> None:
    """F9: appends, reads and subscriptions continue after restarts of the server."""
    server = own_postgres(fsync=False)
    url = server.create_database("log")
    migrate(url)
    seen: list[int] = []
    with seriatim.open(url) as log:
        subscription = log.subscribe("mailer", poll_s=0.05)
        thread = subscription.start(lambda batch: seen.extend(one.position for one in batch))
        for number in range(3):
            events = [NewEvent("n", {}, event_id=f"e-{number}")]
            retry_until_done(partial(log.append, events))
            server.restart(immediate=number == 1)
        retry_until_done(lambda: log.append([NewEvent("n", {}, event_id="last")]))
        assert retry_until_done(log.head) == 4
        deadline = time.monotonic() + 15
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        subscription.stop()
        thread.join(10)

    assert sorted(set(seen)) == [1, 2, 3, 4]
    assert seen == sorted(seen)


def retry_until_done(act: Callable[[], T]) -> T:
    """Repeat an operation while the server restarts; ids make a repeated append safe."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return act()
        except seriatim.BackendFailure as failure:
            if not failure.retryable or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_async_commit_is_refused_unless_allowed(postgres_url: str, make_role: MakeRole) -> None:
    """F9: synchronous_commit = off is refused unless allowed; doctor reports it."""
    role = make_role(synchronous_commit="off")
    grant(postgres_url, role)
    url = as_role(postgres_url, role)

    with pytest.raises(seriatim.BackendFailure, match="synchronous_commit") as refused:
        seriatim.open(url)
    with seriatim.open(url, settings=Settings(allow_async_commit=True)) as log:
        log.append([NewEvent("risky", {})])
    found = [one for one in diagnose(url) if "synchronous_commit" in one.message]

    assert not refused.value.retryable
    assert [one.level for one in found] == ["error"]
    assert "acknowledged" in found[0].message


def test_async_commit_enabled_later_is_refused_at_reconnection(
    postgres_url: str, app_url: str
) -> None:
    """F9: a role with a changed synchronous_commit is refused when an open log reconnects."""
    role = role_of(app_url)
    with seriatim.open(app_url, settings=Settings(connect_timeout_s=2)) as log:
        log.append([NewEvent("safe", {})])
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f"alter role {role} set synchronous_commit = off".encode())
            ended = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
            admin.execute(ended, (role,))
        time.sleep(0.1)
        with pytest.raises(seriatim.BackendFailure, match="synchronous_commit") as refused:
            log.append([NewEvent("unsafe", {})])

    assert not refused.value.ambiguous

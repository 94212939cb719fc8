"""Writers that are delayed at every step while readers tail: no event is skipped.

One scenario judges the real log and, as a test of the test, logs from which the lock was taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import ExpectedContext, Filter, NewEvent, Query, Settings
from seriatim.store.postgres import append, writer
from seriatim.store.postgres.statements import load_store_statements
from tests.faults.support import (
    VALIDATED,
    TailThread,
    Worker,
    check_log_complete,
    find_gaps,
    wait_until,
)
from tests.faults.workers import pause_before_step
from tests.fixtures.postgres_server import PostgresServer

SETTINGS = Settings(lock_wait_s=10.0, lock_hold_s=10.0, timeout_s=20.0)
ABSENT = ExpectedContext(Query([Filter(types=["held"])]), None)
HELD_S = 0.4
# The SQL before which the writer waits: the lock, the lookups, the insert, the commit.
STEPS = ["pg_advisory_xact_lock", "transaction_isolation", "append_events", "end"]


class Gate:
    """Block the first validated append at one step until it is opened."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._go = threading.Event()
        self.reached = threading.Event()

    def run_steps(self, connection: Any, steps: Any) -> Any:
        """Run the steps of an append, and wait at the gate."""
        return append.run_steps(connection, pause_before_step(steps, self._at, self._wait))

    def _wait(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self._go.wait(30)

    def open(self) -> None:
        """Let the delayed writer continue."""
        self._go.set()


@contextmanager
def long_transactions(server: PostgresServer, url: str) -> Iterator[None]:
    """Keep old snapshots and transaction ids open, in another database and in the log's own."""
    with psycopg.connect(server.url()) as elsewhere, psycopg.connect(url) as here:
        for connection in (elsewhere, here):
            connection.execute("begin isolation level repeatable read")
            connection.execute("select txid_current()")
        yield


def counted_event(number: int) -> list[NewEvent]:
    """Return an append for the fast path."""
    return [NewEvent("counted", {"n": number}, stream=("counter", str(number % 3)))]


def problems_with_delayed_writer(
    url: str, at: str, monkeypatch: pytest.MonkeyPatch, *, patience_s: float = 20.0
) -> list[str]:
    """Delay a writer at a step while others write and read; return violations of B3."""
    problems: list[str] = []
    gate = Gate(at)
    with seriatim.open(url, settings=SETTINGS) as log, ThreadPoolExecutor(8) as pool:
        for number in range(5):
            log.append(counted_event(number))
        follower = TailThread(log)
        monkeypatch.setattr(writer, "run_steps", gate.run_steps)
        appends: list[Future[Any]] = [
            pool.submit(log.append, [NewEvent("held", {}, stream=("h", "1"))], [ABSENT, VALIDATED])
        ]
        assert gate.reached.wait(20)
        follower.wait_for(5)
        appends += [pool.submit(log.append, counted_event(number)) for number in range(6)]
        time.sleep(HELD_S)
        with seriatim.open(url) as reader:
            visible = [record.position for record in reader.read()]
        problems += find_gaps(visible)
        gate.open()
        for append in appends:
            if (error := append.exception(timeout=patience_s)) is not None:
                problems.append(f"an append failed: {error}")
        if not problems:
            follower.wait_for(log.head(), within_s=10)
            assert len(follower.seen) == 12
        problems += find_gaps(follower.stop())
    return problems


@pytest.mark.parametrize("at", STEPS)
def test_delayed_writer_causes_no_gap(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """B3: with a writer delayed at any step and long transactions open, reads have no gap."""
    with long_transactions(postgres_server, postgres_url):
        assert problems_with_delayed_writer(postgres_url, at, monkeypatch) == []

    assert check_log_complete(postgres_url) == 12


def test_long_transactions_delay_neither_writers_nor_readers(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """B3: a long transaction in any database of the cluster delays neither appends nor tails."""
    with (
        long_transactions(postgres_server, postgres_url),
        Worker("follow", url=postgres_url) as follower,
        seriatim.open(postgres_url) as log,
    ):
        follower.wait_ready()
        for number in range(20):
            log.append(counted_event(number))
        follower.wait_lines(21, within_s=10)

        assert [position for line in follower.lines[1:] for position in line] == list(range(1, 21))


def test_caller_with_the_lock_causes_no_gap(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """B3, B12: an append in an open transaction is invisible and delays later positions."""
    with (
        long_transactions(postgres_server, postgres_url),
        seriatim.open(postgres_url, settings=SETTINGS) as log,
        ThreadPoolExecutor(4) as pool,
        psycopg.connect(postgres_url) as caller,
        Worker("follow", url=postgres_url) as other,
    ):
        other.wait_ready()
        follower = TailThread(log)
        log.append(counted_event(0))
        first = log.append(counted_event(1), connection=caller)
        waiting = [pool.submit(log.append, counted_event(number)) for number in range(3)]
        time.sleep(HELD_S)
        unseen = log.head()
        done = [append.done() for append in waiting]
        caller.commit()
        for append in waiting:
            append.result(timeout=10)
        follower.wait_for(5, within_s=10)
        wait_until(lambda: sum(map(len, other.lines[1:])) == 5, "the other process's tail", 10)
        seen = [position for line in other.lines[1:] for position in line]
        followed = follower.stop()

    assert (unseen, done, first.first_position) == (1, [False] * 3, 2)
    assert find_gaps(followed) == []
    assert find_gaps(seen) == []


def insert_without_lock(connection: psycopg.Connection[Any], position: int) -> None:
    """Insert an event without the lock, as no Seriatim program does."""
    connection.execute(
        "insert into seriatim.events (position, append_position, recorded_us, event_version,"
        " event_key, payload_hash, tenant_id, event_type, payload)"
        " values (%s, %s, 1, 1, gen_random_uuid(), decode(repeat('00', 32), 'hex'), 'default',"
        " 'hand', '{}')",
        (position, position),
    )


@pytest.mark.parametrize("commits", [True, False])
def test_insert_without_the_lock_causes_no_gap(postgres_url: str, commits: bool) -> None:
    """B3, F2: appends wait for an uncommitted insert without the lock; there is no gap."""
    with (
        seriatim.open(postgres_url, settings=SETTINGS) as log,
        ThreadPoolExecutor(4) as pool,
        psycopg.connect(postgres_url) as raw,
    ):
        log.append(counted_event(0))
        follower = TailThread(log)
        insert_without_lock(raw, 2)
        waiting = [pool.submit(log.append, counted_event(number)) for number in range(3)]
        time.sleep(HELD_S)
        visible = log.head()
        if commits:
            raw.commit()
        else:
            raw.rollback()
        for append in waiting:
            append.result(timeout=10)
        head = log.head()
        follower.wait_for(head, within_s=10)

        assert (visible, head) == (1, 5 if commits else 4)
        assert find_gaps(follower.stop()) == []


def test_insert_after_an_uncommitted_one_is_refused(postgres_url: str) -> None:
    """B3, F2: the database refuses a position whose predecessor is not visible."""
    with psycopg.connect(postgres_url) as first, psycopg.connect(postgres_url) as second:
        insert_without_lock(first, 1)
        with pytest.raises(psycopg.Error) as refused:
            insert_without_lock(second, 2)

    assert refused.value.sqlstate == "SQ001"


# -- the test of the test: without the lock the same scenario must fail


def rewrite(url: str, change: Callable[[str], str]) -> None:
    """Change the definition of the function that appends a group, in this database only."""
    found = "select pg_get_functiondef('seriatim.append_events'::regproc)"
    with psycopg.connect(url) as connection:
        row = connection.execute(found).fetchone()
        assert row is not None
        changed = change(row[0])
        assert changed != row[0]
        connection.execute(changed.encode())


def remove_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the lock from the fast path and the validated path."""
    rewrite(url, lambda text: text.replace("pg_advisory_xact_lock(p_lock)", "pg_sleep(0)"))
    monkeypatch.setitem(
        load_store_statements("seriatim"), "lock_log", "select %s::bigint, pg_sleep(0)"
    )


def test_without_the_lock_the_scenario_fails(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: without the lock, the scenario with a delayed writer reports a problem."""
    remove_lock(postgres_url, monkeypatch)

    assert problems_with_delayed_writer(postgres_url, "append_events", monkeypatch) != []


def test_readers_skip_events_with_numbers_from_a_sequence(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: with positions from a sequence and no lock, the scenario reports a gap."""
    remove_lock(postgres_url, monkeypatch)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create sequence public.numbers")
        connection.execute("alter table seriatim.events disable trigger check_group")
    head = 'coalesce((select max(e.position) from "seriatim".events e), 0) as head'
    taken = (
        "coalesce(p_head, (select min(n) - 1"
        " from (select nextval('public.numbers') n from unnest(p_rows)) t)) as head"
    )
    rewrite(postgres_url, lambda text: text.replace(head, taken))
    named = load_store_statements("seriatim")
    look = named["select_log_state"].replace("max(position)", "nextval('public.numbers') - 1", 1)
    taken = "select nextval('public.numbers') - 1"
    look = look.replace(f'{taken} from "seriatim".events', taken)
    monkeypatch.setitem(named, "select_log_state", look)

    problems = problems_with_delayed_writer(postgres_url, "end", monkeypatch)

    assert "saw 7 where 6 should be" in problems

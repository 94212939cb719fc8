"""A writer that is suspended while it holds the lock delays others by a bounded time."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import NewEvent, Settings
from seriatim.store.postgres import append, writer
from seriatim.store.postgres.migrate import migrate
from tests.faults.support import QUICK, VALIDATED, Worker, check_log_complete, wait_until
from tests.faults.workers import PAUSED, pause_before_step


def max_delay_s(settings: Settings) -> float:
    """Return the longest delay of an append by a stopped holder of the lock.

    The server terminates an idle holder after lock_hold_s; waiters retry every lock_wait_s.
    """
    return 2 * (settings.lock_hold_s + settings.lock_wait_s) + 1.0


BOUND_S = max_delay_s(QUICK)
SMALL: dict[str, Any] = {"lock_hold_s": QUICK.lock_hold_s, "lock_wait_s": QUICK.lock_wait_s}
# Under load, a statement that waits for nothing but a processor may take seconds.
UNDER_LOAD: dict[str, Any] = {"lock_hold_s": 3.0, "lock_wait_s": 3.0}


def timed_append(log: seriatim.Log) -> float:
    """Append one event and return its duration."""
    started = time.monotonic()
    log.append([NewEvent("other", {}, stream=("other", "one"))])
    return time.monotonic() - started


def test_stopped_fast_path_writer_releases_the_lock(postgres_url: str, tmp_path: Path) -> None:
    """B14: a fast-path writer that is stopped under load delays others by a bounded time."""
    notes, settings = str(tmp_path / "notes"), Settings(**UNDER_LOAD)
    with (
        Worker("load", url=postgres_url, notes=notes, name="one", settings=UNDER_LOAD) as worker,
        seriatim.open(postgres_url, settings=settings) as log,
    ):
        worker.wait_ready()
        took = []
        for number in range(6):
            time.sleep(0.05 + 0.017 * number)
            worker.send(signal.SIGSTOP)
            took.append(timed_append(log))
            worker.send(signal.SIGCONT)
        assert max(took) < max_delay_s(settings)
        worker.finish()

    check_log_complete(postgres_url)


@pytest.mark.parametrize(
    ("at", "count"),
    [
        ("transaction_isolation", 1),
        ("append_events", 1),
        ("within a message", 1),
        ("end", 1),
        ("append_events", 100),
    ],
)
def test_stopped_validated_append_is_terminated(postgres_url: str, at: str, count: int) -> None:
    """B14, B10: a stopped lock holder is terminated, and its retry is stored once."""
    with (
        Worker("hold", url=postgres_url, at=at, name="h", count=count, settings=SMALL) as holder,
        seriatim.open(postgres_url, settings=QUICK) as log,
    ):
        holder.wait_stopped()
        took = timed_append(log)
        again = timed_append(log)
        holder.send(signal.SIGCONT)
        lines = holder.wait_end()

    assert took < BOUND_S
    assert again < 1.0
    failure, repeated = lines[1:]
    assert (failure["code"], failure["retryable"]) == ("backend_failure", True)
    assert repeated == {"repeated": False}
    assert check_log_complete(postgres_url) == 2 + count


@pytest.mark.parametrize(
    ("act", "at"),
    [
        ("kind", ".declarations (version"),
        ("kind", ".stream_kinds (name"),
        ("type", ".declarations (version"),
        ("index", ".declarations (version"),
        ("restore", "as nth"),
    ],
)
def test_any_stopped_lock_holder_is_terminated(postgres_url: str, act: str, at: str) -> None:
    """B14: any process stopped with the lock is terminated; others continue, and it may retry."""
    with (
        Worker("pause", url=postgres_url, act=act, at=at, settings=SMALL) as holder,
        seriatim.open(postgres_url, settings=QUICK) as log,
    ):
        holder.wait_stopped()
        took = timed_append(log)
        holder.send(signal.SIGCONT)
        holder.wait_lines(2)
        failure = holder.lines[1]
        if act != "restore":  # a restore cannot continue after the head has moved
            assert holder.wait_end()[2] == "done"

    assert took < BOUND_S
    assert (failure["code"], failure["retryable"]) == ("backend_failure", True)
    assert "lock_hold_s" in failure["message"]
    assert check_log_complete(postgres_url) == 1


def test_stopped_cursor_owner_is_terminated(postgres_url: str) -> None:
    """B14: a process stopped while it moves a cursor delays others for a bounded time."""
    with (
        Worker("pause", url=postgres_url, act="cursor", at=".cursors\n", settings=SMALL) as holder,
        seriatim.open(postgres_url, settings=QUICK) as log,
    ):
        holder.wait_stopped()
        assert timed_append(log) < BOUND_S
        started = time.monotonic()
        move = PAUSED["cursor"](postgres_url, QUICK)
        move()
        took = time.monotonic() - started
        holder.send(signal.SIGCONT)
        assert holder.wait_end()[2] == "done"

    assert took < BOUND_S


def test_stopped_migration_is_terminated(empty_postgres_url: str) -> None:
    """B14, F3: a migration stopped with a lock on the events delays others by lock_hold_s."""
    migrate(empty_postgres_url, target=2)
    look = "select count(*) from seriatim.events"
    with (
        Worker(
            "pause",
            url=empty_postgres_url,
            act="migrate",
            at='into "seriatim".migrations',
            settings={},
        ) as holder,
        psycopg.connect(empty_postgres_url, autocommit=True) as other,
    ):
        holder.wait_stopped()
        started = time.monotonic()
        assert other.execute(look).fetchone() == (0,)
        took = time.monotonic() - started
        holder.send(signal.SIGCONT)
        assert holder.wait_end()[2] == "done"

    assert took < 2 * Settings().lock_hold_s


def test_callers_transaction_is_never_terminated(postgres_url: str) -> None:
    """B12, B14: writers that wait for the lock do not terminate a caller's transaction."""
    events = [NewEvent("mine", {"n": n}) for n in range(200)]
    with (
        seriatim.open(postgres_url, settings=Settings(lock_wait_s=0.5, lock_hold_s=0.2)) as log,
        psycopg.connect(postgres_url) as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        log.append([NewEvent("first", {})], connection=caller)
        waiting = pool.submit(log.append, events)
        time.sleep(2.0)
        assert not waiting.done()
        caller.commit()
        assert waiting.result(timeout=10).first_position == 2

    assert check_log_complete(postgres_url) == 201


def test_time_in_the_queue_does_not_terminate_a_writer(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: only the time with the lock counts; time in the queue terminates no writer."""
    slow = Settings(lock_wait_s=10.0, lock_hold_s=2.0)
    hasty = Settings(lock_wait_s=0.3, lock_hold_s=2.0)

    def drive(connection: Any, steps: Any) -> Any:
        monkeypatch.undo()  # only the first time
        return append.run_steps(
            connection, pause_before_step(steps, "append_events", lambda: time.sleep(1.0))
        )

    monkeypatch.setattr(writer, "run_steps", drive)
    with (
        seriatim.open(postgres_url, settings=slow) as log,
        seriatim.open(postgres_url, settings=hasty) as other,
        psycopg.connect(postgres_url) as caller,
        ThreadPoolExecutor(2) as pool,
    ):
        log.append([NewEvent("first", {})], connection=caller)
        queued = pool.submit(log.append, [NewEvent("queued", {})], VALIDATED)
        time.sleep(2.5)
        second = pool.submit(other.append, [NewEvent("second", {})])
        time.sleep(0.1)
        caller.commit()
        assert queued.result(timeout=10).first_position == 2
        second.result(timeout=10)

    assert check_log_complete(postgres_url) == 3


def test_locks_of_two_logs_are_independent(empty_postgres_url: str) -> None:
    """B14: a lock held in one log does not delay another log of the same database."""
    urls = [f"{empty_postgres_url}?schema={name}" for name in ("one", "two")]
    for url in urls:
        migrate(url)
    with (
        seriatim.open(urls[0]) as log,
        seriatim.open(urls[1]) as two,
        psycopg.connect(empty_postgres_url) as caller,
    ):
        log.append([NewEvent("held", {})], connection=caller)
        took = [timed_append(two) for _ in range(10)]
        assert (log.head(), two.head()) == (0, 10)
        caller.commit()
        assert log.head() == 1
        assert log.identity().log_id != two.identity().log_id

    assert max(took) < 2.0


def test_killed_holder_releases_the_lock(postgres_url: str) -> None:
    """B14: the lock of a killed process is released, and others continue."""
    with (
        Worker("hold", url=postgres_url, at="append_events", name="h", settings={}) as holder,
        seriatim.open(postgres_url) as log,
    ):
        holder.wait_stopped()
        holder.kill9()
        wait_until(lambda: timed_append(log) < 2.0, "an append", within_s=10)

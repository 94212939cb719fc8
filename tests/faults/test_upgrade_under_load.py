"""An upgrade while programs of the version before go on writing (F3)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.store.postgres.migrate import SCHEMA_VERSION, migrate
from tests.faults.support import Worker, check_whole, noted, wait_until


def count(file: Path) -> int:
    """Count what a loader has acknowledged so far."""
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_for(file: Path, wanted: int) -> None:
    """Wait until a loader has acknowledged so many events."""
    wait_until(lambda: count(file) >= wanted, f"{wanted} events in {file.name}")


def test_older_program_works_through_an_upgrade(empty_postgres_url: str, tmp_path: Path) -> None:
    """F3: writers of the version before go on through the migration, without an error or a stop."""
    older = SCHEMA_VERSION - 1
    assert migrate(empty_postgres_url, target=older) == older
    files = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                Worker(
                    "load",
                    url=empty_postgres_url,
                    notes=str(file),
                    name=file.name,
                    as_program=older,
                )
            )
            for file in files
        ]
        for worker, file in zip(workers, files, strict=True):
            worker.wait_ready()
            wait_for(file, 20)
        started = time.monotonic()
        assert migrate(empty_postgres_url) == SCHEMA_VERSION
        took = time.monotonic() - started
        with seriatim.open(empty_postgres_url) as log:  # the newer program, beside the older ones
            log.append([NewEvent("newer", {})])
        for file in files:
            wait_for(file, count(file) + 20)
        failures = [worker.finish()[-1] for worker in workers]

    assert failures == [{"ambiguous": 0, "clear": 0}] * 2
    assert took < 10
    assert check_whole(empty_postgres_url, noted(*files)) == len(noted(*files)) + 1


def test_migration_steps_aside_for_a_long_append(empty_postgres_url: str) -> None:
    """F3: while a caller holds a table, the migration waits without queueing others."""
    migrate(empty_postgres_url, target=SCHEMA_VERSION - 1)
    with (
        psycopg.connect(empty_postgres_url) as caller,
        psycopg.connect(empty_postgres_url, autocommit=True) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        command = (
            "insert into seriatim.commands values"
            " (gen_random_uuid(), 'default', 'h', 'r', 1, 1, now())"
        )
        caller.execute(command)  # what an open append with a command holds
        migrating = pool.submit(migrate, empty_postgres_url)
        worst = 0.0
        for _ in range(20):
            started = time.monotonic()
            writer.execute(command)
            worst = max(worst, time.monotonic() - started)
            time.sleep(0.05)
        assert not migrating.done()
        caller.commit()
        assert migrating.result(timeout=15) == SCHEMA_VERSION

    assert worst < 1.0


@pytest.mark.parametrize("start", [0, SCHEMA_VERSION - 1])
def test_migrations_at_once_are_safe(empty_postgres_url: str, start: int) -> None:
    """F3: several programs that migrate or create at the same moment do it once."""
    if start:
        migrate(empty_postgres_url, target=start)
    barrier = threading.Barrier(5)

    def one(number: int) -> int:
        barrier.wait(10)
        if number == 0 and start == 0:
            seriatim.open(empty_postgres_url).close()
        return migrate(empty_postgres_url)

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(one, range(5))) == [SCHEMA_VERSION] * 5
    with psycopg.connect(empty_postgres_url) as connection:
        rows = connection.execute("select version from seriatim.migrations order by 1").fetchall()
    assert [row[0] for row in rows] == list(range(1, SCHEMA_VERSION + 1))

"""A schema upgrade while programs of the previous version write (F3)."""

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
from tests.faults.support import Worker, check_log_complete, read_acknowledged, wait_until

WITHOUT_ACTOR_INDEX = 4  # the schema version before the last index that was added


def count_acknowledged(file: Path) -> int:
    """Count the events that a loader has acknowledged."""
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_for(file: Path, wanted: int) -> None:
    """Wait until a loader has acknowledged this many events."""
    wait_until(lambda: count_acknowledged(file) >= wanted, f"{wanted} events in {file.name}")


def test_older_program_works_through_an_upgrade(empty_postgres_url: str, tmp_path: Path) -> None:
    """F3: writers of the previous version continue through a migration without errors."""
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
            wait_for(file, count_acknowledged(file) + 20)
        failures = [worker.finish()[-1] for worker in workers]

    assert failures == [{"ambiguous": 0, "clear": 0}] * 2
    assert took < 10
    assert (
        check_log_complete(empty_postgres_url, read_acknowledged(*files))
        == len(read_acknowledged(*files)) + 1
    )


def test_index_build_does_not_delay_writers(empty_postgres_url: str) -> None:
    """F3, E7: while an index build waits for a long transaction, appends do not wait."""
    migrate(empty_postgres_url, target=WITHOUT_ACTOR_INDEX)
    insert = (
        "insert into seriatim.events (position, append_position, recorded_us, event_version,"
        " event_key, payload_hash, tenant_id, event_type, actor_id, payload)"
        " select coalesce(max(position), 0) + 1, coalesce(max(position), 0) + 1, 1, 1,"
        " gen_random_uuid(), decode(repeat('00', 32), 'hex'), 'default', 'a', 'c', '{}'"
        " from seriatim.events"
    )
    with (
        psycopg.connect(empty_postgres_url) as reader,
        psycopg.connect(empty_postgres_url, autocommit=True) as writer,
        ThreadPoolExecutor(2) as pool,
    ):
        writer.execute(insert)
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from seriatim.events")  # holds an old snapshot
        migrating = [pool.submit(migrate, empty_postgres_url) for _ in range(2)]
        wait_until(lambda: _building(writer), "the index to be built")
        writer.execute("set lock_timeout = '5s'")
        for _ in range(10):
            writer.execute(insert)
        assert not any(one.done() for one in migrating)
        reader.commit()
        assert [one.result(timeout=30) for one in migrating] == [SCHEMA_VERSION] * 2
        assert _invalid(writer) == 0
    with seriatim.open(empty_postgres_url) as log:
        assert len(list(log.read(actor_id="c"))) == 11


def test_interrupted_index_is_built_again(empty_postgres_url: str) -> None:
    """F3: an invalid index of a killed migration is built again."""
    migrate(empty_postgres_url, target=WITHOUT_ACTOR_INDEX)
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute(
            "insert into seriatim.events (position, append_position, recorded_us, event_version,"
            " event_key, payload_hash, tenant_id, event_type, actor_id, payload) values"
            " (1, 1, 1, 1, gen_random_uuid(), decode(repeat('00', 32), 'hex'), 't', 'a', 'c', '{}')"
        )
        connection.execute(
            "create index events_actor on seriatim.events"
            " (tenant_id, actor_id, position) where actor_id is not null"
        )
        connection.execute(
            "update pg_index set indisvalid = false"
            " where indexrelid = 'seriatim.events_actor'::regclass"
        )
        assert migrate(empty_postgres_url) == SCHEMA_VERSION
        assert _invalid(connection) == 0


def _building(connection: psycopg.Connection[tuple[int]]) -> bool:
    text = "select 1 from pg_stat_activity where query like 'create index concurrently%'"
    return connection.execute(text).fetchone() is not None


def _invalid(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("select count(*) from pg_index where not indisvalid").fetchone()
    assert row is not None
    return row[0]


def test_migration_does_not_delay_writers(empty_postgres_url: str) -> None:
    """F3: while a migration waits for a lock on a table, other writers of it do not wait."""
    migrate(empty_postgres_url, target=3)  # the next one alters the table of cursors
    with (
        psycopg.connect(empty_postgres_url) as caller,
        psycopg.connect(empty_postgres_url, autocommit=True) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        command = (
            "insert into seriatim.cursors"
            " (tenant_id, purpose, name, position, log_id, epoch, tip, query, updated_us) values"
            " ('default', 'projection', gen_random_uuid(), 1, gen_random_uuid(), 1, '', '', 1)"
        )
        caller.execute(command)  # the lock of a consumer that moves its cursor
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
def test_concurrent_migrations_are_applied_once(empty_postgres_url: str, start: int) -> None:
    """F3: concurrent migrations and creations apply each migration once."""
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

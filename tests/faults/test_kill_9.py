"""Repeated `kill -9` under load: acknowledged events are stored once, and work continues."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import seriatim
from seriatim.store.postgres.migrate import migrate
from tests.faults.support import Worker, check_log_complete, read_acknowledged, wait_until
from tests.fixtures.postgres_server import PostgresServer

StartServer = Callable[..., PostgresServer]
ROUNDS = 3


def count_acknowledged(file: Path) -> int:
    """Count the events that a loader has acknowledged."""
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_for_progress(file: Path, more: int = 30) -> None:
    """Wait until a loader has acknowledged this many more events."""
    before = count_acknowledged(file)
    wait_until(
        lambda: count_acknowledged(file) >= before + more, f"{more} more events in {file.name}"
    )


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh log that several processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


def test_killed_writers_keep_acknowledged_events(url: str, tmp_path: Path) -> None:
    """F5, B10: after writers are killed under load, each acknowledged append is stored once."""
    files = [tmp_path / "steady"] + [tmp_path / f"victim-{number}" for number in range(ROUNDS)]
    with Worker("load", url=url, notes=str(files[0]), name="steady") as steady:
        steady.wait_ready()
        for number, file in enumerate(files[1:]):
            with Worker("load", url=url, notes=str(file), name=f"victim-{number}") as victim:
                victim.wait_ready()
                wait_for_progress(file, more=20 + 15 * number)
                victim.kill9()
            wait_for_progress(files[0])
        *_, failures = steady.finish()

    assert failures == {"ambiguous": 0, "clear": 0}
    acknowledged = read_acknowledged(*files)
    assert check_log_complete(url, acknowledged) >= len(acknowledged)


def test_killed_server_keeps_acknowledged_events(own_postgres: StartServer, tmp_path: Path) -> None:
    """F5, B10, F9: writers reconnect to a killed server, and each append is stored once."""
    server = own_postgres()
    url = server.create_database("log")
    migrate(url)
    files = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker("load", url=url, notes=str(file), name=file.name))
            for file in files
        ]
        for worker in workers:
            worker.wait_ready()
        for number in range(ROUNDS):
            for file in files:
                wait_for_progress(file)
            time.sleep(0.05 * number)
            server.kill9()
            time.sleep(0.2)
            server.start()
        for file in files:
            wait_for_progress(file)
        failures = [worker.finish()[-1] for worker in workers]

    # Each kill caused a failure of some append: ambiguous, or at the connection.
    assert sum(sum(counts.values()) for counts in failures) >= ROUNDS
    assert sum(counts["ambiguous"] for counts in failures) >= 1
    acknowledged = read_acknowledged(*files)
    with seriatim.open(url) as log:
        everything = [record.event_id for record in log.read(batch_size=5000)]
    assert sorted(everything) == sorted(set(everything))
    # No append is unresolved: the loaders repeated each one until it succeeded.
    assert set(everything) == set(acknowledged)
    assert check_log_complete(url, acknowledged) == len(acknowledged)


def test_terminated_idle_sessions_are_replaced(postgres_url: str) -> None:
    """F9: idle sessions that the server has terminated are replaced, and no append fails."""
    with seriatim.open(postgres_url) as log, psycopg.connect(postgres_url) as admin:
        for number in range(5):
            log.append([seriatim.NewEvent("counted", {"n": number})])
            assert log.head() == number + 1
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'seriatim' and datname = current_database()"
            )
            admin.commit()
            time.sleep(0.05)

    assert check_log_complete(postgres_url) == 5

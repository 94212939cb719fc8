"""Migrations: a migrated schema equals a new one; unsupported versions are refused."""

from __future__ import annotations

import re

import psycopg
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.store.postgres import migrate as migrating
from seriatim.store.postgres.migrate import OLDEST_PROGRAM, SCHEMA_VERSION, migrate
from seriatim.store.postgres.statements import list_migrations
from tests.fixtures.postgres_server import PostgresServer


def dump(server: PostgresServer, url: str) -> str:
    """Return a database's schema as SQL, without lines that differ between any two dumps."""
    text = server.run_tool("pg_dump", "--schema-only", url.rsplit("/", 1)[1]).stdout
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


def test_fresh_schema_equals_migrated(
    postgres_server: PostgresServer, postgres_url: str, empty_postgres_url: str
) -> None:
    """F3: migrations applied step by step, and repeated, give the schema of a new log."""
    for version in range(1, SCHEMA_VERSION + 1):
        assert migrate(empty_postgres_url, target=version) == version
    migrate(empty_postgres_url)

    assert dump(postgres_server, empty_postgres_url) == dump(postgres_server, postgres_url)
    assert "CREATE TABLE seriatim.events" in dump(postgres_server, postgres_url)


def test_migrations_are_numbered_without_gaps() -> None:
    """F3: every migration has a number and the oldest program that works after it."""
    numbers = [number for number, _, _ in list_migrations()]

    assert numbers == list(range(1, SCHEMA_VERSION + 1))
    assert set(OLDEST_PROGRAM) == set(numbers)
    # A program one version older must work: expand first, contract later.
    assert all(OLDEST_PROGRAM[number] <= max(1, number - 1) for number in numbers)


def test_old_schema_is_refused_with_the_command_to_run(empty_postgres_url: str) -> None:
    """F3, L3: an older schema is refused with the command that migrates it."""
    migrate(empty_postgres_url, target=SCHEMA_VERSION - 1)

    with pytest.raises(seriatim.BackendFailure, match="seriatim init") as refused:
        seriatim.open(empty_postgres_url)

    assert not refused.value.retryable
    migrate(empty_postgres_url)
    with seriatim.open(empty_postgres_url) as log:
        log.append([NewEvent("works", {})])


def test_too_new_schema_is_refused(postgres_url: str) -> None:
    """F3: a schema that is too new for this program is refused: upgrade the package."""
    newer = SCHEMA_VERSION + 2
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "insert into seriatim.migrations (version, name, oldest_program) values (%s, 'x', %s)",
            (newer, SCHEMA_VERSION + 1),
        )

    with pytest.raises(seriatim.BackendFailure, match="upgrade the package") as refused:
        seriatim.open(postgres_url)

    assert not refused.value.retryable


def test_compatible_newer_schema_is_accepted(postgres_url: str) -> None:
    """F3: a program one version older keeps working on a migrated schema."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "insert into seriatim.migrations (version, name, oldest_program) values (%s, 'x', %s)",
            (SCHEMA_VERSION + 1, SCHEMA_VERSION),
        )

    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("works", {})])
        levels = {finding.check: finding.level for finding in log.store.doctor()}
    assert levels["schema"] == "warning"


def test_missing_log_is_refused_unless_created(empty_postgres_url: str) -> None:
    """F3: with create=False a database without a log is refused with the command to run."""
    with pytest.raises(seriatim.BackendFailure, match="seriatim init"):
        seriatim.open(empty_postgres_url, create=False)

    with seriatim.open(empty_postgres_url) as log:
        assert log.head() == 0


def test_failed_migration_changes_nothing(
    postgres_server: PostgresServer, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: a failed migration is rolled back as a whole."""
    migrate(empty_postgres_url, target=1)
    before = dump(postgres_server, empty_postgres_url)
    files = [*list_migrations()[:1], (2, "broken", "create table {schema}.half (); select 1 / 0;")]
    monkeypatch.setattr(migrating, "list_migrations", lambda: files)

    with pytest.raises(seriatim.BackendFailure):
        migrate(empty_postgres_url)

    assert dump(postgres_server, empty_postgres_url) == before


def test_two_logs_in_one_database(postgres_url: str) -> None:
    """F8: a second schema is a second log, with its own identity, events and migrations."""
    with (
        seriatim.open(postgres_url) as log,
        seriatim.open(f"{postgres_url}?schema=second_log") as two,
    ):
        log.append([NewEvent("here", {})])
        assert (log.head(), two.head()) == (1, 0)
        assert log.identity().log_id != two.identity().log_id

    with pytest.raises(seriatim.InvalidArgument):
        seriatim.open(f'{postgres_url}?schema=a"b')
